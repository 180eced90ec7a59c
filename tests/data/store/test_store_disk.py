"""What is stored survives damage, a full disk and interruptions, or one sentence says that it did not."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.store.miniature import FILES, FIRST, Server, refusal, use, whole, write
from fedprior.data import store
from fedprior.data.store import RECORDS

# Damage


def test_not_stored(data: Path) -> None:
    assert refusal(store.load, "mnist") == f"mnist is not stored in '{data}': get it with `fedprior data fetch mnist`."


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "cut short": lambda folder: os.truncate(folder / "x_train.npy", 200),
    "empty": lambda folder: os.truncate(folder / "x_train.npy", 0),
    "one bit": lambda folder: flip(folder / "y_test.npy"),
    "missing array": lambda folder: (folder / "x_test.npy").unlink(),
    "other array": lambda folder: shutil.copy(folder / "x_test.npy", folder / "x_train.npy"),
    "no manifest": lambda folder: (folder / "manifest.json").write_text(""),
    "half a manifest": lambda folder: os.truncate(folder / "manifest.json", 100),
    "other manifest": lambda folder: (folder / "manifest.json").write_text('{"arrays": []}'),
    "no arrays": lambda folder: _changed(folder / "manifest.json", arrays={}),
    "no counts": lambda folder: _changed(folder / "manifest.json", examples=None),
    "other counts": lambda folder: _changed(folder / "manifest.json", examples={"train": 5}),
    "later version": lambda folder: _changed(folder / "manifest.json", version=2),
    "pickle": lambda folder: np.save(folder / "x_train.npy", np.array([{}], dtype=object)),
}


def _changed(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_damage_is_noticed_and_mended(
    damage: Any, imported: list[Path], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(data / "mnist")
    assert "get it again with `fedprior data import mnist FILE... --force`" in refusal(store.load, "mnist")
    with Server(dict(FILES)) as server:
        use(monkeypatch, server.source())
        assert "get it again with `fedprior data fetch mnist --force`" in refusal(store.load, "mnist")
        store.fetch("mnist")  # even without force: there is nothing to lose
    whole()


def test_status(imported: list[Path], data: Path) -> None:
    found = store.status("mnist")
    assert (found.state, found.fetchable, found.examples) == ("stored", False, {"train": 6, "test": 4})
    assert found.bytes == sum(p.stat().st_size for p in (data / "mnist").glob("*.npy"))
    assert found.source.startswith("import of")
    os.truncate(data / "mnist" / "x_train.npy", 200)
    assert store.status("mnist").state == "damaged"
    (data / "mnist" / "x_train.npy").unlink()
    assert store.status("mnist").state == "damaged"
    (data / "mnist" / "manifest.json").write_text("?")
    assert store.status("mnist").state == "damaged"
    assert store.status("cifar10").state == "absent"


def test_listing(imported: list[Path]) -> None:
    listing = store.listing()
    assert [entry.name for entry in listing] == sorted(RECORDS)
    assert [entry.name for entry in listing if entry.state == "stored"] == ["mnist"]


# The disk


def disk_error(monkeypatch: pytest.MonkeyPatch, suffix: str, number: int) -> None:
    """Writing to files with this suffix fails, as on a full disk, once half of the bytes are written."""
    opened = Path.open

    def failing(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = opened(self, mode, *args, **kwargs)
        return _Full(file, number) if self.suffix == suffix and mode in ("wb", "ab") else file

    monkeypatch.setattr(Path, "open", failing)


class _Full:
    def __init__(self, file: Any, number: int) -> None:
        self.file, self.number = file, number

    def __enter__(self) -> _Full:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, content: Any) -> None:
        self.file.write(bytes(content)[: len(bytes(content)) // 2])
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("suffix", [".part", ".npy"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk(
    suffix: str, number: int, imported: list[Path], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was stored stays; what was downloaded is kept, and serves when there is room again."""
    with Server(dict(FILES)) as server:
        use(monkeypatch, server.source())
        with monkeypatch.context() as patch:
            disk_error(patch, suffix, number)
            assert f"the disk of '{data}' is full" in refusal(store.fetch, "mnist", force=True)
        whole()
        kept = {p.name for p in (data / ".part" / "mnist").iterdir()}
        assert kept == ({*FILES} if suffix == ".npy" else {f"{FIRST}.part", f"{FIRST}.part.json"})
        asked = len(server.asked)
        rest = [f"bytes={part.stat().st_size}-" for part in (data / ".part" / "mnist").glob("*.part")]
        store.fetch("mnist", force=True)
        assert [span for _, span in server.asked[asked:]] == ([] if suffix == ".npy" else [*rest, None, None, None])
    whole()


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDPRIOR_DATA", str(tmp_path / "file"))
    paths = write(tmp_path / "mine", FILES)
    use(monkeypatch)
    text = refusal(store.import_files, "mnist", paths)
    assert text.startswith("FEDPRIOR_DATA is ")
    assert "which is a file: set it to a folder" in text


def test_files_can_be_read_by_others(imported: list[Path], data: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    for path in (data / "mnist").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("after", [1, 2])
def test_an_interrupted_replacement_loses_nothing(
    after: int, imported: list[Path], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the first or the second rename."""
    rename, count = Path.rename, 0

    def interrupted(self: Path, target: Path) -> Path:
        nonlocal count
        moved = rename(self, target)
        count += 1
        if count == after:
            raise KeyboardInterrupt
        return moved

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.import_files("mnist", imported, force=True)
    whole()


def test_a_kill_between_the_two_renames_is_mended_by_the_next_command(imported: list[Path], data: Path) -> None:
    (data / ".part" / "mnist").mkdir()
    (data / "mnist").rename(data / ".part" / "mnist" / "old")
    assert store.status("mnist").state == "absent"
    assert "already stored" in refusal(store.import_files, "mnist", imported)
    whole()
