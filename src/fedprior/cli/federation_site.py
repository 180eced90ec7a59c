"""What people at a site of a real federation call: its node, its checks, and what has left it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedprior.cli.arguments import Json
from fedprior.cli.screen import loading, say, screen
from fedprior.cli.signals import interruptible
from fedprior.errors import FedpriorError

Table = Annotated[Path, typer.Option("--table", help="the site's table, a CSV file")]
Port = Annotated[int, typer.Option("--port", help="a free port on the site's machine, for Flower's own use")]
MinClassRows = Annotated[
    int,
    typer.Option(
        "--min-class-rows",
        min=0,
        help="decline a method that sends the mean of a class with fewer training rows; 0: warn below 5",
    ),
]
State = Annotated[Path, typer.Option("--state", help="where the site keeps its states and its model")]


def site(
    folder: Annotated[Path, typer.Argument(help="the site's folder, as it was received")],
    table: Table,
    state: State = Path("state"),
    port: Port = 9094,
    min_class_rows: MinClassRows = 0,
) -> None:
    """Start this site's node, and keep it running until Ctrl-C.

    Example: fedprior federation site basel --table basel.csv
    """
    from fedprior.flower.certificates import check_dates
    from fedprior.flower.keep import keep_running
    from fedprior.flower.processes import environment, mark, marked, reachable, supernode
    from fedprior.flower.settings import SiteSettings

    if not table.is_file():
        raise FedpriorError(f"there is no file '{table}': give --table the site's CSV file.")
    own = SiteSettings.read(folder)
    check_dates(folder / "ca.crt")
    if marked([mark(folder)]):
        raise FedpriorError(f"the node of '{own.site}' already runs on this machine.")
    if reachable("127.0.0.1", port):
        raise FedpriorError(f"port {port} of this machine is in use by another program: choose another with --port.")
    command = supernode(folder, own.address, own.site, table, state, port, min_class_rows)
    with interruptible(lambda: "the node has ended; the same command starts it again"):
        keep_running(
            command, environment(state.absolute() / ".flwr"), lambda line: say(screen(100), line), mark=mark(folder)
        )


def doctor(
    folder: Annotated[Path, typer.Argument(help="the server's or a site's folder")],
    table: Annotated[Path | None, typer.Option("--table", help="at a site: its table")] = None,
    state: State = Path("state"),
    port: Port = 9094,
    min_class_rows: MinClassRows = 0,
    as_json: Json = False,
) -> None:
    """Check versions, certificates, clocks, ports, disk and the table, at either end.

    Example: fedprior federation doctor basel --table basel.csv
    """
    with loading("PyTorch", quiet=as_json):
        from fedprior.flower.doctor import examine

        found = examine(folder, table, state, port, min_class_rows)
    if as_json:
        print(json.dumps([entry._asdict() for entry in found], indent=2))
    else:
        for entry in found:
            mark = "FAIL" if not entry.fine else "NOTE" if entry.mind else "ok  "
            say(screen(100), f"{mark}  {entry.what}: {entry.told}")
    if not all(entry.fine for entry in found):
        raise FedpriorError(
            f"{sum(not entry.fine for entry in found)} of {len(found)} checks failed: correct them first."
        )


def audit(
    state: Annotated[Path, typer.Argument(help="the site's state folder")],
    each: Annotated[bool, typer.Option("--messages", help="list every message with its round")] = False,
    as_json: Json = False,
) -> None:
    """Show what has left this site: fields, meaning and bytes of every message.

    Example: fedprior federation audit state
    """
    from fedprior.flower.audit import audited, lines

    found = audited(state)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        for line in lines(found, each=each):
            say(screen(120), line)
