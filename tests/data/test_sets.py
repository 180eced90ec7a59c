"""One file per data set: found, listed and fetched without being named anywhere else."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedprior.data import DATASETS, sets, store
from fedprior.data.datasets import catalogue, load
from fedprior.data.partition import PARTITIONS
from fedprior.data.registry import register_dataset
from fedprior.data.store.record import RECORDS, Record
from fedprior.data.table import Table
from fedprior.data.target import Classes

FOLDER = Path(str(next(iter(sets.__path__))))
FILES = {module.name for module in pkgutil.iter_modules(sets.__path__) if not module.name.startswith("_")}


def test_every_file_is_a_data_set() -> None:
    assert set(DATASETS) == FILES
    assert all(name == data.name for name, data in DATASETS.items())
    assert {name for name, data in DATASETS.items() if data.stored == (name,)} == set(RECORDS)
    assert all(set(data.stored) <= set(RECORDS) for data in DATASETS.values())
    assert {data.partition for data in DATASETS.values()} <= {*PARTITIONS, None}


def test_no_other_file_knows_a_stored_data_set_by_name() -> None:
    """Strings that are the whole name. (pFedBreD's log-normal partition has a `style` that is called mnist.)"""
    for path in FOLDER.parent.rglob("*.py"):
        if path.parent == FOLDER or path.name == "lognormal.py":
            continue
        strings = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not strings & set(RECORDS), path


def test_the_list_has_them_all() -> None:
    listed = {entry["name"] for entry in catalogue()}
    assert listed == {*DATASETS, *(f"partition={name}" for name in PARTITIONS)}
    assert all(entry["about"].endswith(".") for entry in catalogue())


def test_a_new_one_is_listed_imported_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a record of its own: nothing else is to be told of it."""
    record = Record(
        name="dots",
        title="Dots",
        classes=2,
        shape=(3,),
        formats=("npz",),
        accepts="an .npz file with x and y",
        licence="CC0",
        citation="Nobody.",
    )
    monkeypatch.setenv("FEDPRIOR_DATA", str(tmp_path))
    try:

        @register_dataset(record=record, partition="iid")
        def read_dots(scale: float = 1.0) -> Table:
            """Dots."""
            pool = store.load("dots").pool()
            return Table(scale * pool.x, pool.y, Classes.numbered(2), {}, pool.client_columns)

        assert "dots" in {status.name for status in store.listing()}
        x = np.arange(60, dtype=np.uint8).reshape(20, 3)
        np.savez(tmp_path / "mine.npz", x=x, y=np.arange(20) % 2)
        store.import_files("dots", [tmp_path / "mine.npz"])
        federation = load("dots", clients=2, scale=2.0)
        assert federation.clients == ("client-0", "client-1")
        assert float(federation.train.x.max()) <= 118
        entry = next(entry for entry in catalogue() if entry["name"] == "dots")
        assert {"scale", "partition", "test"} <= set(entry["options"])
        assert "corruption" not in entry["options"]
    finally:
        del DATASETS["dots"], RECORDS["dots"]


def test_the_store_is_light_and_knows_the_records() -> None:
    """What reads or decomposes data is imported when it is used."""
    script = (
        "import sys; from fedprior.data.store import RECORDS; assert 'mnist' in RECORDS\n"
        "sys.exit(bool({'sklearn', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_documented_example_runs() -> None:
    """docs/add-data.md: a data set, a partition and how they are used, one after another in one module."""
    page = (Path(__file__).parents[2] / "docs" / "add-data.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    script = "\n".join(["from __future__ import annotations", *blocks])
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    printed = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    assert printed is not None
    assert ran.stdout == printed[1]
