"""What validation chose is what is kept and shown: models, predictions, tables and gains, for every method."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import fedprior
from fedprior.data.client import ClientData
from fedprior.data.federation import Federation, from_arrays
from fedprior.experiment.journal import Event
from fedprior.experiment.result import Result
from fedprior.experiment.selection import Selection
from fedprior.methods import build
from fedprior.methods.local import Local
from fedprior.protocol import METHODS, About, Logs, Method, Weights, register
from fedprior.rng import Key, Keys
from fedprior.training import Train
from fedprior.tree import Params
from support import federation, same


class Scripted:
    """The probability of the right class that the personal models give, round by round."""

    script: Sequence[float] = ()


@pytest.fixture
def scripted() -> Iterator[type[Method[Any, Any, Any, Any, Any]]]:
    """A method that learns nothing: its server counts rounds, and its predictions follow the script.

    All labels are 0. In round r it gives class 0 the probability `script[r - 1]`, so that the NLL is -log of it.
    """

    @register
    class Stub(Method[Weights, Weights, Weights, Weights, Weights]):
        """Counts rounds."""

        about: ClassVar[About] = About(
            "scripted", "Scripted", "none", 2026, "baseline", "a counter", "after aggregation"
        )

        def init_server(self, key: Key, clients: int = 1) -> Weights:
            return Weights({"count": torch.zeros(1)})

        def broadcast(self, server: Weights, ids: Tensor) -> Weights:
            return server

        def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Weights:
            return Weights({"count": torch.zeros(len(data), 1)})

        def local_update(
            self, client: Weights, down: Weights, data: ClientData, keys: Keys
        ) -> tuple[Weights, Weights, Logs]:
            grown: Params = {"count": client.w["count"] + 1}
            return Weights(grown), Weights(grown), {"loss": torch.zeros(len(data))}

        def aggregate(self, server: Weights, ups: Weights, ids: Tensor) -> Weights:
            return Weights({"count": ups.w["count"].amax(0)})

        def personalise(self, client: Weights, down: Weights, data: ClientData, keys: Keys) -> Weights:
            return Weights({"count": down.w["count"].expand(len(data), 1).clone()})

        def predict(self, personal: Weights, x: Tensor, keys: Keys) -> Tensor:
            right = torch.tensor([Scripted.script[int(c) - 1] for c in personal.w["count"].flatten()])
            p = torch.stack([right, 1 - right], 1)[:, None].expand(-1, x.shape[1], -1)
            return p.log()

        def predict_global(self, server: Weights, x: Tensor) -> Tensor | None:
            return None

    try:
        yield METHODS["scripted"]
    finally:
        del METHODS["scripted"]


def zeros(validation: float = 0.25) -> Federation:
    """Two clients of twenty examples, all of class 0."""
    rng = np.random.default_rng(0)
    sites = {k: (rng.normal(size=(20, 3)), np.zeros(20, int)) for k in "ab"}
    return from_arrays(sites, classes=2, validation=validation, test=0.25)


def run(script: Sequence[float], *, data: Federation | None = None, **more: Any) -> Result:
    Scripted.script = script
    method = METHODS["scripted"](train=Train())
    return fedprior.run(method, data or zeros(), **({"rounds": len(script), "eval_every": 1} | more))


def kept(result: Result) -> int:
    """The round whose models the result has."""
    counts = {int(result.arrays(client)["w/count"][0]) for client in result.federation.clients}
    assert len(counts) == 1
    return counts.pop()


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    ("script", "chosen"),
    [
        ((0.9, 0.6, 0.5, 0.4), 1),
        ((0.5, 0.6, 0.9, 0.4), 3),
        ((0.5, 0.6, 0.7, 0.8), 4),
        ((0.5, 0.8, 0.8, 0.8), 2),
        ((0.5, 0.5, 0.5, 0.5), 1),
        ((math.nan, 0.5, math.nan, 0.4), 2),
        ((0.5, math.nan, math.nan, math.nan), 1),
        ((math.nan, 0.1, 0.2, 0.2), 3),
        ((0.0, 0.4, 0.3, 0.2), 2),
    ],
    ids=str,
)
def test_the_first_round_with_the_lowest_validation_nll(script: tuple[float, ...], chosen: int, tmp_path: Path) -> None:
    """First, last or in the middle; the first of equals; a finite one before nan and before an infinite one.

    Everything that the result shows is of that round: its models, predictions, table, clients, and what is on disk.
    """
    result = run(script, out=tmp_path / "run")
    right = script[chosen - 1]
    assert result.selected == kept(result) == chosen
    assert result.summary["selected"]["personal"]["validation"]["nll"]["mean"] == pytest.approx(-math.log(right))
    assert result.mean("nll") == result.table.loc["scripted", "nll"] == pytest.approx(-math.log(right))
    assert result.clients["nll"].tolist() == pytest.approx([-math.log(right)] * 2)
    for found in result.predictions["test"]:
        np.testing.assert_allclose(np.exp(found[:, 0]), right, rtol=1e-6)
    np.testing.assert_allclose(result.predict("a", np.zeros((2, 3)))[:, 0], right, rtol=1e-6)
    saved = fedprior.load_model(tmp_path / "run" / "models" / "b.safetensors")
    assert saved.arrays["w/count"].tolist() == [chosen]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["selected"]["round"] == chosen
    told = [e["selected"] for e in result.journal.events if e["kind"] == "evaluation"]
    assert told[-1] == chosen
    again = run(script, out=tmp_path / "run")
    assert (again.selected, kept(again)) == (chosen, chosen)
    assert again.mean("nll") == result.mean("nll")


@pytest.mark.usefixtures("scripted")
def test_nothing_but_nan_still_ends() -> None:
    assert run((math.nan, math.nan)).selected == 1


@pytest.mark.usefixtures("scripted")
def test_without_validation_examples_it_is_the_last() -> None:
    result = run((0.9, 0.6, 0.5), data=zeros(validation=0))
    assert set(result.federation.validation.size) == {0}
    assert result.selected == kept(result) == 3


@pytest.mark.usefixtures("scripted")
def test_the_last_if_so_asked() -> None:
    result = run((0.9, 0.6, 0.5), select="last")
    assert result.selected == kept(result) == 3
    assert result.summary["selected"]["by"] == "the last round, as requested"


@pytest.mark.usefixtures("scripted")
def test_the_last_models_are_at_hand_too() -> None:
    result = run((0.9, 0.6, 0.5))
    assert result.last is not None
    assert result.last.models.w["count"].flatten().tolist() == [3, 3]
    np.testing.assert_allclose(np.exp(result.last.predictions["test"][0][:, 0]), 0.5, rtol=1e-6)
    assert result.summary["last"]["round"] == 3


@pytest.mark.usefixtures("scripted")
def test_only_evaluated_rounds_can_be_chosen() -> None:
    """Round 1 would be the best, but 2 and 4 are evaluated."""
    assert run((0.9, 0.6, 0.5, 0.4), eval_every=2).selected == 2


@pytest.mark.usefixtures("scripted")
def test_an_interruption_does_not_forget_the_choice(tmp_path: Path) -> None:
    """Round 2 is the best; stopped in round 4 and continued: models and predictions of round 2, as without it."""
    script = (0.5, 0.9, 0.6, 0.5, 0.4)

    def stop(event: Event) -> None:
        if (event["kind"], event["round"]) == ("round", 4):
            raise KeyboardInterrupt

    whole = run(script, out=tmp_path / "whole", checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        run(script, out=tmp_path / "cut", checkpoint_every=1, observe=stop)
    resumed = run(script, out=tmp_path / "cut", checkpoint_every=1)
    assert resumed.summary["timing"]["first_round"] == 3
    assert resumed.selected == kept(resumed) == 2
    assert same(resumed.models, whole.models)
    for ours, theirs in zip(resumed.predictions["test"], whole.predictions["test"], strict=True):
        assert (ours == theirs).all()


def test_gains_compare_what_was_chosen_on_both_sides() -> None:
    """With a step far too large, both Local and FedAvg overfit: each is shown as of its own best round.

    The gain of a client in NLL is then the difference of the two columns of the selected rounds.
    """
    data = federation((60, 40, 50), dtype=torch.float32)
    hot = Train(lr=1.0, batch_size=4, epochs=5)
    found = fedprior.compare([build("fedavg", {}, hot)], data, model={"name": "mlp", "hidden": [30]}, rounds=8)
    assert any(result.selected < 8 for result in found.values()), "somebody overfits"
    for name, result in found.items():
        scores = {
            e["round"]: e["personal"]["validation"]["nll"]["mean"]
            for e in result.journal.events
            if e["kind"] == "evaluation"
        }
        assert result.selected == min(scores, key=lambda r: (scores[r], r)), name
        rows = {r["client"]: r["nll"] for r in result.journal.rows if _is(r, result.selected)}
        assert result.clients["nll"].to_dict() == rows
    local, fedavg = found["local"], found["fedavg"]
    gains = fedavg.gain("nll").clients
    np.testing.assert_allclose(gains, local.clients["nll"] - fedavg.clients["nll"], atol=1e-6)


def _is(row: Event, selected: int) -> bool:
    return bool((row["round"], row["split"], row["model"]) == (selected, "test", "personal"))


def test_local_is_selected_too() -> None:
    """Its models are those of its own best round, not of the last: equal to a run that stops there."""
    data = federation((60, 40, 50), dtype=torch.float32)
    hot, net = Local(train=Train(lr=1.0, batch_size=4, epochs=5)), {"name": "mlp", "hidden": [30]}
    result = fedprior.run(hot, data, model=net, rounds=8, eval_every=1)
    assert result.selected < 8
    shorter = fedprior.run(hot, data, model=net, rounds=result.selected, eval_every=1, select="last")
    assert same(result.models, shorter.models)
    assert result.last is not None
    assert not same(result.models, result.last.models)


def test_a_score_must_be_lower_to_be_better() -> None:
    """Equal is not better; nan is worse than any number; without scores, the newest is kept."""
    found = Selection()
    assert found.better(math.nan)
    found.take(1, math.nan, {})
    assert not found.better(math.nan)
    assert found.better(5.0)
    found.take(2, 5.0, {})
    assert not found.better(5.0)
    assert not found.better(math.nan)
    assert not found.better(math.inf)
    assert found.better(4.999)
    assert found.better(None)


def test_a_selection_survives_a_snapshot() -> None:
    found, again = Selection(), Selection()
    assert found.snapshot() == {}
    parts = {s: [np.arange(6, dtype=np.float32).reshape(3, 2), np.empty((0, 2), np.float32)] for s in ("a", "b")}
    found.take(3, 0.1, parts)
    again.restore(found.snapshot(), ("a", "b"))
    assert (again.round, again.score) == (3, 0.1)
    assert again.predictions is not None
    for split, given in parts.items():
        for ours, theirs in zip(again.predictions[split], given, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert not again.better(0.1)
