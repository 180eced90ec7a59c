"""Stored data sets of a few examples, under their real names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data.store.miniature import mini
from fedprior.data import store
from fedprior.data.store import RECORDS

Arrays = dict[str, NDArray[Any]]


def images(name: str, train: int, test: int, classes: int | None = None) -> Arrays:
    """Random pixels; every class equally often. The first pixel is the number of the image in its split."""
    rng = np.random.default_rng(len(name))
    arrays: Arrays = {}
    for split, n in (("train", train), ("test", test)):
        x = rng.integers(0, 256, (n, *RECORDS[name].shape), dtype=np.uint8)
        x[:, 0, 0, 0] = np.arange(n) % 256
        arrays |= {f"x_{split}": x, f"y_{split}": np.arange(n) % (classes or RECORDS[name].classes)}
    return arrays


def keep(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, arrays: Arrays | str) -> None:
    """Store arrays (or the text of a CSV file) as the data set `name`, below `folder`."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("FEDPRIOR_DATA", str(folder / "data"))
    monkeypatch.setitem(RECORDS, name, mini(name))
    path = folder / f"{name}.{'csv' if isinstance(arrays, str) else 'npz'}"
    if isinstance(arrays, str):
        path.write_text(arrays)
    else:
        np.savez(path, **arrays)  # type: ignore[arg-type]
    store.import_files(name, [path])
