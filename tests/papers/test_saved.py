"""Results beside a table, read again and put together with new ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedprior.errors import FedpriorError
from fedprior.experiment.journal import jsonable
from fedprior.papers.definition import Table
from fedprior.papers.definition import read as read_table
from fedprior.papers.outcome import Number, Outcome
from fedprior.papers.saved import beside, read, to_extend, together
from fedprior.report import papers

TABLE = """
title = "Table 0, a miniature"
paper = "Somebody (2024)"
seeds = 2
run = {rounds = 1, data = {name = "synthetic"}}
columns = {all = {}, few = {}, none = {}}
[rows]
A = {method = {name = "fedavg"}, paper = {all = 80.0, few = 81.0}}
B = {method = {name = "local"}, paper = {all = 70.0, few = 71.0}}
C = {method = {name = "fedprox"}}
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    path = tmp_path / "small" / "table0.toml"
    path.parent.mkdir()
    path.write_text(TABLE)
    return read_table(path)


def part(cells: dict[str, dict[str, list[float]]], day: int = 1, **changes: Any) -> Outcome:
    """Personal models: row -> column -> a value a seed."""
    columns = list(dict.fromkeys(column for found in cells.values() for column in found))
    given: dict[str, Any] = {
        "name": "small/table0",
        "title": "Table 0, a miniature",
        "paper": "Somebody (2024)",
        "scale": "paper",
        "metric": "accuracy",
        "per": "client",
        "at": "last",
        "columns": columns,
        "rows": list(cells),
        "seeds": max(len(values) for found in cells.values() for values in found.values()),
        "cells": {
            "personal": {
                row: {column: Number(None, values, (1.5,)) for column, values in found.items()}
                for row, found in cells.items()
            }
        },
        "about": {"date": f"2024-05-0{day}", "commit": f"c{day}", "version": "1", "seconds": 60.0 * day},
    }
    return Outcome(**(given | changes))


def values(outcome: Outcome) -> dict[str, dict[str, list[float]]]:
    return {
        row: {column: number.values for column, number in columns.items()}
        for row, columns in outcome.cells["personal"].items()
    }


def test_read_is_the_inverse_of_the_document(tmp_path: Path) -> None:
    outcome = part(
        {"A": {"all": [1.0, 2.0]}}, missing=[("A", "few", 1)], chosen={"A": {"train.lr": 0.1}}, unknown=["μ"]
    )
    path = tmp_path / "x.json"
    path.write_text(json.dumps(jsonable(outcome.document())))
    assert read(path) == Outcome(**(vars(outcome) | {"cells": outcome.cells | {"global": {}}}))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"name": "x"}', '{"cells": 3}'])
