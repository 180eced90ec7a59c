"""What a process leaves that was killed between two steps: the next one clears it away, and the files are the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import fedprior
from fedprior.methods import build
from fedprior.training import Train
from hostile.kills import timeless
from hostile.runs import SETTINGS, compared, data, go, stop_at


def test_the_checkpoint_before_the_newest(tmp_path: Path) -> None:
    """Killed once the manifest names the newest checkpoint, and before the former is deleted."""
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", observers=stop_at(4))
    (newest,) = (tmp_path / "cut" / "checkpoint").glob("round-*.safetensors")
    shutil.copy(newest, newest.with_name("round-00001.safetensors"))
    go(tmp_path / "cut")
    go(tmp_path / "whole")
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")


def test_all_rounds_done_with_an_older_checkpoint(tmp_path: Path) -> None:
    """The last checkpoint is the newest already, so that none is saved any more."""
    go(tmp_path / "cut")
    checkpoint = tmp_path / "cut" / "checkpoint"
    shutil.copy(checkpoint / "round-00004.safetensors", checkpoint / "round-00003.safetensors")
    (tmp_path / "cut" / "summary.json").unlink()
    go(tmp_path / "cut")
    assert [path.name for path in checkpoint.glob("round-*")] == ["round-00004.safetensors"]


@pytest.mark.parametrize("page", ["report.html", "a [b].html"])
def test_half_a_page(page: str, tmp_path: Path) -> None:
    """Killed while the page of a finished run was written: the next one that is written clears it."""
    found, left = go(tmp_path / "out"), tmp_path / "out" / f".{page}.4711.tmp"
    left.write_text("half of a fi")
    found.report(tmp_path / "out" / page)
    assert not left.exists()


def test_temporary_files_of_an_unfinished_comparison(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        compared(tmp_path / "out", baselines=False, observers=stop_at(2))
    left = [tmp_path / "out" / name for name in (".comparison.toml.4711.tmp", "fedavg/.config.toml.4711.tmp")]
    for path in left:
        path.write_text("half of a fi")
    compared(tmp_path / "out", baselines=False)
    assert not any(path.exists() for path in left)


def test_methods_with_one_training(tmp_path: Path) -> None:
    """Interrupted, the second trains by itself: only the name of who trained, and times, tell it from the first's."""
    methods = [build(name, {}, Train(epochs=1)) for name in ("fedavg", "fedavg+ft")]
    settings = SETTINGS | {"baselines": False}
    fedprior.compare(methods, data(), out=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        fedprior.compare(methods, data(), out=tmp_path / "cut", observers=stop_at(2, "fedavg+ft"), **settings)
    fedprior.compare(methods, data(), out=tmp_path / "cut", **settings)
    assert "trained_by" in (tmp_path / "whole" / "fedavg+ft" / "events.jsonl").read_text()
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
