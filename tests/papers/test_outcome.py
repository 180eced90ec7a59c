"""Numbers beside the paper's: means, errors, differences and the order of the methods, all by hand."""

from __future__ import annotations

import json
import math
from typing import Any, Literal

import pytest

from fedprior.experiment.journal import jsonable
from fedprior.papers import Outcome, Pair, ranking
from fedprior.papers.outcome import Number, own_noise

Verdict = Literal["holds", "level", "reversed"]


def outcome(**changes: Any) -> Outcome:
    """Two methods, two columns, two seeds; a global number for one of them."""
    given: dict[str, Any] = {
        "name": "small/table0",
        "title": "Table 0",
        "paper": "Somebody (2024)",
        "scale": "paper",
        "metric": "accuracy",
        "per": "client",
        "at": "last",
        "columns": ["all", "few"],
        "rows": ["A", "B"],
        "seeds": 2,
        "cells": {
            "personal": {
                "A": {"all": Number(80.0, [70.0, 72.0]), "few": Number(None, [60.0, 61.0])},
                "B": {"all": Number(75.0, [78.0, 78.0])},
            },
            "global": {"A": {"all": Number(50.0, [55.0])}},
        },
        "about": {"date": "2024-05-06", "commit": None, "version": "1", "seconds": 60.0},
    }
    return Outcome(**(given | changes))


# One number


def test_number() -> None:
    """70, 72, 77: mean 73; deviations -3, -1, 4 give a variance of (9 + 1 + 16) / 2 = 13, an error of √(13/3)."""
    number = Number(74.5, [70.0, 72.0, 77.0])
    assert number.ours == pytest.approx(73)
    assert number.error == pytest.approx(math.sqrt(13 / 3))
    assert number.delta == pytest.approx(-1.5)


def test_one_seed_has_no_error() -> None:
    number = Number(74.5, [70.0])
    assert (number.ours, number.delta) == (70.0, -4.5)
    assert math.isnan(number.error)


def test_without_the_papers_number_there_is_no_difference() -> None:
    assert math.isnan(Number(None, [70.0]).delta)
    assert Number(0.0, [70.0]).delta == 70.0


def test_without_values_there_is_nothing() -> None:
    number = Number(74.5, [])
    assert all(math.isnan(v) for v in (number.ours, number.error, number.delta))


def test_a_seed_that_diverged_leaves_no_mean_and_no_error() -> None:
    """And a loss that is infinite has a mean, but no error."""
    number = Number(74.5, [70.0, math.nan, 77.0])
    assert all(math.isnan(v) for v in (number.ours, number.error, number.delta))
    assert Number(0.5, [0.4, math.inf]).ours == math.inf
    assert math.isnan(Number(0.5, [0.4, math.inf]).error)


# The order


@pytest.mark.parametrize("ascending", [False, True])
def test_a_method_that_diverged_has_no_place_in_the_order(ascending: bool) -> None:
    """Else nan would hold or reverse the paper's order, as the comparison happens to be written."""
    numbers = {"A": Number(80.0, [math.nan, 3.0]), "B": Number(70.0, [2.0, 2.0]), "C": Number(60.0, [5.0, 5.0])}
    pairs = ranking(numbers, ascending=ascending)
    assert [{pair.better, pair.worse} for pair in pairs] == [{"B", "C"}]


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        pytest.param([75.0], [74.0], "holds", id="one seed: every difference counts"),
        pytest.param([75.0], [74.8], "holds", id="a small one too"),
        pytest.param([74.0], [75.0], "reversed", id="one seed, the other way"),
        pytest.param([75.01], [75.0], "level", id="equal as printed"),
        pytest.param([75.0], [75.01], "level", id="equal as printed, the other way"),
        pytest.param([75.0], [75.0], "level", id="equal"),
        pytest.param([74.0, 75.0, 76.0], [73.0, 74.0, 75.0], "holds", id="seeds differ, but by as much for both"),
        pytest.param([73.0, 74.0, 75.0], [74.0, 75.0, 76.0], "reversed", id="the same, the other way"),
        pytest.param([74.0, 75.0, 76.0], [72.6, 72.6, 72.6], "level", id="2.4 apart"),
        pytest.param([74.0, 75.0, 76.0], [72.4, 72.4, 72.4], "holds", id="2.6 apart"),
        pytest.param([72.4, 72.4, 72.4], [74.0, 75.0, 76.0], "reversed", id="2.6 apart, the other way"),
        pytest.param([74.0, 76.0], [63.0, 63.0], "level", id="two seeds say little: 12 apart"),
        pytest.param([74.0, 76.0], [62.0, 62.0], "holds", id="13 apart"),
        pytest.param([75.0, 75.0], [74.5, 74.5], "holds", id="no noise at all"),
        pytest.param([75.0], [70.0, 81.0], "reversed", id="one seed beside two: no noise can be told"),
    ],
)
def test_verdict(better: list[float], worse: list[float], verdict: Verdict) -> None:
    """Differences one apart have an error of 1/√3; Student's 97.5 % quantile at two degrees is 4.303: 2.484 is level.

    Two differences two apart have an error of 1, and the quantile at one degree is 12.71.
    """
    numbers = {"A": Number(80.0, better), "B": Number(70.0, worse)}
    assert ranking(numbers) == [Pair("A", "B", verdict)]
    assert ranking(dict(reversed(numbers.items()))) == [Pair("A", "B", verdict)], "whichever comes first"


