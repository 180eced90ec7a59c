"""`fedprior benchmark`: every method on a fixed suite of federations."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedprior.cli.arguments import Json, Quiet
from fedprior.cli.screen import loading, say, screen
from fedprior.errors import FedpriorError, unknown
from fedprior.names import on_screen

if TYPE_CHECKING:
    from fedprior.benchmark import Line

Which = Annotated[
    Literal["quick", "embedded", "all"],
    typer.Option("--suite", help="three small federations, all that need no download, or also those that were fetched"),
]
Federations = Annotated[
    str | None, typer.Option("--federations", help="only these of the suite, separated by semicolons")
]
Methods = Annotated[
    str | None,
    typer.Option(
        "--methods",
        help="comma-separated names, `mine` for those of --own; by default all",
    ),
]
Own = Annotated[
    list[Path] | None, typer.Option("--own", help="a Python file that registers a method of your own, run with them")
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=1000, help="number of seeds, counted from 0")]
Tries = Annotated[
    int, typer.Option("--tries", min=1, max=1000, help="tries per method and cell, the first with its defaults")
]
Rounds = Annotated[int | None, typer.Option("--rounds", min=1, help="maximum number of rounds; 50 by default")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="processes, one cell each")]
Out = Annotated[Path, typer.Option("--out", help="folder of the finished cells; the same command continues it")]
SoFar = Annotated[bool, typer.Option("--so-far", help="run nothing; show what is finished")]


def benchmark(
    suite: Which = "embedded",
    federations: Federations = None,
    methods: Methods = None,
    own: Own = None,
    seeds: Seeds = 5,
    tries: Tries = 5,
    rounds: Rounds = None,
    workers: Workers = 1,
    out: Out = Path("benchmark"),
    so_far: SoFar = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run every method on a fixed suite of federations with the same number of tries, and rank them.

    The best try is chosen on validation. Finished cells are kept in OUT, so your own method can be added to a benchmark
    that is done:

        fedprior benchmark --suite quick --seeds 1 --tries 2 --out bench

        fedprior benchmark --suite quick --seeds 1 --tries 2 --out bench --own my_method.py --methods mine
    """
    with loading("PyTorch", quiet=quiet or as_json):
        from fedprior.benchmark import Cell, Plan, places, read_lines, run_cells
        from fedprior.report.benchmark import rank_table, write_files

        chosen = _chosen(methods, own or [])
    there, missing = (_among(names, federations) for names in places(suite))
    cells = [Cell(place, seed, name) for seed in range(seeds) for place in there for name in chosen]
    plan = Plan(cells, tries, rounds, tuple(own or ()))
    if missing and not quiet:
        print(f"skipped, since their data are not stored: {', '.join(missing)}", file=sys.stderr)
    if not cells and not so_far:
        raise FedpriorError(f"nothing to run: of these federations, none is in the suite '{suite}' and stored here.")
    lines = read_lines(out) if so_far else run_cells(plan, out, workers, None if quiet else _tell)
    if not lines:
        raise FedpriorError(f"'{out}' has no finished cell yet: run the benchmark without --so-far.")
    found = write_files(lines, out)
    if as_json:
        print(json.dumps(found, indent=1))
    elif not quiet:
        console = screen(130)
        console.print(rank_table(lines))
        say(console, f"cells, figures and ranks: {out}")


def _among(names: list[str], federations: str | None) -> list[str]:
    """Those of a suite that were asked for."""
    from fedprior.benchmark.suite import PLACES

    if federations is None:
        return names
    given = [name.strip() for name in federations.split(";") if name.strip()]
    for name in given:
        if name not in PLACES:
            raise unknown("federation", name, PLACES)
    return [name for name in names if name in given]


def _chosen(methods: str | None, own: list[Path]) -> list[str]:
    """The methods to run, those of the user's files first."""
    from fedprior.benchmark.own import load_own
    from fedprior.methods import METHODS, build

    mine = [name for path in own for name in load_own(path)]
    if methods is None:
        return [*mine, *(name for name in METHODS if name not in mine)]
    given = [name.strip() for name in methods.split(",") if name.strip()]
    if "mine" in given and not mine:
        raise FedpriorError("--methods mine needs the file that registers your method: add --own FILE.py.")
    names = [each for name in given for each in (mine if name == "mine" else [name])]
    for name in names:
        if name.split("+", maxsplit=1)[0] not in METHODS:
            raise unknown("method", name, METHODS)
        build(name)
    return list(dict.fromkeys(names))


def _tell(line: Line, left: int) -> None:
    found = line.refused or f"NLL {line.nll}, accuracy {line.accuracy}, {line.cpu_seconds} s"
    told = f"{line.federation}, seed {line.seed}, {line.method}: {found} ({left} left)"
    print(on_screen(told, 200), file=sys.stderr, flush=True)
