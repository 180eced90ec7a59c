"""Reproduced tables: every number and verdict in Markdown, a page that is sound, and JSON that any reader takes."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedprior.papers import Outcome, Pair
from fedprior.papers.outcome import Number
from fedprior.report import papers
from fedprior.report.charts import spec
from fedprior.report.charts.papers import Entry
from fedprior.report.charts.papers import column as drawing
from fedprior.report.papers import words

EMPTY = {"path", "rect", "line", "g"}  # elements that may hold nothing


COMMAND = "fedprior reproduce small/table0"
ABOUT = {
    "date": "2024-05-06",
    "commit": "0123456789ab",
    "version": "1",
    "seconds": 150.0,
    "command": COMMAND,
    "part": "",
}


def outcome(**changes: Any) -> Outcome:
    """Three methods: A and B told apart by the paper, C without its number. Errors: 1, 0 and none."""
    given: dict[str, Any] = {
        "name": "small/table0",
        "title": "Table 0, a miniature",
        "paper": "Somebody (2024)",
        "scale": "paper",
        "metric": "accuracy",
        "per": "client",
        "at": "last",
        "columns": ["all", "few"],
        "rows": ["A", "B", "C", "D"],
        "seeds": 2,
        "cells": {
            "personal": {
                "A": {"all": Number(80.0, [70.0, 72.0]), "few": Number(81.25, [80.04])},
                "B": {"all": Number(75.0, [77.0, 79.0])},
                "C": {"all": Number(None, [66.6, 66.6])},
            },
            "global": {"A": {"all": Number(50.0, [55.0]), "few": Number(51.0, [])}},
        },
        "about": ABOUT,
    }
    return Outcome(**(given | changes))


def single(paper: float | None, values: list[float], row: str = "A") -> Outcome:
    return outcome(rows=[row], columns=["all"], cells={"personal": {row: {"all": Number(paper, values)}}})


class Page(HTMLParser):
    """What a page holds; fails where an end does not fit."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in EMPTY
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def cells(text: str) -> dict[str, list[list[str]]]:
    """The rows of all Markdown tables by their first cell."""
    found: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        if line.startswith("| "):
            first, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(first, []).append(rest)
    return found


def rendered(shown: Any, width: int = 130) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(shown)
    return console.export_text()


# Markdown


def test_markdown_has_every_number() -> None:
    """A: 71 ± 1, nine below the paper's 80. One seed has no error; what the paper does not have has no difference."""
    found = cells(papers.markdown(outcome()))
    assert found == {
        "method": [["all", "few"], ["all", "few"]],
        "A": [["80.0 → 71.0 ± 1.0 (-9.0)", "81.2 → 80.0 (-1.2)"], ["50.0 → 55.0 (+5.0)", "51.0 →"]],
        "B": [["75.0 → 78.0 ± 1.0 (+3.0)", ""]],
        "C": [["– → 66.6 ± 0.0", ""]],
    }