@pytest.mark.parametrize(
    ("fast", "slow", "verdict"),
    [([3.0], [5.0], "holds"), ([5.0], [3.0], "reversed"), ([3.0, 5.0], [5.0, 4.0], "level"), ([3.0], [3.01], "level")],
)
def test_less_is_better(fast: list[float], slow: list[float], verdict: Verdict) -> None:
    """Of seconds the paper's lower number is the better one, and so is ours."""
    numbers = {"A": Number(2.0, slow), "B": Number(1.0, fast)}
    assert ranking(numbers, ascending=True) == [Pair("B", "A", verdict)]


def test_every_pair_the_paper_tells_apart() -> None:
    """A and B are equal there, E has no number there and F none of ours: the six pairs of A, B, C and D less one."""
    numbers = {
        "A": Number(70.0, [1.0]),
        "B": Number(70.0, [9.0]),
        "C": Number(80.0, [5.0]),
        "D": Number(0.0, [7.0]),
        "E": Number(None, [3.0]),
        "F": Number(90.0, []),
    }
    assert set(ranking(numbers)) == {
        Pair("C", "A", "holds"),
        Pair("C", "B", "reversed"),
        Pair("C", "D", "reversed"),
        Pair("A", "D", "reversed"),
        Pair("B", "D", "holds"),
    }
    assert len(ranking(numbers)) == 5


@pytest.mark.parametrize("numbers", [{}, {"A": Number(70.0, [1.0])}])
def test_one_method_has_no_order(numbers: dict[str, Number]) -> None:
    assert ranking(numbers) == []


def test_equal_as_printed() -> None:
    assert f"{80.06:.1f}" == f"{80.14:.1f}"
    assert ranking({"A": Number(90.0, [80.14]), "B": Number(70.0, [80.06])}) == [Pair("A", "B", "level")]


# A table


def test_a_column_of_a_table() -> None:
    """B over A by 8 and 6: 7 ± 1, within 12.7 errors of zero. The other column and kind have nothing to compare."""
    found = outcome()
    assert found.ranking("personal", "all") == [Pair("A", "B", "level")]
    assert found.ranking("personal", "few") == []
    assert found.ranking("global", "all") == []
    assert found.ranking("personal", "nowhere") == []
    assert outcome(metric="seconds").ranking("personal", "all") == [Pair("B", "A", "level")]
    assert outcome(cells={}).ranking("global", "all") == []


def test_one_cell() -> None:
    found = outcome()
    assert found.number("personal", "A", "all") == Number(80.0, [70.0, 72.0])
    assert found.number("global", "A", "all") == Number(50.0, [55.0])
    assert found.number("personal", "B", "few") is None
    assert found.number("global", "B", "all") is None
    assert outcome(cells={}).number("personal", "A", "all") is None


def test_the_papers_own_errors_decide_what_its_order_is() -> None:
    """91.4 ± 0.1 against 91.3 ± 0.1: 1.96 √(0.1² + 0.1²) = 0.28 > 0.1, so there is no order; 90.7 ± 0.1 is behind both.

    Where the ± is over clients it is no error of the mean, and every difference counts.
    """
    found = {
        "a": Number(91.4, [90.0], paper_error=0.1),
        "b": Number(91.3, [91.0], paper_error=0.1),
        "c": Number(90.7, [90.5], paper_error=0.1),
    }
    assert [(p.better, p.worse, p.verdict) for p in ranking(found)] == [("a", "c", "reversed"), ("b", "c", "holds")]
    assert len(ranking(found, errors=False)) == 3
    assert own_noise(found["a"], found["b"]) == pytest.approx(0.2772, abs=1e-4)
    assert own_noise(found["a"], Number(90.0, [])) == 0


def test_document() -> None:
    """Everything, as JSON that any reader takes: what is not a number is null."""
    found = outcome(unknown=["μ"], stand_in="digits", chosen={"A": {"train.lr": 0.1}}, quick={"rounds": 3})
    text = json.dumps(jsonable(found.document()), allow_nan=False)
    document = json.loads(text)
    plain = {k: v for k, v in document.items() if k not in ("cells", "ranking")}
    assert plain == {
        "name": "small/table0",
        "title": "Table 0",
        "paper": "Somebody (2024)",
        "scale": "paper",
        "metric": "accuracy",
        "per": "client",
        "at": "last",
        "columns": ["all", "few"],
        "rows": ["A", "B"],
        "seeds": 2,
        "about": {"date": "2024-05-06", "commit": None, "version": "1", "seconds": 60.0},
        "unknown": ["μ"],
        "stand_in": "digits",
        "chosen": {"A": {"train.lr": 0.1}},
        "quick": {"rounds": 3},
        "missing": [],
        "plus_minus": "seeds",
        "figure": {},
        "drawn": [],
    }
    personal = document["cells"]["personal"]
    assert personal["A"]["all"] == {
        "paper": 80.0,
        "ours": 71.0,
        "delta": -9.0,
        "error": pytest.approx(1),
        "values": [70.0, 72.0],
    }
    assert personal["A"]["few"]["paper"] is None
    assert list(personal["B"]) == ["all"]
    assert document["cells"]["global"] == {
        "A": {"all": {"paper": 50.0, "ours": 55.0, "delta": 5.0, "error": None, "values": [55.0]}}
    }
    assert document["ranking"] == {
        "personal": {"all": [{"better": "A", "worse": "B", "verdict": "level"}], "few": []},
        "global": {"all": [], "few": []},
    }


def test_the_document_of_nothing() -> None:
    document = outcome(cells={}).document()
    assert document["cells"] == {"personal": {}, "global": {}}
    json.dumps(jsonable(document), allow_nan=False)
