"""Methods of a comparison that differ only in how a personal model is made train once, and are what they are alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fedprior
from fedprior.engine import AnyMethod
from fedprior.experiment import track as tracks
from fedprior.files import read_tensors
from fedprior.methods import build
from fedprior.protocol import METHODS
from fedprior.training import Train
from support import HALF, federation

NAMES = ("fedavg_ft", "fedavg", "fedavg+ft", "fedprox")
TIMED = ("seconds", "trained_by", "trained_seconds")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rounds in which a method trained: its class, per call."""
    found: list[str] = []

    def watched(cls: Any, name: str) -> None:
        plain = cls.local_update

        def counted(self: AnyMethod, *given: Any) -> Any:
            found.append(name)
            return plain(self, *given)

        monkeypatch.setattr(cls, "local_update", counted)

    for name in ("fedavg", "fedavg_ft", "fedprox"):
        watched(METHODS[name], name)
    return found


OPTIONS: dict[str, Any] = {
    "eval_every": 2,
    "checkpoint_every": 3,
    "workers": 1,
    "participation": HALF,
    "chunk": len(federation()),
    "model": "softmax",
}


def compare(out: Path, names: tuple[str, ...] = NAMES, rounds: int = 6, observers: Any = None) -> Any:
    methods, settings = [build(name) for name in names], {**OPTIONS, "rounds": rounds, "observers": observers}
    return fedprior.compare(methods, federation(), out=out, baselines=False, **settings)


def alone(name: str, out: Path) -> None:
    fedprior.run(build(name), federation(), out=out, rounds=6, **OPTIONS)


def plain(value: Any) -> Any:
    """Without times, and without what says whose training it was."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in (*TIMED, "sha256", "journals", "timing")}
    return [plain(v) for v in value] if isinstance(value, list) else value


def same_folders(one: Path, other: Path) -> None:
    """Every file but for times; checksums of what tells times differ with them."""
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    for path in files:
        a, b = one / path, other / path
        if path.suffix == ".jsonl":
            lines = [[plain(json.loads(line)) for line in f.read_text().splitlines()] for f in (a, b)]
            assert lines[0] == lines[1]
        elif path.name == "summary.json":
            found = [json.loads(f.read_text()) for f in (a, b)]
            for each in found:
                each.pop("files", None)
            assert plain(found[0]) == plain(found[1])
        elif path.name == "manifest.json":
            assert plain(json.loads(a.read_text())) == plain(json.loads(b.read_text()))
        elif path.suffix == ".safetensors":
            for key, value in read_tensors(a)[0].items():
                assert torch.equal(value, read_tensors(b)[0][key]), (path, key)
        else:
            assert a.read_bytes() == b.read_bytes(), path


def test_one_training_serves_three_methods(tmp_path: Path, trained: list[str]) -> None:
    """FedAvg-FT trains; FedAvg and FedAvg+FT follow; FedProx has its own. Folders are those of separate runs.

    A rehearsal by the engine is one call for each of the four runs; six rounds are six more for those that train.
    """
    found = compare(tmp_path / "together")
    assert {name: trained.count(name) for name in trained} == {"fedavg_ft": 7, "fedavg": 2, "fedprox": 7}
    for name in NAMES:
        alone(name, tmp_path / "alone" / name)
        same_folders(tmp_path / "together" / name, tmp_path / "alone" / name)
    timing = {name: result.summary["timing"] for name, result in found.items()}
    assert [timing[name].get("trained_by") for name in NAMES] == [None, "fedavg_ft", "fedavg_ft", None]
    rounds = [e["seconds"] for e in found["fedavg_ft"].journal.events if e["kind"] == "round"]
    assert timing["fedavg"]["trained_seconds"] == pytest.approx(sum(rounds))
    assert timing["fedavg"]["seconds"] > timing["fedavg"]["trained_seconds"]


@pytest.mark.parametrize("killed", ["fedavg_ft", "fedavg"])
@pytest.mark.parametrize("after", [1, 4, 6])
def test_an_interrupted_comparison_continues(tmp_path: Path, killed: str, after: int) -> None:
    """Killed while the first one trains, or while the second one follows: the same folders in the end."""

    def observers(name: str, rounds: int) -> Any:
        def observe(event: dict[str, Any]) -> None:
            if (name, event["kind"], event["round"]) == (killed, "round", after):
                raise KeyboardInterrupt

        return observe

    names = ("fedavg_ft", "fedavg")
    with pytest.raises(KeyboardInterrupt):
        compare(tmp_path / "killed", names, observers=observers)
    compare(tmp_path / "killed", names)
    for name in names:
        alone(name, tmp_path / "alone" / name)
        same_folders(tmp_path / "killed" / name, tmp_path / "alone" / name)


def test_more_rounds_are_shared_too(tmp_path: Path, trained: list[str]) -> None:
    """From 4 rounds to 8: the first trains four more, and the second follows these."""
    names = ("fedavg_ft", "fedavg")
    compare(tmp_path / "more", names, rounds=4)
    trained.clear()
    found = compare(tmp_path / "more", names, rounds=8)
    assert {name: trained.count(name) for name in trained} == {"fedavg_ft": 5, "fedavg": 1}
    assert found["fedavg"].summary["timing"]["trained_by"] == "fedavg_ft"


def test_what_differs_in_training_is_not_shared() -> None:
    """Another learning rate, or other options of training."""
    a, b = build("fedavg"), build("fedavg_ft", train=Train(lr=0.3))
    found = fedprior.compare([a, b], federation(), model="softmax", baselines=False, rounds=2, workers=1)
    assert all("trained_by" not in result.summary["timing"] for result in found.values())


def test_a_track_that_needs_too_much_memory_is_given_up(
    tmp_path: Path, trained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then every method trains, with the same result."""
    monkeypatch.setattr(tracks, "MOST", 100)
    compare(tmp_path / "together", ("fedavg_ft", "fedavg"))
    monkeypatch.setattr(tracks, "MOST", 2**28)
    assert trained.count("fedavg") > 6
    alone("fedavg", tmp_path / "alone")
    same_folders(tmp_path / "together" / "fedavg", tmp_path / "alone")
