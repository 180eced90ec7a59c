"""Checkpoints: what is damaged is refused in one sentence, and nothing is changed by the attempt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedprior
from fedprior import tree
from fedprior.engine import Engine
from fedprior.errors import FedpriorError
from fedprior.experiment import checkpoint
from fedprior.experiment.checkpoint import Saver
from fedprior.experiment.config import Settings
from fedprior.experiment.journal import Event
from fedprior.experiment.loop import execute
from fedprior.methods import build
from support import CLASSES, HALF, bound, federation, same

SETTINGS = Settings(rounds=5, seed=3, participation=HALF, checkpoint_every=1, eval_every=1)
DATA = federation(dtype=torch.float32)
NAME = "round-00003.safetensors"


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its content and the time it was last written."""
    return {
        str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def go(folder: Path, *, data: Any = DATA, resume: bool = False, observe: Any = None) -> Any:
    return execute(
        bound("fedmap", data), data, SETTINGS, model={"name": "custom"}, folder=folder, resume=resume, observe=observe
    )


def interrupt(event: Event) -> None:
    """In round 4, so that the newest checkpoint is of 3 rounds."""
    if event["kind"] == "round" and event["round"] == 4:
        raise KeyboardInterrupt


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The folder of a run that was interrupted after its third checkpoint."""
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, observe=interrupt)
    assert (tmp_path / "checkpoint" / NAME).exists()
    return tmp_path


def truncated(folder: Path) -> None:
    (folder / NAME).write_bytes((folder / NAME).read_bytes()[:-20])


def emptied(folder: Path) -> None:
    (folder / NAME).write_bytes(b"")


def flipped(folder: Path) -> None:
    content = bytearray((folder / NAME).read_bytes())
    content[-100] ^= 1
    (folder / NAME).write_bytes(bytes(content))


def header_flipped(folder: Path) -> None:
    content = bytearray((folder / NAME).read_bytes())
    content[3] ^= 64
    (folder / NAME).write_bytes(bytes(content))


def missing(folder: Path) -> None:
    (folder / NAME).unlink()


def manifest(content: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "manifest.json").write_text(content)

    return damage


def manifest_with(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        truncated,
        emptied,
        flipped,
        header_flipped,
        missing,
        *(
            pytest.param(manifest(text), id=f"manifest {text!r}")
            for text in ("", "garbage", '{"round": 3, "file": "round-0000', "[1, 2]", '"text"', "{}", '{"round": 3}')
        ),
        *(
            pytest.param(manifest_with(**{key: value}), id=f"manifest {key}={value}")
            for key, value in (
                ("extra", 1),
                ("format", 99),
                ("file", "round-00002.safetensors"),
                ("file", 7),
                ("round", "three"),
                ("federation", "other"),
            )
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused(damage: Callable[[Path], None], stopped: Path) -> None:
    damage(stopped / "checkpoint")
    before = snapshot(stopped)
    with pytest.raises(FedpriorError) as error:
        go(stopped, resume=True)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")
    assert str(stopped) in str(error.value)
    assert snapshot(stopped) == before


def test_a_manifest_that_is_no_text_is_refused(stopped: Path) -> None:
    (stopped / "checkpoint" / "manifest.json").write_bytes(b"\xff\x00\xfe")
    before = snapshot(stopped)
    with pytest.raises(FedpriorError, match="damaged"):
        go(stopped, resume=True)
    assert snapshot(stopped) == before


def test_other_data_are_refused(stopped: Path) -> None:
    """One label of one client is another: the fingerprint differs."""
    other = federation(dtype=torch.float32)
    other.test.y[3] = (other.test.y[3] + 1) % CLASSES
    before = snapshot(stopped)
    with pytest.raises(FedpriorError, match="data differ") as error:
        go(stopped, data=other, resume=True)
    assert "\n" not in str(error.value)
    assert snapshot(stopped) == before


def test_the_undamaged_checkpoint_resumes(stopped: Path) -> None:
    """What the tests above damage is good before they do."""
    assert go(stopped, resume=True).summary["timing"]["first_round"] == 3


def test_without_a_checkpoint_a_run_starts_over(tmp_path: Path) -> None:
    assert go(tmp_path, resume=True).summary["timing"]["first_round"] == 0


@pytest.mark.parametrize("after", [4, 7])
def test_a_fit_to_sums_goes_on_to_the_last_bit(after: int, tmp_path: Path) -> None:
    """Its server multiplies matrices of double precision, which shows where the restored ones lie in memory."""
    data = fedprior.data.load("synthetic", clients=4)
    method = build("mixed")

    def stop(event: Event) -> None:
        if (event["kind"], event["round"]) == ("round", after):
            raise KeyboardInterrupt

    settings: dict[str, Any] = {"rounds": 12, "chunk": 2, "workers": 1, "checkpoint_every": 1, "eval_every": 3}
    whole, cut = (tmp_path / name for name in ("whole", "cut"))
    fedprior.run(method, data, out=whole, **settings)
    with pytest.raises(KeyboardInterrupt):
        fedprior.run(method, data, out=cut, observe=stop, **settings)
    fedprior.run(method, data, out=cut, **settings)
    for name in ("prior.safetensors", "logs.csv", "clients.csv"):
        assert (cut / name).read_bytes() == (whole / name).read_bytes(), name


def test_only_the_newest_checkpoint_is_kept(tmp_path: Path) -> None:
    """In round k+1 there is the checkpoint of round k and no other; at the end, that of the last round."""
    found: list[list[str]] = []

    def look(event: Event) -> None:
        if event["kind"] == "round":
            found.append(sorted(p.name for p in (tmp_path / "checkpoint").glob("*")))

    go(tmp_path, observe=look)
    assert found == [[], *(["manifest.json", f"round-0000{k}.safetensors"] for k in (1, 2, 3, 4))]
    assert sorted(p.name for p in (tmp_path / "checkpoint").glob("*")) == ["manifest.json", "round-00005.safetensors"]


def restored(folder: Path, engine: Engine) -> int:
    """Puts the newest checkpoint into an engine; the rounds that it covers."""
    found = Saver(folder, "data").read()
    assert found is not None
    engine.restore(found[1])
    return found[0]


def test_save_and_restore_are_inverse(tmp_path: Path) -> None:
    """Server, states and who has joined, bit for bit, into a fresh engine."""
    method = bound("fedmap", DATA)
    with Engine(method, DATA, 3) as one, Engine(method, DATA, 3) as two:
        one.round(0, [0, 2, 5], [0, 2])
        saver = Saver(tmp_path, "data")
        assert saver.read() is None
        saver.save(1, one.snapshot())
        assert not same(one.server, two.server)
        assert restored(tmp_path, two) == 1
        assert same(one.server, two.server)
        assert same(one.memory.states, two.memory.states)
        assert two.memory.joined.tolist() == [True, False, True, False, False, True, False]
        assert type(two.server) is type(one.server)
        assert two.kept is None


def test_selected_models_and_logs_are_restored(tmp_path: Path) -> None:
    """Those that were kept, not those of a later evaluation; and when each client was last updated."""
    method = bound("fedmap", DATA)
    with Engine(method, DATA, 3) as one, Engine(method, DATA, 3) as two:
        one.round(0, [0, 2, 5], [0, 2])
        one.evaluate(1, ("test",))
        one.keep()
        one.round(1, [1, 2], [1, 2])
        one.evaluate(2, ("test",))
        Saver(tmp_path, "data").save(2, one.snapshot())
        restored(tmp_path, two)
        assert same(two.kept, one.kept)
        assert not same(two.kept, one.memory.personal)
        assert two.updated.tolist() == [1, 2, 2, 0, 0, 1, 0]
        assert two.logs.keys() == one.logs.keys() >= {"loss", "log_omega"}
        assert all(np.array_equal(two.logs[k], one.logs[k], equal_nan=True) for k in one.logs)


@pytest.mark.parametrize("broken", ["write_bytes", "write_text"])
def test_killed_while_saving_the_checkpoint_before_is_whole(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the tensors or only the manifest were not written: the run goes back to the checkpoint before."""

    def die(path: Path, content: Any) -> None:
        raise KeyboardInterrupt

    method = bound("fedmap", DATA)
    with Engine(method, DATA, 3) as one, Engine(method, DATA, 3) as two:
        saver = Saver(tmp_path, "data")
        one.round(0, one.everyone, one.everyone)
        saver.save(1, one.snapshot())
        server = tree.clone(one.server)
        one.round(1, one.everyone, one.everyone)
        monkeypatch.setattr(checkpoint, broken, die)
        with pytest.raises(KeyboardInterrupt):
            saver.save(2, one.snapshot())
        monkeypatch.undo()
        assert restored(tmp_path, two) == 1
        assert same(two.server, server)
        saver.save(2, one.snapshot())
        assert sorted(p.name for p in tmp_path.iterdir()) == ["manifest.json", "round-00002.safetensors"]
