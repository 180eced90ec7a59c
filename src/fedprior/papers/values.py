"""The numbers of a cell, from the history of its run: means over clients or examples, round by round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from fedprior.errors import unknown
from fedprior.experiment.journal import Journal
from fedprior.papers.definition import Table
from fedprior.papers.outcome import LESS, TIMES, Kind
from fedprior.papers.parts import Column

Per = Literal["client", "example"]
Found = dict[int, list[tuple[float, float]]]
"""Round -> value and weight of each client."""


def value_of(
    table: Table,
    column: Column,
    kind: Kind,
    summary: Mapping[str, Any],
    journal: Journal,
    split: str = "test",
    per: Per = "client",
) -> float | None:
    """The cell's number of one kind."""
    if table.metric in TIMES:
        rounds = [e["seconds"] for e in journal.events if e["kind"] == "round"]
        return float(np.median(rounds)) if kind == "personal" else None
    means = means_of(table, column, kind, summary, journal, split, per)
    return means[_reported(table, means)] if means else None


def means_of(
    table: Table,
    column: Column,
    kind: Kind,
    summary: Mapping[str, Any],
    journal: Journal,
    split: str = "test",
    per: Per = "client",
) -> dict[int, float]:
    """The mean of each evaluated round; nan, the metric of a model that diverged, makes the mean nan too."""
    found = _found(table, column, kind, summary, journal, split, per)
    return {number: sum(v * w for v, w in pairs) / sum(w for _, w in pairs) for number, pairs in found.items()}


def spread_of(table: Table, column: Column, kind: Kind, summary: Mapping[str, Any], journal: Journal) -> float | None:
    """The standard deviation over clients in the round that is reported."""
    found = _found(table, column, kind, summary, journal, "test", "client")
    means = means_of(table, column, kind, summary, journal)
    values = [v for v, _ in found[_reported(table, means)]] if found else []
    return statistics.stdev(values) if len(values) > 1 else None


def _reported(table: Table, means: Mapping[int, float]) -> int:
    """The round that the paper reports: the last one, or the best that did not diverge."""
    finished = {number: mean for number, mean in means.items() if not math.isnan(mean)}
    if table.at == "last" or not finished:
        return max(means)
    return (min if table.metric in LESS else max)(finished, key=lambda number: finished[number])


def _found(
    table: Table, column: Column, kind: Kind, summary: Mapping[str, Any], journal: Journal, split: str, per: Per
) -> Found:
    wanted = members(column.among, summary)
    found: Found = {}
    for line in journal.rows:
        if line["model"] == kind and line["split"] == split and line["client"] in wanted:
            value, weight = line.get(table.metric), float(line["examples"]) if per == "example" else 1.0
            if value is not None:
                found.setdefault(line["round"], []).append((value, weight))
    return found


def members(among: str, summary: Mapping[str, Any]) -> set[str]:
    """The clients that a column averages over."""
    clients = summary["clients"]
    if among == "all":
        return {c["client"] for c in clients}
    if among == "smallest tenth":
        ordered = sorted(clients, key=lambda c: (c["train"], c["client"]))
        return {c["client"] for c in ordered[: math.ceil(len(clients) / 10)]}
    if among == "newcomers":
        return set(summary["newcomers"])
    if among == "original":
        return {c["client"] for c in clients} - set(summary["newcomers"])
    chosen, known = {name.strip() for name in among.split(",")}, {c["client"] for c in clients}
    for name in sorted(chosen - known):
        raise unknown("client", name, known)
    return chosen
