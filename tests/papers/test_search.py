"""Choosing on validation: the same budget for every method, nothing but validation data, and what follows from it."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from fedprior.errors import FedpriorError
from fedprior.experiment.journal import Journal, Observer
from fedprior.papers import Table, reproduce, search
from fedprior.papers.cell import Cell, folded, unfolded
from fedprior.papers.definition import read
from fedprior.papers.search import best, write

TABLE = """
title = "Table 0, a miniature"
paper = "Somebody (2024)"
[run]
rounds = 2
[run.data]
name = "synthetic"
skew = "label"
clients = 3
samples = 60
[run.train]
epochs = 1
lr = 0.5
[columns.small]
[columns.large.run.data]
samples = 80
[rows.A]
method = {name = "fedprox", mu = 0.1}
tries = [{"train.lr" = 0.1, "method.mu" = 1.0}, {"train.lr" = 0.01}]
[rows.B]
method = {name = "local"}
[rows.G]
method = {name = "fedavg"}
paper_global = {small = 50.0}
[rows.published]
method = {name = "fedavg_ft"}
tries = []
[search]
column = "small"
tries = [{"train.lr" = 0.2}, {"train.lr" = 0.3}]
run = {rounds = 1, data = {validation = 0.3}}
"""


def table(tmp_path: Path, text: str = TABLE, name: str = "table0") -> Table:
    path = tmp_path / "papers" / "small" / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return read(path)


def nobody(method: str, rounds: int) -> Observer | None:
    return None


def test_folded_and_unfolded() -> None:
    flat = {"rounds": 3, "train.lr": 0.1, "train.momentum": 0.9, "data.a.b": [1]}
    deep = {"rounds": 3, "train": {"lr": 0.1, "momentum": 0.9}, "data": {"a": {"b": [1]}}}
    assert unfolded(flat) == deep
    assert folded(deep) == flat


def test_a_trial_is_the_rows_run_with_the_setting_and_shortened(tmp_path: Path) -> None:
    small = table(tmp_path)
    assert small.search is not None
    config = small.cell("A", "small", 0, {"train.lr": 0.1, "method.mu": 1.0}, small.search.run).config
    assert (config.train["lr"], config.train["epochs"], config.rounds) == (0.1, 1, 1)
    assert config.method == {"name": "fedprox", "mu": 1.0}
    assert (config.data["validation"], config.data["samples"]) == (0.3, 60)


@pytest.mark.parametrize(
    ("seen", "chosen"), [([0.2, 0.9, 0.5], 1), ([0.7, 0.7], 0), ([math.nan, 0.1], 1), ([0.3, math.nan], 0)]
)
def test_best(seen: list[float], chosen: int) -> None:
    """The largest, the first of equals, and nothing that failed."""
    tried = [{"k": k} for k in range(len(seen))]
    assert best(tried, seen) == tried[chosen]


@pytest.mark.parametrize(("seen", "chosen"), [([0.2, 0.9, 0.1], 2), ([0.7, 0.7], 0), ([math.nan, 0.1], 1)])
def test_best_where_less_is_better(seen: list[float], chosen: int) -> None:
    tried = [{"k": k} for k in range(len(seen))]
    assert best(tried, seen, less=True) == tried[chosen]


def test_nothing_to_choose_among() -> None:
    with pytest.raises(FedpriorError, match="gave a finite result"):
        best([{"k": 0}], [math.nan])


def test_validation_decides_and_test_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation prefers the first setting of A and the second of B; G's shared model the first, its personal ones not.

    Test data would choose the other one everywhere.
    """
    tables = {
        ("A", 0.1): (0.8, 0.0),
        ("A", 0.01): (0.6, 0.0),
        ("B", 0.2): (0.1, 0.0),
        ("B", 0.3): (0.2, 0.0),
        ("G", 0.2): (0.1, 0.9),
        ("G", 0.3): (0.5, 0.4),
    }
    asked: list[tuple[str, float]] = []

    def done(cell: Cell, *rest: Any) -> tuple[dict[str, Any], Journal]:
        asked.append((cell.row, cell.config.train["lr"]))
        personal, shared = tables[asked[-1]]
        journal = Journal(None)
        for model, value in (("personal", personal), ("global", shared)):
            for split, accuracy in (("validation", value), ("test", 1 - value)):
                journal.rows.append({"round": 1, "model": model, "split": split, "client": "a", "accuracy": accuracy})
        return {"timing": {"seconds": 2.0}, "clients": [{"client": "a", "train": 3}]}, journal

    monkeypatch.setattr(sys.modules[search.__module__], "done", done)
    found = search(table(tmp_path), tmp_path / "out", nobody)
    assert asked == list(tables), "every setting once, and nothing for a row whose settings are published"
    assert {row: entry["chosen"] for row, entry in found["rows"].items()} == {
        "A": {"train.lr": 0.1, "method.mu": 1.0},
        "B": {"train.lr": 0.3},
        "G": {"train.lr": 0.2},
    }
    assert found["rows"]["A"]["validation"] == [pytest.approx(80), pytest.approx(60)]
    assert found["about"]["seconds"] == 12.0


