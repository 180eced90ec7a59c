"""How much of a table was run, at which scale and with how many seeds, whatever data are stored here."""

from __future__ import annotations

import json
from typing import Any

from fedprior.papers.definition import Scale, Table


def ran(table: Table, scale: Scale) -> str:
    """What the results beside the table hold; empty for nothing.

    At quick scale also what was changed of the paper's setting: `rounds=40: all of it, 1 seed`.
    """
    if not table.has_results(scale):
        return ""
    found, part = _saved(table, scale), part_run(table, scale)
    seeds = found.get("seeds", 0)
    count = [f"{seeds} seed{'s' if seeds != 1 else ''}"] if seeds and "seed" not in part else []
    told = ", ".join([part or "all of it", *count])
    changed = found.get("quick") or {}
    reduced = ", ".join(f"{name}={value}" for name, value in changed.items() if name != "eval_every")
    return f"{reduced}: {told}" if reduced else told


def part_run(table: Table, scale: Scale) -> str:
    """How much of the table as it is now: rows may have been added since; empty for all or nothing."""
    if not table.has_results(scale):
        return ""
    found = _saved(table, scale)
    columns = [name for name in found.get("columns", []) if name in table.columns]
    rows = [name for name in found.get("rows", []) if name in table.rows]
    missing = sum(row in rows and column in columns for row, column, _ in found.get("missing", []))
    return extent(table, scale, columns, rows, found.get("seeds", 0), missing)


def extent(table: Table, scale: Scale, columns: list[str], rows: list[str], seeds: int, missing: int) -> str:
    """How much of the table some columns and rows are if `missing` of their runs are not done; empty for all of it."""
    every = table.limited(scale, None, None)
    full = {"columns": len(every[0]), "rows": len(every[1]), "seeds": table.count(scale)}
    ours = {"columns": len(columns), "rows": len(rows), "seeds": seeds}
    said = [f"{ours[what]} of {n} {what}" for what, n in full.items() if ours[what] < n]
    runs = len(columns) * len(rows) * seeds
    if missing:
        said.append(f"{runs - missing} of {'these' if said else 'the'} {runs} runs")
    return ", ".join(said)


def _saved(table: Table, scale: Scale) -> dict[str, Any]:
    stem = table.results(scale)
    try:
        found = json.loads((stem.parent / f"{stem.name}.json").read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}
