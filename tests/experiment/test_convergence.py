"""A method that has converged ends its run: the files say so, and interruptions around that round change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedprior
from fedprior.data.federation import Federation, from_arrays
from fedprior.experiment.config import Settings
from fedprior.experiment.loop import execute
from fedprior.experiment.result import Result
from fedprior.methods import build
from support import bound, same

ROUNDS = 60


def data() -> Federation:
    """Four sites with two inputs."""
    rng, clients = np.random.default_rng(0), {}
    for k in range(4):
        x = rng.normal(size=(40, 2))
        clients[f"site-{k}"] = (x, (rng.random(40) < 1 / (1 + np.exp(-x[:, 0] - 0.5 * k))).astype(int))
    return from_arrays(clients, classes=2).to(torch.float32)


DATA = data()


def go(folder: Path | None, rounds: int = ROUNDS, stop: Any = None, **options: Any) -> Result:
    """Start or continue a run; `stop` is (kind, round) of the event in which it is killed."""

    def observe(event: dict[str, Any]) -> None:
        if (event["kind"], event["round"]) == stop:
            raise KeyboardInterrupt

    settings = Settings(rounds=rounds, checkpoint_every=3, eval_every=4, **options)
    resume = folder is not None and (folder / "events.jsonl").exists()
    method = bound("mixed", DATA)
    return execute(method, DATA, settings, model={"name": "custom"}, folder=folder, resume=resume, observe=observe)


def test_a_run_ends_where_it_has_converged(tmp_path: Path) -> None:
    """Not before, and not a round later; what is kept is the converged model, and the files say so."""
    result = go(tmp_path)
    end = result.summary["last"]["round"]
    assert 3 < end < ROUNDS
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    trained = [event for event in lines if event["kind"] == "round"]
    assert [event.get("converged", False) for event in trained] == [False] * (end - 1) + [True]
    assert lines[-1]["kind"] == "evaluation"
    assert lines[-1]["round"] == end
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["selected"]["round"] == end
    assert "converged" in summary["selected"]["by"]
    assert summary["rounds"] == ROUNDS
    assert f"round {end} of {end}" in repr(result)
    shorter = go(None, end - 1)
    assert shorter.summary["last"]["round"] == end - 1


@pytest.mark.parametrize("after", [-1, 0])
@pytest.mark.parametrize("kind", ["round", "evaluation"])
def test_killed_around_the_last_round(tmp_path: Path, after: int, kind: str) -> None:
    """In the round itself, in the one before, or in the evaluation behind it: the same files, bit for bit."""
    whole = go(tmp_path / "whole")
    end = whole.summary["last"]["round"]
    stop = (kind, end + after if kind == "round" else end)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "killed", stop=stop)
    again = go(tmp_path / "killed")
    assert again.summary["last"]["round"] == end
    assert same(again.models, whole.models)
    assert same(again.server, whole.server)
    for file in ("clients.csv", "logs.csv"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_more_rounds_change_nothing(tmp_path: Path) -> None:
    """A finished run that has converged is read, or continued without another round."""
    few = go(tmp_path / "few", 3)
    assert few.summary["last"]["round"] == 3
    more, whole = go(tmp_path / "few"), go(tmp_path / "whole")
    assert same(more.models, whole.models)
    longer = go(tmp_path / "whole", 2 * ROUNDS)
    assert longer.summary["last"]["round"] == whole.summary["last"]["round"]
    assert same(longer.models, whole.models)


def test_a_finished_run_is_read(tmp_path: Path) -> None:
    """By the same call, and in a comparison whose other method takes all rounds."""
    first = fedprior.run(build("mixed"), DATA, model="softmax", rounds=30, out=tmp_path / "run", workers=1)
    again = fedprior.run(build("mixed"), DATA, model="softmax", rounds=30, out=tmp_path / "run", workers=1)
    assert again.summary["timing"] == first.summary["timing"]
    assert same(again.models, first.models)
    assert first.selected == first.summary["last"]["round"] < 30
    found = fedprior.compare([build("mixed")], DATA, model="softmax", rounds=30, workers=1)
    assert found["mixed"].selected == first.selected
    assert found["local"].summary["last"]["round"] == 30