def test_what_cannot_be_read(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(
        FedpriorError,
        match=r"^the results in '.*x.json' cannot be read \(.+\): move them away, or run the whole table\.$",
    ):
        read(path)


def test_nothing_beside(table: Table) -> None:
    assert beside(table, "paper") is None
    papers.write(
        part({"A": {"all": [1.0]}}, about={"command": "", "date": "", "commit": "", "seconds": 0}),
        table.results("paper"),
    )
    found = beside(table, "paper")
    assert found is not None
    assert values(found) == {"A": {"all": [1.0]}}
    assert beside(table, "quick") is None


def test_a_new_column_and_a_new_row(table: Table) -> None:
    """Old: A and B in all; new: A in few. B in few has the paper's number alone, and is missing."""
    found = together(table, part({"B": {"all": [2.0]}, "A": {"all": [1.0]}}), part({"A": {"few": [3.0]}}, day=2))
    assert values(found) == {"A": {"all": [1.0], "few": [3.0]}, "B": {"all": [2.0], "few": []}}
    assert (found.rows, found.columns, found.seeds) == (["A", "B"], ["all", "few"], 1), "in the table's order"
    assert found.missing == [("B", "few", 0)]
    assert found.cells["personal"]["B"]["few"].paper == 71.0
    assert found.about["part"] == "2 of 3 columns, 2 of 3 rows, 1 of 2 seeds, 3 of these 4 runs"
    assert found.about["seconds"] == 180
    assert found.about["command"].count("fedprior reproduce small/table0") == 3
    assert "collected 2024-05-01 at commit c1, 2024-05-02 at commit c2 ·" in papers.markdown(found)


def test_the_new_number_counts(table: Table) -> None:
    found = together(table, part({"A": {"all": [1.0]}}), part({"A": {"all": [4.0]}}, day=2))
    assert values(found) == {"A": {"all": [4.0]}}
    assert found.about["seconds"] == 120
    assert "earlier" not in found.about, "nothing of it is left"


def test_more_seeds_count_more(table: Table) -> None:
    found = together(table, part({"A": {"all": [1.0, 2.0]}}), part({"A": {"all": [4.0]}, "B": {"all": [5.0]}}, day=2))
    assert values(found) == {"A": {"all": [1.0, 2.0]}, "B": {"all": [5.0]}}
    assert (found.seeds, found.missing) == (2, [("B", "all", 1)])
    assert found.about["earlier"] == [{"date": "2024-05-01", "commit": "c1"}]


def test_what_the_table_has_no_more(table: Table) -> None:
    old = part({"A": {"all": [1.0], "gone": [1.0]}, "Gone": {"all": [1.0]}}, chosen={"Gone": {"x": 1}, "A": {"x": 2}})
    found = together(table, old, part({"C": {"none": [3.0]}}, day=2, chosen={"C": {"x": 3}}))
    assert values(found) == {"A": {"all": [1.0], "none": []}, "C": {"all": [], "none": [3.0]}}
    assert found.chosen == {"A": {"x": 2}, "C": {"x": 3}}


def test_kinds_stay_together(table: Table) -> None:
    """A cell is taken as a whole: the shared model's number is of the same runs as the personal ones'."""
    shared = {"A": {"all": Number(50.0, [9.0])}}
    old, new = part({"A": {"all": [1.0]}}), part({"A": {"all": [4.0]}}, day=2)
    old.cells["global"] = shared
    assert "global" not in together(table, old, new).cells
    assert together(table, new, old).cells["global"] == shared


def test_thrice(table: Table) -> None:
    first = together(table, part({"A": {"all": [1.0]}}), part({"B": {"all": [2.0]}}, day=2))
    found = together(table, first, part({"C": {"all": [3.0]}}, day=3))
    assert [at["commit"] for at in found.about["earlier"]] == ["c1", "c2"]
    assert found.about["seconds"] == 60 + 120 + 180
    assert found.about["part"] == "1 of 3 columns, 1 of 2 seeds"


def test_what_diverged_is_read_again_as_such(tmp_path: Path) -> None:
    """JSON has no nan: null in the file, and nan again where it is read."""
    path = tmp_path / "table0.json"
    outcome = part({"A": {"all": [70.0, math.nan]}})
    path.write_text(json.dumps(jsonable(outcome.document())))
    assert json.loads(path.read_text())["cells"]["personal"]["A"]["all"]["values"] == [70.0, None]
    number = read(path).number("personal", "A", "all")
    assert number is not None
    assert number.values == [70.0, pytest.approx(math.nan, nan_ok=True)]
    assert math.isnan(number.ours)


def test_more_seeds_follow_those_there_are(table: Table) -> None:
    """A has two seeds more, after its first; B's one is new; what only the old part has stays. By client: 1.5 each."""
    old = part({"A": {"all": [1.0]}, "B": {"few": [7.0]}})
    new = part({"A": {"all": [4.0, 5.0]}, "B": {"all": [6.0]}}, day=2)
    found = together(table, old, new, more=True)
    assert values(found) == {"A": {"all": [1.0, 4.0, 5.0], "few": []}, "B": {"all": [6.0], "few": [7.0]}}
    assert found.cells["personal"]["A"]["all"].by_client == (1.5, 1.5)
    assert (found.seeds, found.about["seconds"]) == (3, 180)
    assert [at["commit"] for at in found.about["earlier"]] == ["c1"]
    assert found.missing == [("A", "few", k) for k in range(3)] + [
        ("B", "all", 1),
        ("B", "all", 2),
        ("B", "few", 1),
        ("B", "few", 2),
    ]


def test_more_of_another_quick_scale_is_refused(table: Table) -> None:
    about = {"command": "", "date": "", "commit": "", "seconds": 0}
    papers.write(part({"A": {"all": [1.0]}}, about=about, scale="quick", quick={"rounds": 3}), table.results("quick"))
    with pytest.raises(FedpriorError, match="have another quick scale than the table now: leave out --more"):
        to_extend(table, "quick")
    assert to_extend(table, "paper") is None
