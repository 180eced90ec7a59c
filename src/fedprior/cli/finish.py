"""What the commands leave at the end of runs and comparisons: tables on the screen, and `report.html`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedprior.cli.screen import say, screen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedprior.experiment import Comparison, Result

PAGE = "report.html"


def finish(found: Result | Comparison, folder: Path, *, quiet: bool, as_json: bool, page: bool) -> None:
    """Print what came of a run or comparison, and write its page."""
    from fedprior.experiment import Result
    from fedprior.experiment.journal import jsonable
    from fedprior.report import tables

    results = {found.name: found} if isinstance(found, Result) else found
    if page:
        found.report(folder / PAGE)
    if as_json:
        summaries = {name: result.summary for name, result in results.items()}
        print(json.dumps(jsonable(found.summary if isinstance(found, Result) else summaries), indent=2))
    if quiet or as_json:
        return
    console = screen(120)
    if len(results) > 1:
        console.print(tables.comparison(results, wide=console.width >= 110))
        console.print()
    for table in _details(results, console.width):
        console.print(table)
        console.print()
    if not isinstance(found, Result):
        say(console, found.verdict)
    say(console, f"results: {folder}" + (f", report: {folder / PAGE}" if page else ""))


def _details(results: Mapping[str, Result], width: int) -> list[Any]:
    """Tables of individual clients, if they fit on the screen."""
    from fedprior.report import tables

    if len(results) == 1:
        return [tables.clients(next(iter(results.values())))]
    return [tables.by_client(results)] if 20 + 11 * len(results) <= width else []
