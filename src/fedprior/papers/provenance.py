"""Where a table's numbers come from: when, with what, for how long, by which command, and how much of the table."""

from __future__ import annotations

import shlex
import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedprior import __version__
from fedprior.papers.definition import Table
from fedprior.papers.extent import extent
from fedprior.papers.outcome import Outcome


def about(seconds: float) -> dict[str, Any]:
    """When, with what and for how long."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "version": __version__,
        "seconds": round(seconds, 1),
    }


def command(table: Table, outcome: Outcome) -> str:
    """The commands that reproduce these numbers: one for all columns with the same rows, which are usually all."""
    alike: dict[tuple[str, ...], list[str]] = {}  # rows that were run -> the columns they were run in
    for column in outcome.columns:
        seeds = Counter(row for row, where, _ in outcome.missing if where == column)
        alike.setdefault(tuple(row for row in outcome.rows if seeds[row] < outcome.seeds), []).append(column)
    parts = [_command(table, outcome, columns, list(rows)) for rows, columns in alike.items()]
    together = [f"{_command(table, outcome, outcome.columns, outcome.rows)} --so-far"] if len(parts) > 1 else []
    return " && ".join([*parts, *together])


def _command(table: Table, outcome: Outcome, columns: list[str], rows: list[str]) -> str:
    scale, every = outcome.scale, table.limited(outcome.scale, None, None)
    said = ["fedprior reproduce", outcome.name, *(["--scale quick"] if scale == "quick" else [])]
    said += [f"--columns {shlex.quote(','.join(columns))}"] if columns != every[0] else []
    said += [f"--rows {shlex.quote(','.join(rows))}"] if rows != every[1] else []
    return " ".join([*said, *([f"--seeds {outcome.seeds}"] if outcome.seeds != table.count(scale) else [])])


def part(table: Table, outcome: Outcome) -> str:
    """How much of the table this is; empty for all of it."""
    return extent(table, outcome.scale, outcome.columns, outcome.rows, outcome.seeds, len(outcome.missing))


def _commit() -> str | None:
    """The source's commit, where there is one."""
    try:
        told = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()
