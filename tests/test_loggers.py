"""Numbers of a run in TensorBoard and MLflow are those of its journal, without test metrics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fedprior
from fedprior.errors import FedpriorError
from fedprior.experiment.comparison import Comparison
from fedprior.loggers import MLflow, TensorBoard, scalars
from fedprior.methods import build
from support import TRAIN, federation


def compared(logger: Any) -> Comparison:
    with logger:
        data = federation((12, 9))
        return fedprior.compare(
            [build("fedavg", train=TRAIN)], data, baselines=False, rounds=3, eval_every=1, workers=1, observers=logger
        )


def journal(found: Comparison) -> dict[str, list[float]]:
    events = found["fedavg"].journal.events
    rounds = [e for e in events if e["kind"] == "round"]
    judged = [e for e in events if e["kind"] == "evaluation"]
    return {
        "train/loss": [e["logs"]["loss"] for e in rounds],
        "bytes/up": [e["bytes_up"] for e in rounds],
        "validation/personal/nll": [e["personal"]["validation"]["nll"]["mean"] for e in judged],
        "validation/global/accuracy": [e["global"]["validation"]["accuracy"]["mean"] for e in judged],
    }


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    expected = journal(compared(TensorBoard(tmp_path)))
    board = EventAccumulator(str(tmp_path / "fedavg"))
    board.Reload()
    for name, values in expected.items():
        assert [event.step for event in board.Scalars(name)] == [1, 2, 3]
        assert [event.value for event in board.Scalars(name)] == pytest.approx(values)
    assert not [name for name in board.Tags()["scalars"] if "test" in name]


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder needs neither a server nor a database
    logger = MLflow("here", uri=(tmp_path / "ml").as_uri())
    expected = journal(compared(logger))
    (run,) = logger.runs
    for name, values in expected.items():
        found = logger.client.get_metric_history(run, name)
        assert [metric.step for metric in found] == [1, 2, 3]
        assert [metric.value for metric in found] == pytest.approx(values)
    told = logger.client.get_run(run)
    assert told.data.params == {"method": "fedavg", "rounds": "3"}
    assert told.info.status == "FINISHED"


def test_a_store_that_cannot_be_had_is_told_in_a_sentence() -> None:
    with pytest.raises(FedpriorError, match="MLflow cannot use") as error:
        MLflow("here", uri="nonsense://nowhere")
    assert "\n" not in str(error.value)


def test_what_is_not_finite_is_left_out() -> None:
    event = {"kind": "round", "round": 1, "logs": {"loss": math.nan, "gap": 1.0}, "bytes_up": 8, "bytes_down": 4}
    assert dict(scalars(event)) == {"train/gap": 1.0, "bytes/up": 8.0, "bytes/down": 4.0}
    validation = {"nll": {"mean": 0.5}, "auroc": {"mean": None}, "evaluated": 3}
    personal = {"validation": validation, "test": {"nll": {"mean": 9}}}
    assert dict(scalars({"kind": "evaluation", "round": 1, "personal": personal})) == {"validation/personal/nll": 0.5}
    assert dict(scalars({"kind": "saving", "round": 1})) == {}
