"""A paper's figure drawn from an outcome: a table of kinds, each from rows to charts with titles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedprior.data.heterogeneity import divergence
from fedprior.names import apart
from fedprior.papers.outcome import Outcome
from fedprior.report.charts import palette
from fedprior.report.charts.federation import picture
from fedprior.report.charts.figures import by_examples, by_group, by_setting
from fedprior.report.charts.outcomes import curves
from fedprior.report.page.blocks import Figure
from fedprior.report.papers import words
from fedprior.report.portrait import LABEL, Portrait

Line = dict[str, Any]
Draw = Callable[[Outcome], Iterator[Figure]]


def figures(outcome: Outcome) -> list[Figure]:
    """The charts of a figure; none for a table."""
    return list(KINDS[outcome.figure["draw"]](outcome)) if outcome.figure else []


def _by(lines: Sequence[Line], *keys: str) -> dict[tuple[Any, ...], list[Line]]:
    """Lines grouped by some of their fields, in the order in which these appear."""
    found: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        found.setdefault(tuple(line[key] for key in keys), []).append(line)
    return found


def _distinct(lines: Sequence[Line], key: str) -> list[str]:
    return list(dict.fromkeys(line[key] for line in lines))


def _first_seed(outcome: Outcome) -> list[Line]:
    return [line for line in outcome.drawn if line["seed"] == 0]


def _point(number: int, value: float, series: str) -> Line:
    return {"round": number, "value": value, "series": series, "split": "test", "selected": False}


def _over_rounds(outcome: Outcome) -> Iterator[Figure]:
    """A panel per column, a line per method, the mean over seeds."""
    for (column,), lines in _by(outcome.drawn, "column").items():
        means = {key: statistics.fmean(x["value"] for x in found) for key, found in _by(lines, "row", "round").items()}
        points = [_point(number, value, row) for (row, number), value in means.items()]
        yield Figure(curves(points, palette(_distinct(lines, "row")), words.WHAT[outcome.metric]), column)


def _each_over_rounds(outcome: Outcome) -> Iterator[Figure]:
    """A panel per column and method, a line per client, of the first seed."""
    for (column, row), lines in _by(_first_seed(outcome), "column", "row").items():
        clients = _distinct(lines, "client")
        named = dict(zip(clients, apart(clients), strict=True))
        points = [_point(line["round"], line["value"], named[line["client"]]) for line in lines]
        yield Figure(curves(points, palette(list(named.values())), words.WHAT[outcome.metric]), f"{column}: {row}")


def _each(outcome: Outcome) -> Iterator[Figure]:
    """A panel per column and quantity: clients by their examples or their corruption, a colour per method."""
    for (column, quantity), lines in _by(outcome.drawn, "column", "quantity").items():
        title, series = words.WHAT.get(quantity, quantity), palette(_distinct(lines, "row"))
        rows = [line | {"series": line["row"]} for line in lines]
        if outcome.figure["by"] == "corruption":
            rows = [row | {"group": row["corruption"].replace("_", " ")} for row in rows]
            chart = by_group(rows, series, title)
        else:
            chart = by_examples(rows, series, title)
        yield Figure(chart, f"{column}: {title}")


def _over_settings(outcome: Outcome) -> Iterator[Figure]:
    """One panel: the columns across, a line per method, two standard errors over seeds."""
    rows: list[Line] = []
    for row in words.shown(outcome, "personal"):
        for column in outcome.columns:
            number = outcome.number("personal", row, column)
            if number is not None and math.isfinite(number.ours):
                noise = 2 * number.error if math.isfinite(number.error) else 0.0
                ends = {"low": number.ours - noise, "high": number.ours + noise}
                rows.append({"setting": column, "value": number.ours, "series": row} | ends)
    yield Figure(by_setting(rows, palette(_distinct(rows, "series")), words.WHAT[outcome.metric]), outcome.title)


def _partition(outcome: Outcome) -> Iterator[Figure]:
    """A portrait of each column's federation, of the first seed."""
    for (column,), lines in _by(_first_seed(outcome), "column").items():
        counts = np.asarray([list(line["counts"].values()) for line in lines], dtype=np.int64)
        own, everyone, sizes = counts / counts.sum(1, keepdims=True), counts.sum(0) / counts.sum(), counts.sum(1)
        names, labels = tuple(apart(_distinct(lines, "client"))), apart(list(lines[0]["counts"]), LABEL)
        numbers = {"clients": len(lines), "least": sizes.min(), "median": np.median(sizes), "most": sizes.max()}
        told = {name: float(number) for name, number in numbers.items()}
        yield Figure(picture(Portrait(column, names, labels, counts, divergence(own, everyone), told)), column)


KINDS: Mapping[str, Draw] = {
    "curves": _over_rounds,
    "client curves": _each_over_rounds,
    "clients": _each,
    "settings": _over_settings,
    "partition": _partition,
}
