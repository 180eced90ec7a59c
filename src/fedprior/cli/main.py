"""The command: parses, calls the library, prints. Every error becomes one sentence and exit code 2."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedprior import __version__
from fedprior.cli import data, federation
from fedprior.cli.after import card, export, join, predict
from fedprior.cli.arguments import Data, File, Json, Options, Out, Quiet, Rounds, Seed, Workers, WritePage, sections
from fedprior.cli.benchmark import benchmark
from fedprior.cli.compare import compare
from fedprior.cli.doctor import doctor
from fedprior.cli.finish import finish, free
from fedprior.cli.methods import methods
from fedprior.cli.papers import papers, reproduce
from fedprior.cli.reporting import report, watch
from fedprior.cli.screen import loading, replace_unknown
from fedprior.cli.signals import SAME, handled
from fedprior.cli.tune import tune
from fedprior.errors import TOO_LARGE, FedpriorError, FedpriorWarning, cut, of_the_disk, of_the_memory
from fedprior.names import visible

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer has it, but exports this child of it only

LISTS = {
    "unknown method": "fedprior methods",
    "the run names no method": "fedprior methods",
    "unknown dataset": "fedprior data list",
    "unknown partition": "fedprior data list",
    "the run names no data": "fedprior data list",
    "unknown table": "fedprior papers",
}
"""The beginning of an error, and the command to run next."""
app = typer.Typer(
    name="fedprior",
    help="Personalised federated learning with Bayesian methods: one personal model per site, by sharing a prior.",
    epilog="Exit codes: 0 done; 2 refused, with one sentence that says why; 130 and 143 interrupted. The environment "
    "variable NO_COLOR turns colours off.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point: errors and warnings go to stderr, one line each, and each warning only once."""
    replace_unknown()
    said: set[str] = set()

    def warn(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        text = str(message) if issubclass(category, FedpriorWarning) else f"{category.__name__}: {message}"
        if text not in said:
            said.add(text)
            print(f"warning: {visible(text)}", file=sys.stderr)

    with handled(), warnings.catch_warnings():
        warnings.showwarning = warn  # type: ignore[assignment]
        try:
            sys.exit(
                app(standalone_mode=False, prog_name="fedprior")
            )  # otherwise the parser draws boxes around its errors
        except (FedpriorError, OSError) as error:
            told = _with_next(str(error if isinstance(error, FedpriorError) else of_the_disk(error)))
        except UnicodeEncodeError as error:
            told = _unnameable(error)
        except (MemoryError, RuntimeError) as error:
            if not of_the_memory(error):
                raise
            told = str(TOO_LARGE)
        except UsageError as error:
            told = visible(_usage(error))
        except (KeyboardInterrupt, typer.Abort):
            print(f"interrupted: {SAME}", file=sys.stderr)
            sys.exit(130)
        if told:
            Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {told}", markup=False, emoji=False)
        sys.exit(2)


def _with_next(told: str) -> str:
    """An error with the command that lists what there is, where one does."""
    command = next((command for words, command in LISTS.items() if told.startswith(words)), None)
    return told if command is None else f"{told} See `{command}`."


def _usage(error: Any) -> str:
    """The parser's message about options and commands in one line; empty if it has printed the help."""
    said = cut(" ".join(error.format_message().split()), 400)
    stop = "" if said.endswith((".", "?")) else "."
    return f"{said}{stop} See `{error.ctx.command_path if error.ctx else 'fedprior'} --help`." if said else ""


def _unnameable(error: UnicodeEncodeError) -> str:
    """The message for a file name with a character that the locale's encoding does not have."""
    told = f"'{error.object}' cannot be written in this system's encoding, {error.encoding}"
    return visible(f"{told}: set PYTHONUTF8=1, or a locale with UTF-8 such as LC_ALL=C.UTF-8.")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedprior {__version__}")
        raise typer.Exit


GREETING = """fedprior: one personal model per site, from data that never leaves the site.

Try it on data that is built in (one minute):
  fedprior compare --methods fedmap,pfedvem --data digits data.clients=10 --rounds 10 --out runs/first

Your own table, with one row per case and a column that names the site:
  fedprior compare patients.csv --site hospital --target outcome --out runs/hospitals

A table of a paper, its numbers beside ours:
  fedprior reproduce fedmap/table1 --scale quick

`fedprior --help` lists all commands; `fedprior doctor` says what is installed."""


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(GREETING)


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
        bool, typer.Option("--local/--no-local", help="also train Local, with the same budget")
    ] = True,
    page: WritePage = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train one method; leaves summary.json and models/<client>.safetensors in the output folder.

    Example: fedprior run --method fedmap --data digits method.sigma2=15 --rounds 20 --out runs/a
    """
    with loading(f"PyTorch and {data or 'data'}", quiet=quiet or as_json):
        from fedprior import experiment
        from fedprior.cli.progress import RunProgress
        from fedprior.experiment.config import parse
        from fedprior.experiment.placing import claim

        document = parse(sections(method, data, rounds, seed, workers), file=config, overrides=options or [])
        document.build_method()  # a wrong method should not wait for the data to load
        federation = document.load_data()
        setup = document.setup(federation)
    target = out or free(f"{document.method['name']}-{document.data['name']}-seed{document.seed}")
    claim(target)
    with RunProgress(quiet=quiet or as_json, folder=target) as progress:
        result = experiment.run(
            setup.method,
            federation,
            model=setup.model,
            out=target,
            reference="local" if reference else None,
            observers=progress,
            **dict(document.settings()),
        )
    finish(result, target, quiet=quiet, as_json=as_json, page=page)


def resume(
    folder: Annotated[Path, typer.Argument(help="the output folder of a run or a comparison")],
    page: WritePage = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Continue an interrupted run or comparison; the result is the same, bit for bit, as without the interruption.

    Example: fedprior resume runs/a
    """
    with loading("PyTorch and data", quiet=quiet or as_json):
        from fedprior import experiment
        from fedprior.cli.progress import RunProgress

    with RunProgress(quiet=quiet or as_json, folder=folder) as progress:
        found = experiment.resume(folder, observers=progress)
    finish(found, folder, quiet=quiet, as_json=as_json, page=page)


def help_of(command: Callable[..., None]) -> str:
    """A command's docstring with every paragraph in one line: the terminal decides where lines end."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(text if text.startswith(" ") else text.replace("\n", " ") for text in paragraphs)


PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start here": (compare, doctor),
    "After training": (report, predict, join, export, card),
    "Experiments": (run, resume, watch, tune, methods),
    "Papers and benchmarks": (papers, reproduce, benchmark),
}
"""The commands, as the help groups them."""
for panel, commands in PANELS.items():
    for command in commands:
        app.command(command.__name__, help=help_of(command), rich_help_panel=panel)(command)
app.add_typer(data.app, name="data", rich_help_panel="Data and real sites")
app.add_typer(federation.app, name="federation", rich_help_panel="Data and real sites")


if __name__ == "__main__":
    main()
