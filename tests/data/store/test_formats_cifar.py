"""CIFAR: Python archives (read, never run), binary archives and PNG sheets give the same arrays."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data.store.miniature import mini, picture, tar, write
from fedprior.data.store.formats import pickled
from fedprior.data.store.importers import decode
from fedprior.data.store.record import Record
from fedprior.errors import FedpriorError

SHAPE = (3, 2, 4)
TEN = mini("cifar10", shape=SHAPE, counts={"train": 6, "test": 3})
HUNDRED = mini("cifar100", shape=SHAPE, counts={"train": 6, "test": 3})

rng = np.random.default_rng(0)
X: NDArray[np.uint8] = rng.integers(0, 256, (9, 24), dtype=np.uint8)
FINE, COARSE = rng.integers(0, 10, 9), rng.integers(0, 20, 9)
BATCHES = {"data_batch_1": range(4), "data_batch_2": range(4, 6), "test_batch": range(6, 9)}
LABELS = ("training batch 1 of 2", "training batch 2 of 2", "testing batch 1 of 1")


def python2(batch: dict[str, Any]) -> bytes:
    """A pickle as Python 2 wrote it: protocol 2, texts and the array's bytes as `str`, NumPy's old module names."""

    def text(value: bytes) -> bytes:
        return b"T" + len(value).to_bytes(4, "little") + value

    def number(n: int) -> bytes:
        return b"J" + n.to_bytes(4, "little", signed=True)

    def item(value: Any) -> bytes:
        if isinstance(value, np.ndarray):
            shape = b"(" + b"".join(number(n) for n in value.shape) + b"t"
            dtype = b"cnumpy\ndtype\n(" + text(b"u1") + number(0) + number(1) + b"tR"
            dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) * 2 + number(0) + b"tb"
            head = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(" + number(0) + b"t" + text(b"b") + b"tR"
            return head + b"(" + number(1) + shape + dtype + b"\x89" + text(value.tobytes()) + b"tb"
        if isinstance(value, list):
            return b"](" + b"".join(item(v) for v in value) + b"e"
        return number(value) if isinstance(value, int) else text(value.encode())

    return b"\x80\x02}(" + b"".join(text(k.encode()) + item(v) for k, v in batch.items()) + b"u."


def batches(record: Record, dump: Any) -> dict[str, bytes]:
    """The files of a Python archive, last one first: the order of the members must not matter."""
    files = {"readme.html": b"<html>", "batches.meta": dump({"label_names": ["airplane"]})}
    for (name, span), label in reversed(list(zip(BATCHES.items(), LABELS, strict=True))):
        rows = list(span)
        fine, coarse = FINE[rows].tolist(), COARSE[rows].tolist()
        labels = {"labels": fine} if record is TEN else {"fine_labels": fine, "coarse_labels": coarse}
        files[name] = dump({"batch_label": label, "data": X[rows], "filenames": ["a.png"] * len(rows), **labels})
    return files


def check(arrays: dict[str, NDArray[Any]], record: Record) -> None:
    for split, rows in (("train", slice(6)), ("test", slice(6, 9))):
        assert (arrays[f"x_{split}"] == X[rows].reshape(-1, *SHAPE)).all()
        assert (arrays[f"y_{split}"] == FINE[rows]).all()
        if record is HUNDRED:
            assert (arrays[f"coarse_{split}"] == COARSE[rows]).all()


DUMPS = [python2, *(lambda value, p=p: pickle.dumps(value, protocol=p) for p in range(2, 6))]


@pytest.mark.parametrize("dump", DUMPS, ids=["python2", "2", "3", "4", "5"])
@pytest.mark.parametrize("record", [TEN, HUNDRED], ids=["10", "100"])
def test_python_archives_of_every_protocol(record: Record, dump: Any, tmp_path: Path) -> None:
    paths = write(tmp_path, {"archive": tar(batches(record, dump))})
    decoded = decode(record, paths)
    assert decoded.format == "cifar-python"
    check(decoded.arrays, record)


def test_an_unpacked_folder(tmp_path: Path) -> None:
    write(tmp_path / "cifar", batches(TEN, python2))
    check(decode(TEN, [tmp_path / "cifar"]).arrays, TEN)


def test_fortran_order(tmp_path: Path) -> None:
    files = batches(
        TEN, lambda value: pickle.dumps({k: np.asfortranarray(v) if k == "data" else v for k, v in value.items()})
    )
    check(decode(TEN, write(tmp_path, files)).arrays, TEN)


class Malicious:
    """Would leave a file behind if it were unpickled the usual way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_malicious_pickle_is_refused_and_not_run(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    content = pickle.dumps({"data": Malicious(mark), "labels": [1]}, protocol=protocol)
    pickle.loads(content)
    assert mark.exists()  # the pickle does work
    mark.rmdir()
    with pytest.raises(FedpriorError, match=r"'data_batch_1'.*asks for '(posix|nt)\.mkdir', which is refused"):
        decode(TEN, write(tmp_path / "in", {"data_batch_1": content}))
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cbuiltins\neval\n(X\x05\x00\x00\x001 + 1tR.",
        b"\x80\x02cnumpy\nload\n(X\x01\x00\x00\x00atR.",
        b"\x80\x02cnumpy.core.multiarray\nscalar\n)R.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",
        b"\x80\x02(ios\nsystem\nX\x02\x00\x00\x00lst.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02X\x01\x00\x00\x00aQ.",
    ],
    ids=["eval", "numpy.load", "scalar", "stack global", "inst", "extension", "persistent"],
)
def test_every_way_to_a_function_is_closed(content: bytes) -> None:
    with pytest.raises(FedpriorError, match=r"refused|damaged"):
        pickled.read(content)


