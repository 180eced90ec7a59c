"""A reproduced table in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text

from fedprior.papers.outcome import Kind, Outcome
from fedprior.report.papers.words import heading, of, shown, told, what


def grid(outcome: Outcome, kind: Kind) -> Group:
    """Paper, ours and the difference, for a terminal; the title, which may be wider, is printed above."""
    caption = "paper → ours" + (f" ± standard error over {outcome.seeds} seeds" if outcome.seeds > 1 else "") + " (Δ)"
    said = dict.fromkeys((heading(outcome, kind), what(outcome)))  # which may be the same
    title = Text(f"{outcome.title}: {', '.join(said)}", style="italic")
    found = Grid(caption=caption)
    found.add_column("method")
    for column in outcome.columns:
        found.add_column(escape(column), justify="right")
    for row in shown(outcome, kind):
        found.add_row(escape(row), *(of(outcome, kind, row, column) for column in outcome.columns))
    return Group(title, found)


def choices(found: Mapping[str, Any]) -> Grid:
    """The settings that a search tried, their validation results, and the choices."""
    shown = Grid(title=escape(f"{found['table']}: validation, {found['column']}"), title_justify="left")
    for column in ("method", "tried", "validation", "chosen"):
        shown.add_column(column, justify="right" if column == "validation" else "left")
    for row, entry in found["rows"].items():
        for k, (setting, value) in enumerate(zip(entry["tried"], entry["validation"], strict=True)):
            mark = "✓" if setting == entry["chosen"] else ""
            shown.add_row(escape(row) if k == 0 else "", escape(told(setting)), f"{value:.1f}", mark)
    return shown
