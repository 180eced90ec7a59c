"""What a figure is drawn from: rows of plain values, from the history of a run or from its federation.

Every row has `row`, `column` and `seed`; what else depends on the kind of figure, see `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedprior.data.featureskew import Corruptions, pairs
from fedprior.data.federation import Federation
from fedprior.errors import FedpriorError
from fedprior.experiment.journal import Journal
from fedprior.papers.cell import Cell
from fedprior.papers.definition import Table
from fedprior.papers.values import means_of, members

Rows = list[dict[str, Any]]
Extract = Callable[[Table, Cell, Mapping[str, Any], Journal], Rows]
CLEAN = "none"


def drawn(table: Table, cell: Cell, summary: Mapping[str, Any], journal: Journal) -> Rows:
    """The rows of one run; none for a table."""
    if table.figure is None or table.figure.draw not in KINDS:
        return []
    origin = {"row": cell.row, "column": cell.column, "seed": cell.seed}
    return [origin | found for found in KINDS[table.figure.draw](table, cell, summary, journal)]


def curves(table: Table, cell: Cell, summary: Mapping[str, Any], journal: Journal) -> Rows:
    """`round` and `value`, the mean."""
    means = means_of(table, table.columns[cell.column], "personal", summary, journal, per=table.per)
    return [{"round": number, "value": mean / table.unit} for number, mean in sorted(means.items())]


def client_curves(table: Table, cell: Cell, summary: Mapping[str, Any], journal: Journal) -> Rows:
    """`client`, `round` and `value`."""
    wanted = members(table.columns[cell.column].among, summary)
    return [
        {"client": line["client"], "round": line["round"], "value": line[table.metric] / table.unit}
        for line in journal.rows
        if line["model"] == "personal" and line["split"] == "test" and line["client"] in wanted
        if line.get(table.metric) is not None
    ]


def clients(table: Table, cell: Cell, summary: Mapping[str, Any], journal: Journal) -> Rows:
    """`client`, `quantity`, `value` and what it is placed by: `examples` it trains on, or the `corruption` it has."""
    assert table.figure is not None
    last = max(line["round"] for line in journal.rows)
    seen = [line for line in journal.rows if line["round"] == last and line["model"] == "personal"]
    metrics = {line["client"]: line for line in seen if line["split"] == "test"}
    logs = {line["client"]: line for line in journal.logs if line["round"] == last}
    wanted, place = members(table.columns[cell.column].among, summary), _places(table, cell, summary)
    rows: Rows = []
    for quantity in table.figure.show or [table.metric]:
        source, unit = (metrics, table.unit) if any(quantity in line for line in metrics.values()) else (logs, 1.0)
        found = {name: line[quantity] / unit for name, line in source.items() if line.get(quantity) is not None}
        if not found:
            raise FedpriorError(f"{table.name} shows '{quantity}', which '{cell.row}' neither logs nor is judged by.")
        rows += [
            {"client": name, "quantity": quantity, "value": value} | place[name]
            for name, value in found.items()
            if name in wanted
        ]
    return rows


def _places(table: Table, cell: Cell, summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    known = summary["clients"]
    if table.figure is None or table.figure.by == "examples":
        return {c["client"]: {"examples": c["train"]} for c in known}
    options = {k: v for k, v in cell.config.data.items() if k in Corruptions.model_fields}
    given = [pair.corruption if pair else CLEAN for pair in pairs(Corruptions(**options), len(known))]
    return {c["client"]: {"corruption": name} for c, name in zip(known, given, strict=True)}


def partition(cell: Cell, data: Federation) -> Rows:
    """`client` and `counts`, how many training examples it has of each label; nothing is run."""
    table = data.label_counts()
    labels = [str(label) for label in table.columns]
    return [
        {"row": cell.row, "column": cell.column, "seed": cell.seed, "client": name}
        | {"counts": dict(zip(labels, map(int, counts), strict=True))}
        for name, counts in zip(data.clients, table.to_numpy(), strict=True)
    ]


KINDS: Mapping[str, Extract] = {"curves": curves, "client curves": client_curves, "clients": clients}