def test_a_search_is_real_resumes_and_settles_the_table(tmp_path: Path) -> None:
    small = table(tmp_path)
    assert small.chosen == {}
    found = search(small, tmp_path / "out", nobody)

    def never(method: str, rounds: int) -> Observer | None:
        raise AssertionError("this run is finished")

    again = search(small, tmp_path / "out", never)
    assert again["rows"] == found["rows"]
    assert all(0 <= value <= 100 for entry in found["rows"].values() for value in entry["validation"])
    write(found, small.choices)
    settled = read(small.path)
    assert settled.chosen == {row: entry["chosen"] for row, entry in found["rows"].items()}
    for cell in settled.cells("paper", ["large"], list(settled.rows), 1):
        chosen = settled.chosen.get(cell.row, {}).get("train.lr", 0.5)
        assert (cell.config.train["lr"], cell.config.rounds) == (chosen, 2), "chosen for all columns, at full length"
        assert "validation" not in cell.config.data
    outcome = reproduce(settled, tmp_path / "runs", nobody, columns=["small"], rows=["B", "published"])
    assert outcome.chosen == {"B": settled.chosen["B"]}


def test_a_table_may_take_anothers_choices(tmp_path: Path) -> None:
    first = table(tmp_path)
    write({"rows": {"A": {"chosen": {"train.lr": 0.7}}, "Z": {"chosen": {}}}}, first.choices)
    text = TABLE[: TABLE.index("[search]")] + '[search]\nlike = "table0"\n'
    second = table(tmp_path, text, "table9")
    assert second.chosen == {"A": {"train.lr": 0.7}}
    with pytest.raises(FedpriorError, match="come from small/table0"):
        search(second, tmp_path / "out", nobody)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('tries = [{"train.lr" = 0.2}, {"train.lr" = 0.3}]', 'tries = [{"train.lr" = 0.2}]', "equally many"),
        ("data = {validation = 0.3}", "data = {clients = 3}", "needs `run.data.validation`"),
        ('column = "small"', 'column = "smal"', "smal"),
        (TABLE[TABLE.index("[search]") :], "", "no .search. section"),
    ],
)
def test_an_unfair_search_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in TABLE
    with pytest.raises(FedpriorError, match=message):
        table(tmp_path, TABLE.replace(old, new))


@pytest.mark.parametrize("content", ["", "[]", '{"rows": {"A": 3}}', json.dumps({"rows": {"A": {}}})])
def test_damaged_choices(content: str, tmp_path: Path) -> None:
    small = table(tmp_path)
    small.choices.parent.mkdir()
    small.choices.write_text(content)
    with pytest.raises(FedpriorError, match="damaged: search again"):
        read(small.path).chosen  # noqa: B018


def test_choices_of_other_settings(tmp_path: Path) -> None:
    """The table's settings have changed since: what was chosen among the old ones does not hold."""
    small = table(tmp_path)
    write({"rows": {"A": {"chosen": {"train.lr": 0.7}}}}, small.choices)
    with pytest.raises(FedpriorError, match="other settings of 'A': search again"):
        small.chosen  # noqa: B018


def test_choices_may_hold_in_some_columns(tmp_path: Path) -> None:
    """lr 0.2 in the column `large`, and the run's own 0.5 in `small`."""
    some = table(tmp_path, TABLE.replace("[search]", '[search]\ncolumns = ["large"]'))
    write({"rows": {"B": {"chosen": {"train.lr": 0.2}}}}, some.choices)
    cells = some.cells("paper", ["small", "large"], ["B"], 1)
    assert {cell.column: cell.config.train["lr"] for cell in cells} == {"small": 0.5, "large": 0.2}
    with pytest.raises(FedpriorError, match="unknown column 'lrge'"):
        table(tmp_path, TABLE.replace("[search]", '[search]\ncolumns = ["lrge"]'))


def test_a_table_without_a_search(tmp_path: Path) -> None:
    lines = [line for line in TABLE[: TABLE.index("[search]")].splitlines() if not line.startswith("tries")]
    with pytest.raises(FedpriorError, match="nothing to search"):
        search(table(tmp_path, "\n".join(lines)), tmp_path, nobody)
