"""A benchmark as a table in the terminal, as files, and as the tables of docs/which-method.md."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from fedprior.benchmark import KINDS, LEVEL, PLACES, Line, Ranking, ranking
from fedprior.files import write_text
from fedprior.methods import METHODS
from fedprior.names import on_screen
from fedprior.report.tables import plain_table

HEADS = ("method", "rank by NLL", "95 %", "wins", "acc %", "NLL", "ECE %", "worst tenth %", "harmed %", "CPU s", "MB")


def title_of(name: str) -> str:
    """A method's title, with its wrappers."""
    inner, *outer = name.split("+")
    method = METHODS.get(inner)
    return "+".join([inner if method is None else method.about.title, *outer])


def _shown(value: float, digits: int = 1) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


def _cells(name: str, row: pd.Series[Any], most: int) -> list[str]:
    low, high = _shown(row["low"]), _shown(row["high"])
    part = "" if row["federations"] == most else f" of {row['federations']:.0f}"
    return [
        on_screen(title_of(name), 30),
        _shown(row["rank"]),
        f"{low} to {high}" if low != "–" else "–",
        f"{row['wins']:.0f}{part}",
        _shown(100 * row["accuracy"]),
        _shown(row["nll"], 3),
        _shown(100 * row["ece"]),
        _shown(100 * row["worst"]),
        _shown(100 * row["harmed"], 0),
        _shown(row["cpu_seconds"]),
        _shown(row["bytes"] / 1e6),
    ]


def _rows(found: Ranking) -> list[list[str]]:
    most = int(found.ranks["federations"].max()) if len(found.ranks) else 0
    return [_cells(str(name), row, most) for name, row in found.ranks.iterrows()]


def _extent(found: Ranking) -> str:
    seeds = found.figures["seeds"]
    told = f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    count = found.figures.index.get_level_values("federation").nunique()
    return f"{count} {'federation' if count == 1 else 'federations'}, {told} {'seed' if told == '1' else 'seeds'}"


def rank_table(lines: Sequence[Line]) -> Table:
    """One row per method, the best mean rank first."""
    found = ranking(lines)
    caption = "means over sites, seeds and federations, on test rows; harmed: sites more than a point below Local"
    table = plain_table(f"Ranks over {_extent(found)}", caption)
    for head in HEADS:
        table.add_column(head, justify="left" if head == "method" else "right")
    for row in _rows(found):
        table.add_row(*(Text(cell) for cell in row))
    return table


def rank_markdown(lines: Sequence[Line], kind: str | None = None, most: int | None = None) -> str:
    """The same for a page, over all federations or one kind."""
    found = ranking(lines, kind=kind)
    rows = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    rows += ["| " + " | ".join(row) + " |" for row in _rows(found)[:most]]
    what = KINDS[kind] if kind else "all kinds"
    return "\n".join([f"{what[0].upper()}{what[1:]}: {_extent(found)}.", "", *rows])


def best_markdown(lines: Sequence[Line]) -> str:
    """Per federation: the lowest NLL, the methods level with it, and Local, FedAvg and FedAvg-FT beside them."""
    figures = ranking(lines).figures["nll"].unstack("method")
    beside = [name for name in ("local", "fedavg", "fedavg_ft") if name in figures.columns]
    heads = ["federation", "lowest NLL", f"level with it (within {LEVEL['nll']})", *(title_of(name) for name in beside)]
    rows = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for federation in [name for name in PLACES if name in figures.index]:
        values = figures.loc[federation].to_dict()
        own = {str(name): float(value) for name, value in values.items() if not math.isnan(value)}
        first, *others = sorted(own, key=own.__getitem__)
        level = [title_of(name) for name in others if own[name] <= own[first] + LEVEL["nll"]]
        cells = [f"{title_of(first)} {own[first]:.3f}", ", ".join(level) or "none"]
        rows.append("| " + " | ".join([federation, *cells, *(_shown(own.get(n, math.nan), 3) for n in beside)]) + " |")
    return "\n".join(rows)


def never_markdown(lines: Sequence[Line]) -> str:
    """Methods that are level with the best nowhere, neither in NLL nor in accuracy."""
    by = {metric: ranking(lines, metric).ranks for metric in ("nll", "accuracy")}
    never = [n for n in by["nll"].index if by["nll"].loc[n, "level"] == 0 and by["accuracy"].loc[n, "level"] == 0]
    return ", ".join(sorted(title_of(str(name)) for name in never)) + "." if never else "None."


def write_files(lines: Sequence[Line], out: Path) -> dict[str, Any]:
    """figures.csv, ranks.csv and summary.json; returns the content of the last."""
    found = ranking(lines)
    write_text(out / "figures.csv", found.figures.reset_index().to_csv(index=False))
    write_text(out / "ranks.csv", found.ranks.reset_index().to_csv(index=False))
    summary = {
        "ranks": json.loads(found.ranks.reset_index().to_json(orient="records")),
        "by_kind": {
            kind: json.loads(part.reset_index().to_json(orient="records"))
            for kind in KINDS
            if len(part := ranking(lines, kind=kind).ranks)
        },
        "refused": found.refused,
    }
    write_text(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    return summary
