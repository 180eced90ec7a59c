"""What a mixture says of itself."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
from rich.console import Console

from fedprior.explanation import Explanation, of_mixture
from fedprior.report.explained import explained


def test_sites_that_differ_are_named_the_oddest_first() -> None:
    """All: 40 and 60 %. Zürich 70/30 differs by 30 points, b by 15, c by 5 (not named)."""
    weights = np.array([[0.4, 0.6], [0.55, 0.45], [0.7, 0.3], [0.45, 0.55]])
    found = of_mixture(["Local", "FedAvg-FT"], ["b", "Zürich", "c"], weights, np.array([1.0, 0.9, 1.2, 1.0]))
    assert list(found.sentences) == [
        "For all sites together: Local 40 %, FedAvg-FT 60 %, at a temperature of 1.00.",
        "At Zürich, Local carries 70 % (40 % for all sites).",
        "At b, Local carries 55 % (40 % for all sites).",
    ]
    assert json.loads(json.dumps(found.document()))["tables"]["weights of the experts"][2]["site"] == "Zürich"


def test_a_single_expert_has_a_temperature_only() -> None:
    found = of_mixture(["Local"], ["a", "b"], np.ones((3, 1)), np.array([1.5, 1.2, 2.0]))
    assert list(found.sentences) == ["The temperature is 1.50 for all sites together, and 1.20 to 2.00 at the sites."]
    assert list(found.tables["temperature of each site"].columns) == ["temperature"]


def test_names_of_sites_reach_the_terminal_as_plain_text() -> None:
    name = "[red]\x1b[2J site"
    found = of_mixture(["Local", "FedAvg"], [name], np.array([[0.5, 0.5], [0.9, 0.1]]), np.ones(2))
    console = Console(file=io.StringIO(), width=100)
    for table in explained(found):
        console.print(table)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]" in shown
    assert "\x1b" not in shown
    assert "\x1b" not in "".join(found.sentences)


def test_most_methods_say_nothing() -> None:
    assert Explanation().document() == {"tables": {}, "sentences": []}
    assert explained(Explanation()) == []


def test_a_document_is_what_its_file_says() -> None:
    """What is not known is NaN in a table and null in a file; a report of either is the same."""
    frame = pd.DataFrame({"value": [1.0, np.nan], "unit": [np.nan, np.nan]}, index=pd.Index(["a", "b"], name="site"))
    found = Explanation({"t": frame}).document()
    assert found == json.loads(json.dumps(found, allow_nan=False))
    assert found["tables"]["t"] == [
        {"site": "a", "value": 1.0, "unit": None},
        {"site": "b", "value": None, "unit": None},
    ]
