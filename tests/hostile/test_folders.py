"""Run folders: whole or not there, also when the run was refused or killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedprior.experiment import placing
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
