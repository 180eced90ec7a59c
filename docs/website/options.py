"""Tables of options in Markdown."""

from __future__ import annotations

from typing import Any

from fedprior.report.options import options


def table(thing: Any) -> str:
    """A Markdown table: name, default, range, meaning."""
    lines = ["| option | default | range | meaning |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {default} | {range_} | {meaning} |" for name, default, range_, meaning in options(thing)]
    return "\n".join(lines) if len(lines) > 2 else "No options of its own."
