"""IDX: read back what the specification writes; four files in any packing make a data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from data.store.miniature import digits, idx, idx_files, tar, tiny_mnist, write
from fedprior.data.store.formats.idx import read
from fedprior.data.store.importers import decode
from fedprior.errors import FedpriorError


@given(arrays(np.uint8, array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6)))
def test_round_trip(array: NDArray[np.uint8]) -> None:
    found = read(idx(array))
    assert found.shape == array.shape
    assert (found == array).all()


@given(arrays(np.uint8, array_shapes(min_dims=1, max_dims=3)), st.integers(1, 9), st.booleans())
def test_wrong_length(array: NDArray[np.uint8], by: int, longer: bool) -> None:
    content = idx(array) + bytes(by) if longer else idx(array)[: -min(by, array.size)]
    with pytest.raises(FedpriorError, match="where its header says"):
        read(content)


@pytest.mark.parametrize("how", ["files", "folder", "archive", "renamed"])
def test_four_files(how: str, tmp_path: Path) -> None:
    files = idx_files()
    if how == "renamed":  # neither names nor endings matter
        files = {f"{i}.dat": content for i, content in enumerate(reversed(files.values()))}
    paths = write(tmp_path / "f", {"all.tgz": tar(files | {"README": b"hello"})} if how == "archive" else files)
    decoded = decode(tiny_mnist(), [tmp_path / "f"] if how == "folder" else paths)
    assert decoded.format == "idx"
    for name, expected in digits().items():
        found = decoded.arrays[name]
        assert found.dtype == (np.uint8 if name[0] == "x" else np.int64)
        assert (found == (expected[:, None] if name[0] == "x" else expected)).all()


def test_sets_of_one_size_are_told_by_name(tmp_path: Path) -> None:
    source = digits()
    equal = {key: values[:4] for key, values in source.items()}
    paths = write(tmp_path, idx_files(equal))
    record = tiny_mnist(counts={"train": 4, "test": 4})
    for order in (paths, paths[::-1]):
        found = decode(record, order).arrays
        assert all((found[k].reshape(equal[k].shape) == equal[k]).all() for k in equal)


def test_missing_labels(tmp_path: Path) -> None:
    paths = write(tmp_path, idx_files())
    with pytest.raises(FedpriorError, match="no labels for the 4 images"):
        decode(tiny_mnist(), paths[:3])


def test_missing_images(tmp_path: Path) -> None:
    paths = write(tmp_path, idx_files())
    with pytest.raises(FedpriorError, match="1 sets of examples"):
        decode(tiny_mnist(), paths[:2])


def test_cut_short_names_the_file(tmp_path: Path) -> None:
    paths = write(tmp_path, {"images": idx(digits()["x_train"])[:-3]})
    with pytest.raises(
        FedpriorError, match="'images' cannot be imported: it holds 117 values where its header says 120"
    ):
        decode(tiny_mnist(), paths)
