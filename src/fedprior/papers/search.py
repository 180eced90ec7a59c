"""Choosing unspecified settings: every method tries equally many and is judged on validation data.

The section [search] of a table specifies which settings are tried, in which column, and how the run is shortened; part
of the training data is held out for the choice, and test data are never used. The choices are written beside the
table, and `reproduce` uses them from then on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprior.errors import FedpriorError
from fedprior.experiment.config import Section
from fedprior.experiment.journal import jsonable
from fedprior.experiment.notebook import Observers
from fedprior.files import write_text
from fedprior.papers.definition import Table
from fedprior.papers.outcome import LESS, Kind
from fedprior.papers.provenance import about
from fedprior.papers.reproduce import Loaded, done
from fedprior.papers.values import value_of

SEED = 0


def search(
    table: Table, out: Path, observers: Observers, *, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run every row with every setting it tries, or continue; returns settings, results and choices."""
    if table.search is None or table.search.like:
        where = f": its choices come from {table.path.parent.name}/{table.search.like}" if table.search else ""
        raise FedpriorError(f"{table.name} has nothing to search{where}.")
    table.refuse([table.search.column])
    data, seconds, rows = Loaded(), 0.0, {}
    for name in table.rows:
        seen: list[float] = []
        for setting in table.tries(name):
            cell = table.cell(name, table.search.column, SEED, setting, table.search.run)
            cell = cell._replace(config=cell.config.model_copy(update=dict(settings or {})))
            summary, journal = done(cell, out / cell.folder, observers, data)
            seconds += float(summary["timing"]["seconds"])
            kind: Kind = "global" if table.rows[name].paper_global and not table.rows[name].paper else "personal"
            value = value_of(table, table.columns[table.search.column], kind, summary, journal, "validation")
            seen.append(math.nan if value is None else value / table.unit)
        if seen:
            chosen = best(table.tries(name), seen, less=table.metric in LESS)
            rows[name] = {"tried": table.tries(name), "validation": seen, "chosen": chosen}
    return {
        "table": table.name,
        "column": table.search.column,
        "run": table.search.run,
        "seed": SEED,
        "about": about(seconds),
        "rows": rows,
    }


def best(tried: list[Section], seen: list[float], *, less: bool = False) -> Section:
    """The setting with the best value, the first of equals, and never one that failed."""
    pairs = [pair for pair in zip(tried, seen, strict=True) if not math.isnan(pair[1])]
    if not pairs:
        raise FedpriorError(f"none of the settings {tried} gave a finite result: try others.")
    return (min if less else max)(pairs, key=lambda pair: pair[1])[0]


def write(found: dict[str, Any], path: Path) -> None:
    """Keep the outcome of a search."""
    write_text(path, json.dumps(jsonable(found), indent=2, ensure_ascii=False) + "\n")
