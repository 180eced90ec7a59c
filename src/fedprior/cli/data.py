"""`fedprior data`: list, fetch and import data sets, and describe federations."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fedprior.cli.arguments import Json
from fedprior.cli.screen import screen
from fedprior.cli.signals import interruptible
from fedprior.names import visible

if TYPE_CHECKING:
    from fedprior.data.federation import Federation
    from fedprior.data.store import StoredManifest
    from fedprior.report.portrait import Portrait

app = typer.Typer(help="The data sets, and what a federation looks like.", no_args_is_help=True)
Force = Annotated[bool, typer.Option("--force", help="replace the stored copy")]
Name = Annotated[str, typer.Argument(help="data set, see `fedprior data list`")]
LINES = 5.0
"""Seconds between two lines of progress without a terminal."""


@app.command("list")
def list_data(as_json: Json = False) -> None:
    """List the data sets and the ways to partition them over clients.

    Example: fedprior data list
    """
    from fedprior.data.datasets import catalogue

    entries = [entry | _stored(entry["name"]) for entry in catalogue()]
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    grid = Grid.grid(padding=(0, 1))
    for entry in entries:
        state = f"\n{_state(entry)}" if "state" in entry else ""
        options = f"\noptions: {', '.join(entry['options'])}"
        grid.add_row(Text(entry["name"], "bold", no_wrap=True), Text.assemble(entry["about"], state, (options, "dim")))
    screen().print(grid)


def _stored(name: str) -> dict[str, Any]:
    """The state of a data set, if it is one that is stored."""
    from fedprior.data import store
    from fedprior.data.registry import DATASETS

    needs = DATASETS[name].stored if name in DATASETS else ()
    if needs and needs != (name,):
        missing = [part for part in needs if store.status(part).state != "stored"]
        return {"state": "absent" if missing else "stored", "needs": list(needs), "missing": missing}
    if name not in store.RECORDS:
        return {}
    found = store.status(name)
    return {
        "state": found.state,
        "bytes": found.bytes,
        "examples": dict(found.examples or {}),
        "folder": str(found.folder),
        "fetchable": found.fetchable,
        "note": found.note,
    }


def _state(entry: dict[str, Any]) -> str:
    from fedprior.report.tables import size

    if "needs" in entry:
        return f"made of {', '.join(entry['needs'])}" + (
            f"; not stored: {', '.join(entry['missing'])}" if entry["missing"] else ", all stored"
        )
    if entry["state"] != "stored":
        how = "fetch " + entry["name"] if entry["fetchable"] else f"import {entry['name']} FILE..."
        force = " --force" if entry["state"] == "damaged" else ""
        return f"{'not stored' if entry['state'] == 'absent' else 'damaged'}: `fedprior data {how}{force}`"
    examples = " + ".join(f"{n:,}" for n in entry["examples"].values())
    return f"stored, {size(entry['bytes'])}, {examples} examples" + (f"; {entry['note']}" if entry["note"] else "")


@app.command("fetch")
def fetch(name: Name, force: Force = False) -> None:
    """Download a data set, check it and store it; an interrupted download is continued.

    Example: fedprior data fetch heart_disease
    """
    from fedprior.data import store

    with interruptible(lambda: "run it again to continue"), _bar() as tell:
        manifest = store.fetch(name, progress=tell, force=force)
    _told(manifest)


@app.command("import")
def import_data(
    name: Name,
    files: Annotated[list[Path], typer.Argument(help="files, folders or archives that contain it")],
    force: Force = False,
) -> None:
    """Check files that you have, and store them as a data set.

    Example: fedprior data import mnist ~/Downloads/mnist
    """
    from fedprior.data import store

    console = Console(stderr=True)
    with interruptible(lambda: "run it again to continue"), console.status(Text(visible(f"reading {name}"))):
        manifest = store.import_files(name, files, force=force)
    _told(manifest)


def _told(manifest: StoredManifest) -> None:
    from fedprior.data.store import data_dir
    from fedprior.report.tables import size

    note = f" ({manifest.note})" if manifest.note else ""
    told = f"{manifest.name}: {size(manifest.bytes)} from {manifest.source}, in {data_dir() / manifest.name}{note}"
    print(visible(told))


@contextmanager
def _bar() -> Iterator[Any]:
    """Bytes, speed and remaining time: a bar on a terminal, otherwise a line now and then."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task, label, said = None, "", time.monotonic()

        def tell(done: int, total: int | None, what: str) -> None:
            nonlocal task, label, said
            if task is None or what != label:  # speed is measured per file
                if task is not None:
                    bar.remove_task(task)
                task, label = bar.add_task(visible(what), total=total), what
            bar.update(task, completed=done, total=total)
            if not console.is_terminal and time.monotonic() - said > LINES:
                said = time.monotonic()
                share = f" of {total / 1e6:.1f}" if total else ""
                print(visible(f"{what}: {done / 1e6:.1f}{share} MB"), file=sys.stderr, flush=True)

        yield tell


@app.command("describe")
def describe(
    name: Annotated[str, typer.Argument(help="data set")],
    options: Annotated[
        list[str] | None,
        typer.Argument(help="options of the data set and its partition, such as data.partition=dirichlet"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="seed of the partition")] = 0,
    as_json: Json = False,
    png: Annotated[Path | None, typer.Option("--png", help="draw it as this PNG file")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="draw it as this SVG file")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="draw it as this self-contained web page")] = None,
) -> None:
    """Show a federation: every client's sizes and labels, and how much clients differ.

    Example: fedprior data describe digits data.partition=dirichlet data.alpha=0.3 --html digits.html
    """
    from fedprior.experiment.config import parse
    from fedprior.report import portrait, tables

    sections = {"data": {"name": name}, "method": {"name": "local"}, "seed": seed}
    federation = parse(sections, overrides=options or []).load_data()
    picture = portrait.portrait(federation)
    _draw(federation, picture, {"png": png, "svg": svg, "html": html})
    if as_json:
        clients = federation.describe().reset_index().to_dict(orient="records")
        for row, divergence in zip(clients, picture.divergence.tolist(), strict=True):
            row["divergence"] = divergence
        print(json.dumps({"clients": clients, "heterogeneity": federation.heterogeneity()}, indent=2))
        return
    console = screen(100)
    if len(federation) <= tables.SHOWN and len(picture.labels) <= 20:
        console.print(tables.federation(federation))
        console.print()
    console.print(portrait.terminal(picture, console.width), no_wrap=True, overflow="crop")
    console.print()
    for key, value in federation.heterogeneity().items():
        console.print(f"{key:>18}  {value:.3f}", highlight=False)


def _draw(federation: Federation, picture: Portrait, wanted: dict[str, Path | None]) -> None:
    if not any(wanted.values()):
        return
    from fedprior.files import write_bytes
    from fedprior.report import charts
    from fedprior.report.charts.federation import picture as drawn
    from fedprior.report.page.federation import page

    make = {
        "png": lambda: charts.png(drawn(picture)),
        "svg": lambda: charts.svg(drawn(picture)).encode(),
        "html": lambda: page(federation, picture).encode(),
    }
    for kind, path in wanted.items():
        if path is not None:
            write_bytes(path, make[kind]())