def test_a_markdown_table_has_as_many_cells_as_its_head() -> None:
    lines = [line for line in papers.markdown(outcome()).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {4}
    assert lines[1] == "|---|---|---|"


def test_markdown_has_every_verdict() -> None:
    """71 ± 1 against 78 is reversed; elsewhere there are no two numbers."""
    text = papers.markdown(outcome())
    personal, shared = text.split("## The shared model")
    assert "- all: 0 of 1 pairs of methods in the paper's order; 1 reversed (B over A)\n" in personal
    assert "- few: the paper has no two numbers to compare\n" in personal
    assert shared.count("the paper has no two numbers to compare") == 2


def test_markdown_says_what_it_is() -> None:
    text = papers.markdown(outcome(unknown=["the learning rate", "σ²"]))
    assert text.startswith("# small/table0\n\nSomebody (2024): Table 0, a miniature.\n")
    line = next(line for line in text.splitlines() if line.startswith("`fedprior"))
    assert line.split(" · ") == [
        "`fedprior reproduce small/table0`",
        "collected 2024-05-06 at commit 0123456789ab",
        "2 seeds",
        "2 min of runs",
        "accuracy in %",
    ]
    assert text.endswith("## Unspecified settings\n\n- the learning rate\n- σ²\n")
    assert "Not the paper's setting" not in text
    assert "stand-in" not in text


def test_one_seed_is_one_seed() -> None:
    assert " · 1 seed · " in papers.markdown(outcome(seeds=1))


def test_a_quick_table_is_not_the_papers() -> None:
    text = papers.markdown(outcome(scale="quick", quick={"rounds": 3, "data.keep": 0.05}))
    assert "**Not the paper's setting**" in text
    assert "Every run has rounds = 3, data.keep = 0.05." in text
    assert "Every run has" not in papers.markdown(outcome(scale="quick")), "where there are fewer seeds only"
    assert text.index("Not the paper's setting") < text.index("| method |"), "before any number"


def test_a_part_is_told() -> None:
    about = ABOUT | {"part": "1 of 3 columns", "command": f"{COMMAND} --columns all"}
    text = papers.markdown(outcome(about=about))
    assert "**Part of the table**: 1 of 3 columns." in text
    assert f"`{COMMAND} --columns all`" in text
    assert "1 of 3 columns" in papers.page(outcome(about=about))


def test_choices_are_told() -> None:
    chosen = {"A": {"train.lr": 0.1, "method.mu": 2}}
    assert "## Chosen on validation data\n" in papers.markdown(outcome(chosen=chosen))
    for text in (papers.markdown(outcome(chosen=chosen)), papers.page(outcome(chosen=chosen))):
        assert "A: train.lr = 0.1, method.mu = 2" in text
    assert "Chosen" not in papers.markdown(outcome()) + papers.page(outcome())


def test_a_stand_in_is_told() -> None:
    text = papers.markdown(outcome(stand_in="digits in place of MNIST"))
    assert "**A stand-in**: digits in place of MNIST\n" in text
    assert text.index("stand-in") < text.index("| method |")
    assert "A stand-in: digits in place of MNIST" in papers.page(outcome(stand_in="digits in place of MNIST"))


@pytest.mark.parametrize(
    ("metric", "at", "expected"),
    [
        ("accuracy", "last", "accuracy in %"),
        ("balanced_accuracy", "last", "balanced accuracy in %"),
        ("seconds", "last", "seconds per round"),
        ("accuracy", "best", "accuracy in %, best round on test, as the paper reports it"),
    ],
)
def test_what_the_numbers_are(metric: str, at: str, expected: str) -> None:
    found = outcome(metric=metric, at=at)
    assert f" · {expected}\n" in papers.markdown(found)
    assert f"· {expected}</p>" in papers.page(found)
    assert expected in " ".join(rendered(papers.grid(found, "personal"), 200).split())


@pytest.mark.parametrize(
    ("metric", "words"),
    [("auroc", "AUROC in %"), ("nll", "NLL in nats"), ("brier", "Brier score"), ("sensitivity", "sensitivity in %")],
)
def test_every_metric_of_classes_has_a_name(metric: str, words: str) -> None:
    """Less of an NLL is better, yet it is of personal models, as costs are not."""
    text = papers.markdown(outcome(metric=metric))
    assert words in text
    assert "personal models" in text.lower()


def test_what_diverged_is_said(tmp_path: Path) -> None:
    """One of two seeds is enough. The picture has the paper's ring and no dot; the others keep theirs."""
    cells = {"personal": {"A": {"all": Number(80.0, [math.nan, 72.0])}, "B": {"all": Number(75.0, [77.0, 79.0])}}}
    found = outcome(rows=["A", "B"], columns=["all"], cells=cells)
    for text in (papers.markdown(found), papers.page(found)):
        assert "80.0 → diverged" in text
        assert "75.0 → 78.0 ± 1.0 (+3.0)" in text
        assert "nan" not in text
    rows = drawn(found)
    assert [row["paper"] for row in rows.values()] == [80.0, 75.0]
    assert [row["ours"] for row in rows.values()] == [None, 78.0]
    nobody = outcome(rows=["A"], columns=["all"], cells={"personal": {"A": {"all": Number(None, [math.nan])}}})
    assert "– → diverged" in papers.markdown(nobody)
    assert "nan" not in papers.page(nobody)


def test_without_a_shared_model_there_is_no_such_part() -> None:
    text = papers.markdown(single(80.0, [70.0]))
    assert "## Personal models" in text
    assert "shared" not in text
    assert "Unspecified" not in text


def test_a_bar_in_a_name_does_not_split_a_cell() -> None:
    lines = [line for line in papers.markdown(single(80.0, [70.0], "p(y|x)")).splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", line)) for line in lines} == {4}


# The verdict


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], "the paper has no two numbers to compare"),
        ([Pair("A", "B", "holds")], "1 of 1 pairs of methods in the paper's order"),
        (
            [Pair("A", "B", "holds"), Pair("A", "C", "level"), Pair("B", "C", "level")],
            "1 of 3 pairs of methods in the paper's order; 2 level",
        ),
        (
            [Pair("A", "B", "reversed"), Pair("A", "C", "level"), Pair("B", "C", "reversed"), Pair("A", "D", "holds")],
            "1 of 4 pairs of methods in the paper's order; 1 level; 2 reversed (B over A, C over B)",
        ),
    ],
)
def test_verdict(pairs: list[Pair], expected: str) -> None:
    assert papers.verdict(pairs) == expected


# The terminal


