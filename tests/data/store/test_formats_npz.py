"""NumPy's archives: every usual layout becomes the canonical one, packed images are unpacked, pickles are refused."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.store.miniature import mini
from fedprior.data.store.formats import packed
from fedprior.data.store.importers import decode
from fedprior.data.store.record import Record
from fedprior.errors import FedpriorError

GREY = mini("mnist", shape=(1, 4, 5))
COLOUR = mini("mnist_m", shape=(3, 4, 5))
rng = np.random.default_rng(0)
X: NDArray[np.uint8] = rng.integers(0, 256, (7, 3, 4, 5), dtype=np.uint8)
Y = np.arange(7)


def read(record: Record, folder: Path, **arrays: Any) -> dict[str, NDArray[Any]]:
    np.savez(folder / "a.npz", **arrays)
    decoded = decode(record, [folder / "a.npz"])
    assert decoded.format == "npz"
    return decoded.arrays


def refusal(record: Record, folder: Path, **arrays: Any) -> str:
    with pytest.raises(FedpriorError) as error:
        read(record, folder, **arrays)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("x", [X, np.moveaxis(X, 1, -1), X / 255, (X / 255).astype(np.float32), X.astype(np.int64)])
def test_layouts_of_colour(x: NDArray[Any], tmp_path: Path) -> None:
    found = read(COLOUR, tmp_path, x_train=x, y_train=Y[:, None].astype(np.int32), x_test=x[:2], y_test=Y[:2])
    assert found["x_train"].dtype == np.uint8
    assert (found["x_train"] == X).all()
    assert found["y_train"].dtype == np.int64
    assert (found["y_train"] == Y).all()


@pytest.mark.parametrize("shape", [(7, 4, 5), (7, 1, 4, 5), (7, 4, 5, 1), (7, 20)])
def test_layouts_of_grey(shape: tuple[int, ...], tmp_path: Path) -> None:
    found = read(GREY, tmp_path, x=X[:, 0].reshape(shape), y=Y)
    assert (found["x"] == X[:, :1]).all()


def test_a_square_image_with_as_many_channels_is_taken_as_it_is(tmp_path: Path) -> None:
    x = X[:, :, :3, :3]
    assert (read(mini("mnist_m", shape=(3, 3, 3)), tmp_path, x=x, y=Y)["x"] == x).all()


def test_columns_by_name_and_by_code(tmp_path: Path) -> None:
    record = mini("office_caltech", shape=(3, 4, 5))
    names = np.array(["amazon", "webcam"])
    codes = np.array([0, 1, 1, 0, 0, 1, 0], np.uint8)
    coded = read(record, tmp_path, x=X, y=Y, domain=codes, domains=names, filename=names)
    named = read(record, tmp_path, x=X, y=Y, domain=names[codes])
    bytes_ = read(record, tmp_path, x=X, y=Y, domain=names[codes].astype("S"))
    for found in (coded, named, bytes_):
        assert found["domain"].tolist() == names[codes].tolist()
        assert set(found) == {"x", "y", "domain"}


def test_writers_of_both_splits(tmp_path: Path) -> None:
    record = mini("femnist", shape=(1, 4, 5))
    codes = np.array([0, 1, 1, 0, 1], np.uint16)
    found = read(
        record,
        tmp_path,
        x_train=X[:5, 0],
        y_train=Y[:5],
        writer_train=codes,
        x_test=X[5:, 0],
        y_test=Y[5:],
        writer_test=codes[:2],
        writer_names=np.array(["f1", "f22"]),
    )
    assert found["writer_train"].tolist() == ["f1", "f22", "f22", "f1", "f22"]
    assert found["writer_test"].tolist() == ["f1", "f22"]


@pytest.mark.parametrize("how", ["map", "column"])
def test_superclasses(how: str, tmp_path: Path) -> None:
    to_coarse = np.arange(100, dtype=np.uint8)[::-1] // 5
    coarse = {"fine_to_coarse": to_coarse} if how == "map" else {"coarse": to_coarse[Y]}
    found = read(mini("cifar100", shape=(3, 4, 5)), tmp_path, x=X, y=Y, **coarse)
    assert (found["coarse"] == to_coarse[Y]).all()
    assert found["coarse"].dtype == np.int64


def pack(x: NDArray[np.uint8], block: int) -> NDArray[np.uint8]:
    """The packer, pixel by pixel: the definition in `packed`."""
    n, height, width, _ = x.shape
    red, green, blue = (x[..., k].astype(int) for k in range(3))
    planes = np.stack([green, red - green, blue - green]) % 256
    out = b""
    for first in range(0, n, block):
        part = planes[:, first : first + block]
        residual = part.copy()
        for i in range(height):
            for j in range(width):
                if i and j:
                    a, b, c = part[:, :, i, j - 1], part[:, :, i - 1, j], part[:, :, i - 1, j - 1]
                    residual[:, :, i, j] -= np.median([a, b, a + b - c], axis=0).astype(int)
                elif i or j:
                    residual[:, :, i, j] -= part[:, :, i, j - 1] if j else part[:, :, i - 1, j]
        body = zlib.compress((residual % 256).astype(np.uint8).tobytes())
        out += len(body).to_bytes(8, "little") + body
    return np.frombuffer(out, np.uint8)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32))
def test_packed_round_trip(n: int, height: int, width: int, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)
    assert (packed.unpack(pack(x, packed.BLOCK), x.shape) == x).all()


def test_packed_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "BLOCK", 3)
    last = np.moveaxis(X, 1, -1)
    found = read(COLOUR, tmp_path, x__packed=pack(last, 3), x__shape=np.array(last.shape), y=Y)
    assert (found["x"] == X).all()


def test_packed_with_a_wrong_shape(tmp_path: Path) -> None:
    last = np.moveaxis(X, 1, -1)
    shape = np.array([7, 4, 6, 3])
    assert "do not have the stated shape" in refusal(COLOUR, tmp_path, x__packed=pack(last, 5000), x__shape=shape, y=Y)
    damaged = pack(last, 5000).copy()
    damaged[20:30] ^= 255
    assert "damaged" in refusal(COLOUR, tmp_path, x__packed=damaged, x__shape=np.array(last.shape), y=Y)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    assert "without unpickling" in refusal(GREY, tmp_path, x=np.array([{}, {}], dtype=object), y=Y[:2])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": X}, "no array 'y'"),
        ({"x_train": X, "y_train": Y}, "no array 'x_test'"),
        ({"x": X / 100, "y": Y}, "floats outside 0 to 1"),
        ({"x": X / 255 - 0.1, "y": Y}, "floats outside 0 to 1"),
        ({"x": np.full((7, 3, 4, 5), np.nan), "y": Y}, "floats outside 0 to 1"),
        ({"x": X.astype(int) + 100, "y": Y}, "outside 0 to 255"),
        ({"x": X.astype(int) - 1, "y": Y}, "outside 0 to 255"),
        ({"x": X, "y": Y + 0.5}, "labels are of type float64"),
        ({"x": X, "y": Y + 4}, "y runs from 4 to 10, where there are 10 classes"),
        ({"x": X, "y": Y - 1}, "y runs from -1 to 5"),
        ({"x": X[:5], "y": Y}, "x has 5 rows but there are 7 labels"),
        ({"x": X[:, :2], "y": Y}, "x is uint8, [2, 4, 5] per example, where uint8, [3, 4, 5] is expected"),
        ({"x": X[:0], "y": Y[:0]}, "not a list of classes"),
    ],
)
def test_what_is_wrong_is_said(arrays: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert words in refusal(COLOUR, tmp_path, **arrays)
