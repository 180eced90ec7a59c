"""What a method learned, as tables for a terminal."""

from __future__ import annotations

import math
from typing import Any

from rich.table import Table
from rich.text import Text

from fedprior.explanation import Explanation
from fedprior.names import on_screen
from fedprior.report.tables import SHOWN, plain_table


def explained(explanation: Explanation) -> list[Table]:
    """Every table of an explanation; long ones are cut."""
    found = []
    for title, frame in explanation.tables.items():
        table = plain_table(title)
        table.add_column(Text(on_screen(frame.index.name or "")), no_wrap=True)
        for name in frame.columns:
            table.add_column(Text(on_screen(name)), justify="right", no_wrap=True)
        for label, row in frame.head(SHOWN).iterrows():
            table.add_row(Text(on_screen(label)), *(Text(_cell(value)) for value in row))
        if len(frame) > SHOWN:
            table.add_row(f"… {len(frame) - SHOWN} more")
        found.append(table)
    return found


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return on_screen(value)
    return "" if math.isnan(value) else f"{value:.3g}"