def test_grid() -> None:
    text = rendered(papers.grid(outcome(), "personal"))
    assert "Table 0, a miniature: personal models, accuracy in %" in " ".join(text.split())
    assert "80.0 → 71.0 ± 1.0" in text
    assert "75.0 → 78.0 ± 1.0" in text
    assert "– → 66.6 ± 0.0" in text
    assert "81.2 → 80.0" in text
    assert "paper → ours ± standard error over 2 seeds" in " ".join(text.split())
    shared = rendered(papers.grid(outcome(seeds=1), "global"))
    assert "50.0 → 55.0" in shared
    assert "standard error" not in shared
    assert "the shared model" in " ".join(shared.split())
    assert "78.0" not in shared


def test_brackets_are_kept_in_the_terminal() -> None:
    assert "FedMAP [ours]" in rendered(papers.grid(single(80.0, [70.0], "FedMAP [ours]"), "personal"))


# The page


def test_a_page_is_sound_and_has_every_number() -> None:
    page = Page(papers.page(outcome(unknown=["the learning rate"])))
    text = "\n".join(page.text)
    for cell in ("80.0 → 71.0 ± 1.0", "75.0 → 78.0 ± 1.0", "– → 66.6 ± 0.0", "81.2 → 80.0", "50.0 → 55.0"):
        assert cell in text
    assert "0 of 1 pairs of methods in the paper's order; 1 reversed (B over A)" in text
    assert "the learning rate" in text
    assert "2024-05-06" in text
    assert [tag for tag, _ in page.elements].count("svg") == 4
    assert [tag for tag, _ in page.elements].count("figcaption") == 4
    assert [tag for tag, _ in page.elements].count("h2") == 3


def test_a_page_needs_nothing_else() -> None:
    """No script, and no address to load anything from."""
    text = papers.page(outcome())
    assert not re.search(r"https?://|<script|<link|<img|url[(]", text)


def test_names_are_escaped() -> None:
    """Whatever stands in a table's file is text on the page."""
    nasty = "<b>&'\"</svg>"
    found = outcome(
        name=f"small/{nasty}",
        title=nasty,
        paper=nasty,
        columns=[nasty],
        rows=[nasty, "B"],
        cells={"personal": {nasty: {nasty: Number(80.0, [70.0])}, "B": {nasty: Number(70.0, [80.0])}}},
        unknown=[nasty],
        stand_in=nasty,
    )
    page = Page(papers.page(found))
    plain = Page(papers.page(outcome(**{**vars(found), **_harmless(found)})))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements], "it makes no elements"
    text = "".join(page.text)
    assert f"reversed (B over {nasty})" in text
    assert text.count(nasty) == 8, "page title, title, paper, stand-in, column, label, verdict, what is open"


def _harmless(found: Outcome) -> dict[str, Any]:
    number = found.cells["personal"]["B"][found.columns[0]]
    cells = {"personal": {"A": {"x": number._replace(paper=80.0, values=[70.0])}, "B": {"x": number}}}
    names = {"name": "x", "title": "x", "paper": "x", "columns": ["x"], "rows": ["A", "B"], "unknown": ["x"]}
    return {**names, "stand_in": "x", "cells": cells}


# Drawings


def drawn(found: Outcome, column: str = "all") -> dict[str, Any]:
    """The only data of a column's drawing, row by row, by method."""
    entries = []
    for row in found.cells["personal"]:
        number = found.number("personal", row, column)
        assert number is not None
        entries.append(Entry(row, number.paper, number.ours, number.error, words.cell(number)))
    chart = drawing(entries)
    assert chart is not None
    [rows] = spec(chart)["datasets"].values()
    return {row["method"]: row for row in rows}


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(single(None, [71.0]), id="one value"),
        pytest.param(single(71.0, [71.0]), id="the same value twice"),
        pytest.param(single(71.0, []), id="the paper's alone"),
        pytest.param(single(0.0, [0.0]), id="zero"),
        pytest.param(single(71.0, [71.0 + 1e-12]), id="almost the same"),
        pytest.param(single(80.0, [20.0, 90.0]), id="a wide error"),
        pytest.param(single(47.3, [57.4]), id="numbers that are not round"),
        pytest.param(single(None, [0.0, 100.0]), id="an error alone"),
    ],
)
def test_a_drawing_has_round_ticks(found: Outcome) -> None:
    """Ticks are multiples of 1, 2 or 5 times a power of ten, evenly spaced, and within the drawing."""
    [picture] = re.findall(r"<svg.*?</svg>", papers.page(found), re.DOTALL)
    ET.fromstring(picture)
    told = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    ticks = [float(t.replace("−", "-").replace(",", "")) for t in told if re.fullmatch(r"[−\d.,]+", t)]
    assert len(ticks) >= 2
    steps = [round(b - a, 9) for a, b in itertools.pairwise(ticks)]
    assert len(set(steps)) == 1
    assert f"{steps[0]:e}"[0] in "125"


