"""Run folders: whole or not there, also when the run was refused or killed."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedprior.experiment import placing
from fedprior.experiment.journal import Observer
from fedprior.files import write_text
from hostile.runs import compared, go, refusal, stop_at


@pytest.mark.parametrize("there", [False, True], ids=["a new folder", "an empty one"])
@pytest.mark.parametrize("start", [go, compared], ids=["run", "compare"])
def test_killed_at_any_write_of_the_beginning_the_same_call_starts(
    start: Callable[..., Any], there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the k-th file is written, for every k: the folder is no run yet, or it is a whole one."""
    write, count = write_text, 0

    def dying(path: Path, content: str) -> None:
        nonlocal count
        count -= 1
        if count < 0:
            raise SystemExit  # as a kill does, it is no refusal: nothing is cleared on the way out
        write(path, content)

    more = {"reference": "local"} if start is go else {}
    for k in range(0, 20, 2):
        out = tmp_path / f"{k}"
        if there:
            out.mkdir()
        count = k
        monkeypatch.setattr(placing, "write_text", dying)
        try:
            start(out, rounds=1, **more)
        except SystemExit:
            monkeypatch.undo()
            begun = [out / name for name in ("config.toml", "comparison.toml") if (out / name).exists()]
            assert begun == []
            start(out, rounds=1, **more)
        else:
            break
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
        assert [p for p in out.rglob("*") if p.name.startswith(".")] == []
    assert k >= 2 * (1 + there)


@pytest.mark.parametrize("there", [False, True], ids=["a new folder", "an empty one"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"participation": {"rule": "bernoulli", "rate": 1e-9}},
        {"workers": 10_000},
        {"engine": "ray", "ray_address": "127.0.0.1:1"},
    ],
    ids=["rate", "workers", "ray"],
)
def test_a_refusal_leaves_no_folder(wrong: dict[str, Any], there: bool, tmp_path: Path) -> None:
    """Neither the folder nor its parents; one that was there stays, empty."""
    if "engine" in wrong:
        pytest.importorskip("ray")
    out = tmp_path / "runs" / "out"
    if there:
        out.mkdir(parents=True)
    for start in (go, compared):
        refusal(lambda start=start: start(out, **wrong))  # type: ignore[misc]
        assert list(tmp_path.rglob("*")) == ([out.parent, out] if there else [])


@pytest.mark.parametrize("there", [False, True], ids=["a new folder", "an empty one"])
@pytest.mark.parametrize("start", [go, compared], ids=["run", "compare"])
def test_a_full_disk_leaves_nothing(
    start: Callable[..., Any], there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file of the beginning it is that does not fit."""
    for k in range(4):
        out, count = tmp_path / f"{k}", k

        def full(path: Path, content: str) -> None:
            nonlocal count
            count -= 1
            if count < 0:
                raise OSError(errno.ENOSPC, "full", str(path))
            write_text(path, content)

        if there:
            out.mkdir()
        with monkeypatch.context() as patched:
            patched.setattr(placing, "write_text", full)
            try:
                start(out, rounds=1)
            except OSError:
                assert list(out.parent.glob(f"*{k}*")) == ([out] if there else [])
                assert not there or list(out.iterdir()) == []
            else:
                return
        start(out, rounds=1)


def test_a_folder_that_goes_away(tmp_path: Path) -> None:
    """The error is the first one, about the file that could not be written."""
    with pytest.raises(FileNotFoundError, match=r"\.(jsonl|csv)'$"):
        go(tmp_path / "out", observers=seen(2, lambda: shutil.rmtree(tmp_path / "out")))
    assert list(tmp_path.iterdir()) == []


def test_a_journal_that_goes_away(tmp_path: Path) -> None:
    """Its lines would be missing without a word."""
    out = tmp_path / "out"
    assert "was changed while the run was at work" in refusal(
        lambda: go(out, observers=seen(2, (out / "events.jsonl").unlink))
    )


def seen(round: int, act: Callable[[], Any]) -> Callable[[str, int], Observer]:
    """Do something after a round."""

    def observer(name: str, rounds: int) -> Observer:
        return lambda event: act() if (event["kind"], event["round"]) == ("round", round) else None

    return observer


def test_temporary_files_go_on_resume(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        go(out, observers=stop_at(3))
    left = [out / ".config.toml.7.tmp", out / "checkpoint" / ".manifest.json.7.tmp", out / "models" / ".a.7.tmp"]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    go(out)
    assert [path for path in left if path.exists()] == []