@pytest.mark.parametrize("dtype", [np.float32, object, np.int16])
def test_arrays_of_anything_but_bytes_are_refused(dtype: Any) -> None:
    with pytest.raises(FedpriorError, match="something other than bytes"):
        pickled.read(pickle.dumps(np.zeros(3, dtype))).array()


def test_stand_ins_are_all_that_a_pickle_gets() -> None:
    found = pickled.read(pickle.dumps(np.zeros(3, np.uint8), protocol=2))
    assert type(found) is pickled.PickledArray
    with pytest.raises(FedpriorError, match="without its bytes"):
        pickled.PickledArray(["no", "bytes"], pickled.PickledType("u1"), (2,)).array()


def test_a_damaged_pickle(tmp_path: Path) -> None:
    content = batches(TEN, python2)["data_batch_1"]
    for end in (2, 50, len(content) - 1):
        with pytest.raises(FedpriorError, match="damaged or truncated pickle"):
            decode(TEN, write(tmp_path, {"data_batch_1": content[:end]}))


def test_the_other_cifar(tmp_path: Path) -> None:
    with pytest.raises(FedpriorError, match="no labels of cifar100"):
        decode(HUNDRED, write(tmp_path, batches(TEN, python2)))


@pytest.mark.parametrize("record", [TEN, HUNDRED], ids=["10", "100"])
def test_binary(record: Record, tmp_path: Path) -> None:
    leading = [FINE] if record is TEN else [COARSE, FINE]
    rows = np.column_stack([*leading, X]).astype(np.uint8)
    files = {f"{name}.bin": rows[list(span)].tobytes() for name, span in reversed(BATCHES.items())}
    decoded = decode(record, write(tmp_path, {"a": tar(files | {"batches.meta.txt": b"airplane\n"})}))
    assert decoded.format == "cifar-binary"
    check(decoded.arrays, record)


def test_rows_with_impossible_labels_are_not_binary(tmp_path: Path) -> None:
    with pytest.raises(FedpriorError, match="none of the files can be read as cifar10"):
        decode(TEN, write(tmp_path, {"noise": bytes([200]) + bytes(24)}))


def sheets() -> dict[str, bytes]:
    planes = X.reshape(-1, 3, 8).transpose(0, 2, 1)  # [n, pixels, channels]
    files = {f"{name}.png": picture(planes[list(rows)]) for name, rows in reversed(BATCHES.items())}
    lists = {"train_lables.json": FINE[:6], "test_lables.json": FINE[6:]}
    return files | {name: json.dumps(y.tolist()).encode() for name, y in lists.items()}


def test_sheets(tmp_path: Path) -> None:
    extra = {"package.json": b'{"name": "x"}', "words.json": b'["a"]', "README.md": b"[a link](x)"}
    decoded = decode(TEN, write(tmp_path, {"package.tgz": tar(extra | sheets())}))
    assert decoded.format == "sheets"
    check(decoded.arrays, TEN)


def test_sheets_without_labels(tmp_path: Path) -> None:
    files = sheets()
    del files["train_lables.json"]
    with pytest.raises(FedpriorError, match="no list of labels for the 6 train pictures"):
        decode(TEN, write(tmp_path, files))


def test_a_picture_that_is_no_sheet(tmp_path: Path) -> None:
    with pytest.raises(FedpriorError, match="rows of 5 pixels"):
        decode(TEN, write(tmp_path, {"cat.png": picture(np.zeros((2, 5, 3), np.uint8))}))


def test_no_test_data(tmp_path: Path) -> None:
    files = {name: content for name, content in batches(TEN, python2).items() if name != "test_batch"}
    with pytest.raises(FedpriorError, match="no test data among the files"):
        decode(TEN, write(tmp_path, files))
