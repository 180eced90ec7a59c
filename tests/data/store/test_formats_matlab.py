"""MATLAB's files: two of them make SVHN or SynthDigits, whatever their names."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from numpy.typing import NDArray

from data.store.miniature import mini, tar, write
from fedprior.data.store.importers import decode
from fedprior.errors import FedpriorError

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (9, 3, 4, 5), dtype=np.uint8)  # [n, channels, height, width]
Y = np.array([0, 1, 9, 0, 4, 5, 6, 7, 0])


def mat(x: NDArray[Any], y: NDArray[Any], **more: Any) -> bytes:
    """As SVHN's: [height, width, channels, n], and labels as a column."""
    file = io.BytesIO()
    scipy.io.savemat(file, {"X": x.transpose(2, 3, 1, 0), "y": y[:, None], **more}, do_compression=True)
    return file.getvalue()


def files(labels: NDArray[Any]) -> dict[str, bytes]:
    return {"a.mat": mat(X[6:], labels[6:]), "b.mat": mat(X[:6], labels[:6], license="free")}


@pytest.mark.parametrize("name", ["svhn", "synth_digits"])
@pytest.mark.parametrize("kind", ["from one", "floats", "archive"])
def test_two_files(name: str, kind: str, tmp_path: Path) -> None:
    """SVHN calls the digit zero 10; labels may be floats, as MATLAB's numbers are; the larger file is for training."""
    labels = {"from one": np.where(Y == 0, 10, Y).astype(np.uint8), "floats": Y.astype(float)}.get(kind, Y)
    paths = write(tmp_path, {"all.tgz": tar(files(labels))} if kind == "archive" else files(labels))
    decoded = decode(mini(name, shape=(3, 4, 5)), paths)
    assert decoded.format == "matlab"
    assert (decoded.arrays["x_train"] == X[:6]).all()
    assert (decoded.arrays["x_test"] == X[6:]).all()
    assert decoded.arrays["y_train"].tolist() == Y[:6].tolist()
    assert decoded.arrays["y_test"].tolist() == Y[6:].tolist()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a.mat": mat(X, Y)[:-40]}, "'a.mat' is damaged or not what it seems"),
        ({"a.mat": mat(X, Y + 0.5)}, "'a.mat' cannot be imported: the labels are of type float64"),
        ({"a.mat": mat(X, Y)}, "1 sets of examples"),
        ({n: mat(X[:k], Y[:k]) for n, k in (("a", 2), ("b", 3), ("extra", 4))}, "3 sets of examples"),
    ],
    ids=["cut", "no whole numbers", "one file", "three files"],
)
def test_what_is_refused(content: dict[str, bytes], words: str, tmp_path: Path) -> None:
    with pytest.raises(FedpriorError, match=words):
        decode(mini("svhn", shape=(3, 4, 5)), write(tmp_path, content))


def test_other_variables_are_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    scipy.io.savemat(file, {"images": X})
    with pytest.raises(FedpriorError, match="does not hold the images 'X' and their labels 'y'"):
        decode(mini("svhn"), write(tmp_path, {"a.mat": file.getvalue()}))
