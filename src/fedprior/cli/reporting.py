"""Commands that show what a folder holds: `fedprior report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedprior.cli.finish import PAGE
from fedprior.cli.screen import loading, say, screen


def report(
    folder: Annotated[Path, typer.Argument(help="the output folder of a run or a comparison, finished or not")],
    out: Annotated[Path | None, typer.Option("--out", help="the page; by default report.html in the folder")] = None,
) -> None:
    """Write the report of a folder: one page that needs nothing else.

    Example: fedprior report runs/hospitals
    """
    with loading("PyTorch and data", quiet=False):
        from fedprior.report.page.folder import write

        path = write(folder, out or folder / PAGE)
    say(screen(), f"report: {path}")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("report")(report)
