"""Commands that show what a folder holds: `fedprior report` and `fedprior watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedprior.cli.finish import PAGE
from fedprior.cli.screen import loading, say, screen
from fedprior.cli.signals import interruptible


def report(
    folder: Annotated[Path, typer.Argument(help="the output folder of a run or a comparison, finished or not")],
    out: Annotated[Path | None, typer.Option("--out", help="the page; by default report.html in the folder")] = None,
) -> None:
    """Write the report of a run or comparison: one page that opens offline.

    Example: fedprior report runs/hospitals
    """
    with loading("PyTorch and data", quiet=False):
        from fedprior.report.page.folder import write

        path = write(folder, out or folder / PAGE)
    say(screen(), f"report: {path}")


def watch(
    folder: Annotated[Path, typer.Argument(help="the output folder of a run or a comparison")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="port on this machine; 0 takes a free one")] = 0,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="open the page in a browser")] = True,
) -> None:
    """Show the report of a run while it is in progress, in a browser on this machine; Ctrl-C ends it.

    Example: fedprior watch runs/hospitals
    """
    with loading("PyTorch", quiet=False):
        import webbrowser

        from fedprior.report.watching import Watch

        server = Watch(folder, port)
    say(screen(), f"watching {folder} at {server.url} (Ctrl-C ends it)")
    with server, interruptible(lambda: "the page is no longer served"):
        if browser:
            webbrowser.open(server.url)
        server.serve_forever()
