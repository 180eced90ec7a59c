"""A data folder of its own for every test here, and one with something in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.store.miniature import FILES, use, write
from fedprior.data import store


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where data sets are stored."""
    folder = tmp_path / "data"
    monkeypatch.setenv("FEDPRIOR_DATA", str(folder))
    return folder


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A stored data set, `mnist`: the files that it came from."""
    use(monkeypatch)
    paths = write(tmp_path / "mine", FILES)
    store.import_files("mnist", paths)
    return paths
