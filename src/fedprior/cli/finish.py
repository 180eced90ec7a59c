"""What the commands leave at the end of runs and comparisons: tables on the screen, and `report.html`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedprior.cli.screen import say, screen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedprior.experiment import Assessment, Comparison, Result

PAGE = "report.html"


def free(stem: str) -> Path:
    """`runs/<stem>`, with a number appended if that exists."""
    folder, k = Path("runs") / stem, 2
    while folder.exists():
        folder, k = Path("runs") / f"{stem}-{k}", k + 1
    return folder


def finish(found: Result | Comparison | Assessment, folder: Path, *, quiet: bool, as_json: bool, page: bool) -> None:
    """Print what came of a run or comparison, and write its page."""
    from fedprior.experiment import Assessment, Result
    from fedprior.experiment.journal import jsonable
    from fedprior.report import tables

    if isinstance(found, Assessment):
        assessed(found, folder, quiet=quiet, as_json=as_json, page=page)
        return
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
    for told in _learned(results):
        say(console, told)
    if not isinstance(found, Result):
        say(console, found.verdict)
    say(console, f"results: {folder}" + (f", report: {folder / PAGE}" if page else ""))


def _learned(results: Mapping[str, Result]) -> list[str]:
    """What methods say of what they learned and of privacy, with their names if there are several."""
    from fedprior.experiment.wording import privacy

    return [
        f"{result.method.about.title}: {sentence}" if len(results) > 1 else sentence
        for result in results.values()
        for sentence in [*result.explanation.sentences, *privacy(result.summary)]
    ]


def _details(results: Mapping[str, Result], width: int) -> list[Any]:
    """Tables of individual clients and of what a single method learned, if they fit on the screen."""
    from fedprior.report import tables
    from fedprior.report.explained import explained

    if len(results) == 1:
        (result,) = results.values()
        return [tables.clients(result), *explained(result.explanation)]
    return [tables.by_client(results)] if 20 + 11 * len(results) <= width else []


def assessed(found: Assessment, folder: Path, *, quiet: bool, as_json: bool, page: bool) -> None:
    """Print a comparison over repeated splits: methods, sites, and the verdict; and write its page."""
    from fedprior.report import assessments

    if page:
        found.report(folder / PAGE)
    if as_json:
        print(json.dumps(found.verdict.document(), indent=2))
    if quiet or as_json:
        return
    console = screen(120)
    for table in (assessments.methods(found), assessments.sites(found)):
        console.print(table)
        console.print()
    say(console, found.verdict.text)
    say(console, f"results: {folder}" + (f", report: {folder / PAGE}" if page else ""))
