"""The command: parses, calls the library, prints. Whatever is wrong becomes one sentence and exit code 2."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedprior import __version__
from fedprior.cli import data, papers
from fedprior.cli.arguments import Json, Options
from fedprior.cli.screen import screen
from fedprior.errors import FedpriorError, FedpriorWarning, of_the_disk, unknown

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer has it, but exports this child of it only

app = typer.Typer(
    name="fedprior",
    help="Personalised federated learning with Bayesian methods: one personal model per site, by sharing a prior.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.command("papers")(papers.papers)
app.command("reproduce")(papers.reproduce)

Data = Annotated[str | None, typer.Option("--data", help="data set, see `fedprior data list`")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="communication rounds")]
Seed = Annotated[int | None, typer.Option("--seed", help="seed of everything")]
Workers = Annotated[
    str | None, typer.Option("--workers", help="worker processes, or auto; results do not depend on it")
]
Out = Annotated[Path | None, typer.Option("--out", help="a new folder for the results")]
File = Annotated[Path | None, typer.Option("--config", help="a TOML file with the same keys as the overrides")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print nothing but errors")]


def main() -> None:
    """Entry point: errors and warnings meant for people go to stderr, each in one line and each warning once."""
    said: set[str] = set()

    def warn(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        text = str(message) if issubclass(category, FedpriorWarning) else f"{category.__name__}: {message}"
        if text not in said:
            said.add(text)
            print(f"warning: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = warn  # type: ignore[assignment]
        try:
            sys.exit(app(standalone_mode=False, prog_name="fedprior"))  # else the parser draws boxes around its errors
        except (FedpriorError, OSError) as error:
            told = str(error if isinstance(error, FedpriorError) else of_the_disk(error))
        except UsageError as error:
            told = _usage(error)
        if told:
            Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {told}", markup=False, emoji=False)
        sys.exit(2)


def _usage(error: Any) -> str:
    """What the parser says about options and commands, in one line; nothing where it has printed the help."""
    said = " ".join(error.format_message().split())
    stop = "" if said.endswith((".", "?")) else "."
    return f"{said}{stop} See `{error.ctx.command_path if error.ctx else 'fedprior'} --help`." if said else ""


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedprior {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None:
    pass


def _free(stem: str) -> Path:
    """`runs/<stem>`, with a number behind it when that is taken."""
    folder, k = Path("runs") / stem, 2
    while folder.exists():
        folder, k = Path("runs") / f"{stem}-{k}", k + 1
    return folder


def _finish(results: dict[str, Any], folder: Path, *, quiet: bool, as_json: bool) -> None:
    from fedprior.experiment.journal import jsonable
    from fedprior.report import tables

    if as_json:
        single = next(iter(results.values())).summary if len(results) == 1 else None
        document = single or {name: result.summary for name, result in results.items()}
        print(json.dumps(jsonable(document), indent=2))
        return
    if quiet:
        return
    console = screen(120)
    if len(results) > 1:
        console.print(tables.comparison(results, wide=console.width >= 110))
        console.print()
    for table in _details(results, console.width):
        console.print(table)
        console.print()
    console.print(f"results: {folder}", highlight=False)


def _details(results: dict[str, Any], width: int) -> list[Any]:
    """Client by client, as far as it fits on the screen."""
    from fedprior.report import tables

    if len(results) == 1:
        return [tables.clients(next(iter(results.values())))]
    return [tables.by_client(results)] if 20 + 11 * len(results) <= width else []


@app.command()
def run(
    options: Options = None,
    method: Annotated[str | None, typer.Option("--method", help="method, see `fedprior methods`")] = None,
    data: Data = None,
    rounds: Rounds = None,
    seed: Seed = None,
    workers: Workers = None,
    out: Out = None,
    config: File = None,
    reference: Annotated[
        bool, typer.Option("--local/--no-local", help="train Local beside it, at the same budget")
    ] = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train one method; leaves summary.json and models/<client>.safetensors in the output folder."""
    from fedprior.cli.progress import Show
    from fedprior.experiment import folder
    from fedprior.experiment.config import parse

    document = parse(_sections(method, data, rounds, seed, workers), file=config, overrides=options or [])
    target = out or _free(f"{document.method['name']}-{document.data['name']}-seed{document.seed}")
    with Show(quiet=quiet or as_json) as show:
        result = folder.start(document, target, show, reference=reference)
    _finish({result.name: result}, target, quiet=quiet, as_json=as_json)


@app.command()
def compare(
    options: Options = None,
    methods: Annotated[str | None, typer.Option("--methods", help="names with commas between, or `all`")] = None,
    data: Data = None,
    rounds: Rounds = None,
    seed: Seed = None,
    workers: Workers = None,
    out: Out = None,
    config: File = None,
    baselines: Annotated[
        bool, typer.Option("--baselines/--no-baselines", help="always run Local and FedAvg-FT too")
    ] = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train several methods on the same partition from the same weights; one sub-folder each.

    Options of one method are given as methods.NAME.key=value.
    """
    from fedprior.cli.progress import Show
    from fedprior.experiment import folder
    from fedprior.experiment.config import parse
    from fedprior.protocol import METHODS

    document = parse(_sections(None, data, rounds, seed, workers), file=config, overrides=options or [], several=True)
    named = list(METHODS) if methods == "all" else [m for m in (methods or "").split(",") if m]
    chosen = {name: document.methods.get(name, {}) for name in named or document.methods}
    for name in [*chosen, *document.methods]:
        if name.split("+")[0] not in METHODS:
            raise unknown("method", name, METHODS)
    if not chosen:
        raise FedpriorError("there is nothing to compare: give --methods a,b,c, or --methods all.")
    target = out or _free(f"compare-{document.data['name']}-seed{document.seed}")
    with Show(quiet=quiet or as_json) as show:
        results = folder.compare(document, chosen, target, show, baselines=baselines)
    _finish(results, target, quiet=quiet, as_json=as_json)


def _sections(
    method: str | None, data: str | None, rounds: int | None, seed: int | None, workers: str | None
) -> dict[str, Any]:
    return {
        "method": {"name": method} if method else None,
        "data": {"name": data} if data else None,
        "rounds": rounds,
        "seed": seed,
        "workers": int(workers) if workers and workers.isdecimal() else workers,
    }


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="the output folder of a run or a comparison")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Continue what was interrupted; the result is the same, bit for bit, as without the interruption."""
    from fedprior.cli.progress import Show
    from fedprior.experiment import folder as folders

    with Show(quiet=quiet or as_json) as show:
        results = folders.resume(folder, show)
    _finish(results, folder, quiet=quiet, as_json=as_json)


@app.command("methods")
def list_methods(as_json: Json = False) -> None:
    """List the methods."""
    from fedprior.experiment.catalogue import catalogue
    from fedprior.report import tables

    if as_json:
        print(json.dumps(catalogue(), indent=2))
    else:
        screen(120).print(tables.methods())


if __name__ == "__main__":
    main()
