"""A run that gets more rounds equals one that had them from the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedprior
from hostile.kills import timeless
from hostile.runs import compared, go, named, refusal, stop_at


@pytest.mark.parametrize("method", ["fedmap", "fedavg_ft", "ditto"])
@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
def test_more_rounds_equal_as_many_from_the_start(method: str, finished: bool, tmp_path: Path) -> None:
    settings = {"eval_every": 2, "checkpoint_every": 1}
    go(tmp_path / "long", method, rounds=6, reference="local", **settings)
    if finished:
        go(tmp_path / "grown", method, rounds=4, reference="local", **settings)
    else:
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "grown", method, rounds=4, reference="local", observers=stop_at(3, method), **settings)
    go(tmp_path / "grown", method, rounds=6, reference="local", **settings)
    assert timeless(tmp_path / "grown") == timeless(tmp_path / "long")
    assert "rounds is 6, not 4" in refusal(lambda: go(tmp_path / "grown", method, rounds=4, **settings))


def test_more_rounds_by_editing_the_config(tmp_path: Path) -> None:
    """Local beside the run follows; stopped in between, it goes on; where no period is given, it is that of now."""
    out, settings = tmp_path / "out", {"eval_every": 0, "checkpoint_every": 1, "reference": "local"}
    named(out, rounds=10, **settings)
    config = out / "config.toml"
    config.write_text(config.read_text().replace("rounds = 10", "rounds = 20"))
    with pytest.raises(KeyboardInterrupt):
        fedprior.resume(out, observers=stop_at(13))
    assert not (out / "summary.json").exists()
    found = fedprior.resume(out)
    assert isinstance(found, fedprior.Result)
    assert (found.summary["rounds"], found.summary["timing"]["first_round"]) == (20, 12)
    assert found.reference is not None
    assert found.reference.summary["rounds"] == 20
    judged = [e["round"] for e in found.journal.events if e["kind"] == "evaluation"]
    assert judged == [*range(1, 11), 12, 14, 16, 18, 20], "every round of 10, every second of 20"


def test_a_comparison_grows_as_a_whole(tmp_path: Path) -> None:
    compared(tmp_path / "long", rounds=4)
    compared(tmp_path / "grown", rounds=2)
    compared(tmp_path / "grown", rounds=4)
    assert timeless(tmp_path / "grown") == timeless(tmp_path / "long")


def test_a_last_round_of_all_cannot_be_undone(tmp_path: Path) -> None:
    more: dict[str, Any] = {"participation": {"rule": "bernoulli", "rate": 0.5, "last_round_all": True}}
    go(tmp_path / "out", **more)
    assert "cannot have more rounds" in refusal(lambda: go(tmp_path / "out", **(more | {"rounds": 5})))
