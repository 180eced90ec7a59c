"""Reference pages that are made from the code: data sets, partitions, models, metrics, settings, commands."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from fedprior.cli.main import app
from fedprior.data.assignment import Limits, Shares
from fedprior.data.featureskew import Corruptions
from fedprior.data.partition import PARTITIONS
from fedprior.data.registry import DATASETS
from fedprior.experiment.participation import Participation
from fedprior.experiment.settings import Settings
from fedprior.metrics import METRICS
from fedprior.models import MODELS
from website.options import table

PYTHON: dict[str, tuple[str, list[str]]] = {
    "run": (
        "Run, compare, resume",
        ["fedprior.run", "fedprior.compare", "fedprior.resume", "fedprior.assess", "fedprior.join"],
    ),
    "results": (
        "Results",
        [
            *("fedprior.Result", "fedprior.Comparison", "fedprior.Assessment"),
            *("fedprior.PersonalModel", "fedprior.load_model", "fedprior.load_prior"),
        ],
    ),
    "federations": (
        "Federations",
        [
            *("fedprior.data.load", "fedprior.data.from_arrays", "fedprior.data.from_frame"),
            "fedprior.data.Federation",
        ],
    ),
    "estimators": ("scikit-learn estimators", ["fedprior.FederatedClassifier", "fedprior.FederatedRegressor"]),
    "extensions": (
        "Data sets and partitions of your own",
        [
            *("fedprior.data.registry.register_dataset", "fedprior.data.table.Table"),
            *("fedprior.data.partition.register_partition", "fedprior.data.partition.View"),
            *("fedprior.data.partition.Parts", "fedprior.data.partition.Partitioner"),
        ],
    ),
    "method": (
        "Writing a method",
        [
            *(
                "fedprior.protocol",
                "fedprior.declaration",
                "fedprior.models.task.Task",
                "fedprior.data.client",
                "fedprior.training",
            ),
            *("fedprior.Train", "fedprior.tree", "fedprior.rng"),
        ],
    ),
    "wrappers": ("Wrappers", ["fedprior.wrappers", "fedprior.guards"]),
    "loggers": ("Experiment loggers", ["fedprior.loggers"]),
    "errors": ("Errors", ["fedprior.errors"]),
}
"""Pages of the Python reference: title, and what mkdocstrings shows there."""
INHERITED = dict.fromkeys(PYTHON["estimators"][1], "\n    options:\n      inherited_members: [fit]")
"""What is shown although it is a base class that defines it."""
EXAMPLE = re.compile(r"^(?:Example: |    )(fedprior .*)$", re.MULTILINE)


def pages() -> dict[str, str]:
    """Every generated page by its path in the site."""
    return {
        "reference/data.md": _data(),
        "reference/partitions.md": _named("Partitions", PARTITIONS, "partition", PARTITIONS_INTRO),
        "reference/models.md": _named("Models", MODELS, "model", MODELS_INTRO),
        "reference/metrics.md": _metrics(),
        "reference/settings.md": _settings(),
        "reference/commands.md": _commands(),
        **{f"reference/{stem}.md": _python(title, names) for stem, (title, names) in PYTHON.items()},
    }


def prose(thing: Any) -> str:
    """A docstring as Markdown."""
    return inspect.cleandoc(inspect.getdoc(thing) or "")


PARTITIONS_INTRO = (
    "How the examples of a data set are distributed among clients: `data.partition=NAME` on the command line, "
    "`partition=NAME` in `fedprior.data.load`. [Add your own](../add-data.md)."
)
MODELS_INTRO = (
    "Networks by name: `model.name=NAME` on the command line, `model=NAME` in Python; every data set has a default. "
    "[Use your own](../own-network.md)."
)


def _python(title: str, names: list[str]) -> str:
    return "\n\n".join([f"# {title}", *(f"::: {name}{INHERITED.get(name, '')}" for name in names)]) + "\n"


def _named(title: str, things: Any, kind: str, intro: str) -> str:
    parts = [f"# {title}", intro]
    for name, thing in things.items():
        parts += [f"## `{kind}={name}`" if kind == "partition" else f"## `{name}`", prose(thing), table(thing)]
    return "\n\n".join(parts) + "\n"


def _data() -> str:
    parts = [
        "# Data sets",
        "`--data NAME data.OPTION=value` on the command line, `fedprior.data.load(NAME, OPTION=value)` in Python. "
        "`fedprior data list` says which are stored; [data and tables](../papers.md) where they come from.",
        "## Options of every data set",
        "One with a default [partition](partitions.md) also takes `partition` and the options of that partition.",
        table(Shares),
        "Data sets with a partition:",
        table(Limits),
        "Images can be corrupted at some of the clients:",
        table(Corruptions),
    ]
    for name, dataset in DATASETS.items():
        more = "drawn client by client, without a partition"
        if dataset.partition is not None:
            more = f"default partition: [`{dataset.partition}`](partitions.md#partition{dataset.partition})"
        images = "; can be corrupted" if dataset.images else ""
        parts += [f"## `{name}`", prose(dataset.read), f"*{more[0].upper()}{more[1:]}{images}.*", table(dataset.read)]
    return "\n\n".join(parts) + "\n"


def _metrics() -> str:
    lines = [
        "# Metrics",
        "Every metric is computed for each client from its predictive distributions, in float64. Where it is undefined "
        "(no examples, a single class), it is empty; of a model that diverged it is `nan`, and so is every mean of it.",
        "| name | metric | unit | better | needs | meaning |\n|---|---|---|---|---|---|",
    ]
    rows = [
        f"| `{m.name}` | {m.title} | {m.unit or '–'} | {m.better if isinstance(m.better, str) else f'near {m.better}'} "
        f"| {prose(m.needs).splitlines()[0].rstrip('.').removeprefix('For ')} | {prose(m.of).splitlines()[0]} |"
        for m in METRICS
    ]
    return "\n\n".join(lines) + "\n" + "\n".join(rows) + "\n"


def _settings() -> str:
    return "\n\n".join(
        [
            "# Settings of a run",
            "`key=value` on the command line, keyword arguments of `fedprior.run` and `fedprior.compare` in Python. "
            "Options of the local training are with [the methods](../methods/index.md#local-training).",
            table(Settings),
            "## Participation",
            prose(Participation),
            table(Participation),
            "",
        ]
    )


def _commands() -> str:
    parts = ["# Commands", "What `fedprior COMMAND --help` prints."]
    for path, command in _walk("fedprior", typer.main.get_command(app)):
        parts += [f"## `{path}`", _help(command.help or ""), _parameters(command)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _help(text: str) -> str:
    """The help of a command as Markdown, its examples in one block where they follow each other."""
    shown = EXAMPLE.sub(r"```sh\n\1\n```", html.escape(text, quote=False))
    return shown.replace("\n```\n\n```sh\n", "\n").replace("\n```\n```sh\n", "\n")


def _walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    for name, child in getattr(command, "commands", {}).items():
        if hasattr(child, "commands"):
            yield from _walk(f"{path} {name}", child)
        elif not child.hidden:
            yield f"{path} {name}", child


def _parameters(command: Any) -> str:
    lines = []
    for given in command.params:
        if given.name == "help" or getattr(given, "hidden", False):
            continue
        words = (*given.opts, *given.secondary_opts)
        named = words if given.param_type_name == "option" else (given.metavar or given.name.upper(),)
        plain = given.default is None or given.default is False or given.default == [] or callable(given.default)
        default = "" if plain else f" (default: `{_spelled(given)}`)"
        meaning = html.escape(given.help or "", quote=False) + (" (required)" if given.required else default)
        lines.append(f"| {', '.join(f'`{name}`' for name in named)} | {meaning} |".replace("\n", " "))
    return "\n".join(["| argument | meaning |", "|---|---|", *lines]) if lines else ""


def _spelled(given: Any) -> Any:
    """A default as one would type it."""
    if given.default is True:
        return given.opts[0]
    return getattr(given.default, "value", given.default)