def test_places_in_the_drawing() -> None:
    """Paper 80 and ours 68 and 72: the dot is at 70 and its error is √8 / √2 = 2; the bar has two."""
    row = drawn(single(80.0, [68.0, 72.0]))["A"]
    assert (row["paper"], row["ours"]) == (80.0, 70.0)
    assert (row["low"], row["high"]) == pytest.approx((66.0, 74.0))
    assert row["told"] == "80.0 → 70.0 ± 2.0 (-10.0)"


def test_what_has_no_number_is_not_drawn() -> None:
    """One seed has no error, a row of the paper alone no dot, a model that diverged neither; all keep their line."""
    cells: dict[str, Any] = {"A": Number(80.0, [70.0]), "B": Number(75.0, []), "C": Number(None, [math.nan, 1.0])}
    rows = drawn(outcome(cells={"personal": {name: {"all": number} for name, number in cells.items()}}))
    assert list(rows) == ["A", "B", "C"]
    assert [row["ours"] for row in rows.values()] == [70.0, None, None]
    assert [row["paper"] for row in rows.values()] == [80.0, 75.0, None]
    assert {row["low"] for row in rows.values()} == {None}


def test_a_column_without_numbers_has_no_picture() -> None:
    found = single(80.0, [70.0])
    found.columns.append("few")
    assert papers.page(found).count("<svg") == 1


def test_the_page_explains_itself() -> None:
    """A legend, and the command that gives the numbers again."""
    text = "".join(Page(papers.page(outcome())).text)
    assert "Ring: the paper. Dot: ours, with two standard errors over seeds." in text
    assert COMMAND in text
    assert "standard errors" not in "".join(Page(papers.page(outcome(seeds=1))).text)


def test_seconds_are_of_no_model() -> None:
    for text in (papers.markdown(outcome(metric="seconds")), papers.page(outcome(metric="seconds"))):
        assert "ersonal models" not in text
        assert "Seconds per round" in text
    assert "miniature: seconds per round\n" in rendered(papers.grid(outcome(metric="seconds"), "personal"))


def test_a_quick_page_says_so() -> None:
    assert "quick scale" in papers.page(outcome(scale="quick"))


def test_a_quick_page_is_not_the_papers() -> None:
    text = "".join(Page(papers.page(outcome(scale="quick", quick={"rounds": 3}))).text)
    assert "not the paper's setting" in text.lower()
    assert "Every run has rounds = 3." in text


# Files


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize("name", ["table0", "table0-α0.1", "table0-quick"])
def test_write(name: str, tmp_path: Path) -> None:
    """Three files with the stem's whole name, and nothing else; the JSON has null where there is no number."""
    found = outcome()
    written = papers.write(found, tmp_path / "results" / name)
    assert written == [tmp_path / "results" / f"{name}{suffix}" for suffix in (".json", ".md", ".html")]
    assert set((tmp_path / "results").iterdir()) == set(written)
    assert written[1].read_text() == papers.markdown(found)
    assert written[2].read_text() == papers.page(found)
    document = json.loads(written[0].read_text(), parse_constant=no_constant)
    cells = document["cells"]
    few = cells["personal"]["A"]["few"]
    assert few.pop("delta") == pytest.approx(-1.21)
    assert few == {"paper": 81.25, "ours": 80.04, "error": None, "values": [80.04]}
    assert cells["global"]["A"]["few"] == {"paper": 51.0, "ours": None, "delta": None, "error": None, "values": []}
    assert cells["personal"]["A"]["all"]["ours"] == 71.0
    assert document["ranking"]["personal"]["all"] == [{"better": "A", "worse": "B", "verdict": "reversed"}]
    again = {
        kind: {row: {c: Number(n["paper"], n["values"]) for c, n in columns.items()} for row, columns in rows.items()}
        for kind, rows in cells.items()
    }
    fields = {k: v for k, v in document.items() if k not in ("cells", "ranking")}
    assert Outcome(**fields, cells=again) == found


def test_both_means_where_the_paper_counts_examples() -> None:
    """The table is in the paper's mean, and says so; the mean over clients, of two seeds here, stands below it."""
    number = Number(80.0, [70.0, 72.0], (60.0, 61.0))
    found = outcome(per="example", rows=["A"], columns=["all"], cells={"personal": {"A": {"all": number}}})
    text = papers.markdown(found)
    assert "accuracy in % of all test examples together" in text
    assert "| A | 80.0 → 71.0 ± 1.0 (-9.0) |" in text
    below = text[text.index("Ours as the mean over clients:") :]
    assert "| method | all |\n|---|---|\n| A | 60.5 |\n" in below
    assert "mean over clients" not in papers.markdown(outcome())
