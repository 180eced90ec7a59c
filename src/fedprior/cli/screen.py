"""Where tables are printed."""

from __future__ import annotations

import sys

from rich.console import Console


def screen(width: int = 130) -> Console:
    """Standard output, as wide as the terminal; `width` where there is none, so that a file holds whole lines."""
    return Console() if sys.stdout.isatty() else Console(width=width)
