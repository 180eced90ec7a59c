"""`fedprior papers` and `fedprior reproduce`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table as Grid

from fedprior.cli.arguments import count
from fedprior.cli.screen import say, screen
from fedprior.errors import FedpriorError

if TYPE_CHECKING:
    from fedprior.papers import Outcome, Scale, Table


def duration(minutes: float) -> str:
    """`45 min`, `1.5 h`."""
    return f"{minutes / 60:.1f} h" if minutes >= 60 else f"{minutes:.0f} min"


def papers(as_json: Annotated[bool, typer.Option("--json", help="print it as JSON")] = False) -> None:
    """List the papers' tables and figures: what was run of each, at which scale, and which data it still needs.

    Example: fedprior papers
    """
    from fedprior.papers import listing
    from fedprior.papers.extent import part_run, ran

    tables = listing()
    scales: tuple[Scale, ...] = ("paper", "quick")
    if as_json:
        entries = [
            {
                "name": table.name,
                "title": table.title,
                "paper": table.paper,
                "state": table.state,
                "part": part_run(table, "paper"),
                "results": [s for s in scales if table.has_results(s)],
                "ran": {s: told for s in scales if (told := ran(table, s))},
                "missing": table.missing,
                "seeds": table.seeds,
                "minutes": table.minutes,
                "rows": list(table.rows),
                "columns": list(table.columns),
            }
            for table in tables
        ]
        print(json.dumps(entries, indent=2))
        return
    caption = "run: at the paper's scale, and at quick scale with what that changes; time: all seeds on two cores"
    grid = Grid(title="Tables and figures of the papers", title_justify="left", caption=caption)
    for column in ("name", "title", "run", "data missing here", "time"):
        grid.add_column(column)
    for table in tables:
        done = [ran(table, "paper"), f"quick, {told}" if (told := ran(table, "quick")) else ""]
        cells = (table.name, table.title, "\n".join(filter(None, done)) or "–", ", ".join(table.missing) or "–")
        grid.add_row(*map(escape, cells), duration(table.minutes) if table.minutes else "–")
    screen().print(grid)
    print("run one with `fedprior reproduce NAME`, or in minutes with `fedprior reproduce NAME --scale quick`")


def reproduce(
    name: Annotated[str, typer.Argument(help="table, see `fedprior papers`")],
    scale: Annotated[
        Literal["paper", "quick"], typer.Option(help="the paper's setting, or a version that takes minutes")
    ] = "paper",
    seeds: Annotated[int | None, typer.Option(min=1, help="number of seeds; by default the table's own")] = None,
    rows: Annotated[str | None, typer.Option(help="only these rows, comma-separated")] = None,
    columns: Annotated[str | None, typer.Option(help="only these columns, comma-separated")] = None,
    workers: Annotated[str | None, typer.Option(help="worker processes, or auto")] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the runs; an existing one is continued")] = None,
    save: Annotated[
        bool, typer.Option("--save", help="also merge partial results into those beside the table")
    ] = False,
    more: Annotated[
        bool, typer.Option("--more", help="only runs that the results beside the table lack, added to these")
    ] = False,
    so_far: Annotated[bool, typer.Option("--so-far", help="run nothing; print what is finished")] = False,
    search: Annotated[bool, typer.Option("--search", help="choose unspecified settings on validation data")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="print only errors")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the outcome as JSON")] = False,
) -> None:
    """Run a paper's table, or continue it, and print the paper's numbers beside ours.

    With --search, first choose the settings that the paper does not specify: every method tries equally many on a
    validation part of the training data, and later runs of the table use the best ones.

    Example: fedprior reproduce fedmap/table1 --scale quick
    """
    from fedprior.cli.progress import RunProgress
    from fedprior.experiment.config import Settings
    from fedprior.experiment.journal import jsonable
    from fedprior.options import plain_errors
    from fedprior.papers import find, saved
    from fedprior.papers import reproduce as run
    from fedprior.papers.reproduce import left
    from fedprior.report import papers as report

    table = find(name)
    folder = out or Path("runs") / "papers" / name / ("search" if search else scale)
    processes: Any = count(workers or "auto")
    with plain_errors("configuration"):
        Settings(workers=processes)
    if search:
        given = {"--rows": rows, "--columns": columns, "--seeds": seeds, "--so-far": so_far or None}
        given |= {"--more": more or None}
        for option, value in given.items():
            if value is not None:
                raise FedpriorError(f"a search is the same for every method: leave out {option}.")
        _search(table, folder, processes, quiet=quiet, as_json=as_json)
        return
    part: dict[str, Any] = {
        "scale": scale,
        "seeds": seeds,
        "rows": rows.split(",") if rows else None,
        "columns": columns.split(",") if columns else None,
    }
    whole = not any((rows, columns, seeds, so_far, more))  # what is less must not replace results
    known = saved.to_extend(table, scale) if more else None
    if save and not whole:
        saved.beside(table, scale)  # damaged results are noticed before anything is run
    again = f"`fedprior reproduce {name}` with the same options"
    runs, minutes = (0, 0.0) if so_far else left(table, folder, **part, known=known)
    if not quiet and not as_json and minutes > 2:
        said = f"{runs} run{'s' if runs != 1 else ''} left, about {duration(minutes)} on two cores"
        print(f"{table.name}: {said}; it can be interrupted.", file=sys.stderr)
    with RunProgress(quiet=quiet or as_json, again=again, runs=runs) as show:
        outcome = run(table, folder, show, **part, settings={"workers": processes}, so_far=so_far, known=known)
    beside = (whole or save or more) and os.access(table.path.parent, os.W_OK)
    if beside and not whole:
        outcome = saved.merged(table, outcome, known, more=more)
    written = report.write(outcome, table.results(scale) if beside else folder / "table")
    if as_json:
        print(json.dumps(jsonable(outcome.document()), indent=2))
    elif not quiet:
        _print(outcome, written)


def _print(outcome: Outcome, written: list[Path]) -> None:
    """Print the table, whether the paper's order holds, and which files were written."""
    from fedprior.report import papers as report

    console = screen()
    for kind in report.KINDS:
        if outcome.cells.get(kind):
            console.print(report.grid(outcome, kind))
            for column in outcome.columns:
                told = f"{column}: {report.verdict(outcome.ranking(kind, column))}"
                say(console, told)
    if outcome.scale == "quick":
        say(console, f"{report.QUICK}: {report.quick(outcome)}")
    say(console, "written: " + ", ".join(str(path) for path in written))


def _search(table: Table, folder: Path, workers: int | str, *, quiet: bool, as_json: bool) -> None:
    """Search, store the choices, and print the results."""
    from fedprior.cli.progress import RunProgress
    from fedprior.experiment.journal import jsonable
    from fedprior.papers.search import search, write
    from fedprior.report import papers as report

    with RunProgress(quiet=quiet or as_json, again=f"`fedprior reproduce {table.name} --search`") as show:
        found = search(table, folder, show, settings={"workers": workers})
    path = table.choices if os.access(table.path.parent, os.W_OK) else folder / "search.json"
    write(found, path)
    if as_json:
        print(json.dumps(jsonable(found), indent=2))
    elif not quiet:
        console = screen()
        console.print(report.choices(found))
        say(console, f"written: {path}")
