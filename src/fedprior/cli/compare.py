"""`fedprior compare`: several methods on a data set, or on a table of one's own over repeated splits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedprior.cli.arguments import Data, File, Json, Out, Quiet, Rounds, Seed, Workers, WritePage, sections
from fedprior.cli.finish import finish, free
from fedprior.cli.screen import loading, screen
from fedprior.errors import FedpriorError, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedprior.data.federation import Federation
    from fedprior.experiment.config import Config

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE] [KEY=VALUE]...",
        help="a table (CSV, Parquet, Excel, the URL of a database, or a folder with one file per site) or a folder of "
        "images (SITE/CLASS/*.png), then overrides such as data.kinds.age=number, methods.fedmap.sigma2=15",
    ),
]
Column = Annotated[str | None, typer.Option("--site", help="the column of the table that names the site")]
Target = Annotated[str | None, typer.Option("--target", help="the column of the table to predict")]
Group = Annotated[
    str | None, typer.Option("--group", help="a column, such as the patient: rows with the same value stay together")
]
Time = Annotated[
    str | None, typer.Option("--time", help="a column, such as a date: each site is tested on its latest rows")
]
Splits = Annotated[int | None, typer.Option("--splits", help="number of repeated splits; 5 by default for a table")]
Methods = Annotated[
    str | None,
    typer.Option("--methods", help="comma-separated names, or `all`; for a table of your own, a few by default"),
]
Baselines = Annotated[
    bool, typer.Option("--baselines/--no-baselines", help="on a data set, also run Local and FedAvg-FT")
]


def compare(
    options: Arguments = None,
    methods: Methods = None,
    site: Column = None,
    target: Target = None,
    group: Group = None,
    time: Time = None,
    splits: Splits = None,
    data: Data = None,
    rounds: Rounds = None,
    seed: Seed = None,
    workers: Workers = None,
    out: Out = None,
    config: File = None,
    baselines: Baselines = True,
    page: WritePage = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train several methods on the same data from the same weights, and say what federation does for each site.

    On a table of your own, over repeated splits; the verdict is in OUT/verdict.json. The same command continues a
    comparison that was interrupted.

        fedprior compare hospitals.csv --site hospital --target outcome --out runs/a

        fedprior compare hospitals/ --target outcome --group patient --methods fedmap,pfedfda

        fedprior compare sqlite:///trial.db data.sql=visits --site centre --target days --time visited

        fedprior compare images/ data.size=64

    On a data set, once; options of one method are given as methods.NAME.key=value.

        fedprior compare --data digits --methods fedmap,fedprox methods.fedmap.sigma2=15
    """
    table = {"site": site, "target": target, "group": group, "time": time}
    with loading(f"PyTorch and {data or 'data'}", quiet=quiet or as_json):
        document, own = configured(list(options or []), table, data, rounds, seed, workers, config)
    if own or splits is not None:
        _repeated(document, methods, splits, out, quiet=quiet, as_json=as_json, page=page)
    else:
        _once(document, methods, out, baselines=baselines, quiet=quiet, as_json=as_json, page=page)


def configured(
    given: list[str],
    table: Mapping[str, str | None],
    data: str | None,
    rounds: int | None,
    seed: int | None,
    workers: str | None,
    file: Path | None,
) -> tuple[Config, bool]:
    """The configuration of the arguments, and whether it is about a table of one's own."""
    from fedprior.data.pictures import holds_images
    from fedprior.experiment.config import parse

    own = {key: value for key, value in table.items() if value is not None}
    if given and data is None and (own or "=" not in given[0] or "://" in given[0]):
        own = {"path": given.pop(0), **own}
    if "path" in own and holds_images(Path(own["path"])):
        if len(own) > 1:
            raise FedpriorError(
                f"'{own['path']}' is a folder of images, whose folders name sites and classes: give no column."
            )
        data = "images"
    elif own and "target" not in own and file is None and not any(o.startswith("data.target=") for o in given):
        raise FedpriorError("which column is to be predicted? Give it with --target, and the site's with --site.")
    named = sections(None, data, rounds, seed, workers)
    if own:
        named["data"] = {"name": data or "table", **own}
    return parse(named, file=file, overrides=given, several=True), bool(own)


def _repeated(
    document: Config,
    methods: str | None,
    splits: int | None,
    out: Path | None,
    *,
    quiet: bool,
    as_json: bool,
    page: bool,
) -> None:
    with loading("PyTorch and data", quiet=quiet or as_json):
        from fedprior.cli.progress import RunProgress
        from fedprior.experiment import repeated

        chosen = chosen_methods(document.methods, methods, ()) if methods or document.methods else {}
        document = document.model_copy(update={"methods": chosen})
        wanted = repeated.REPEATS if splits is None else splits
    stem = Path(str(document.data.get("path", document.data["name"]))).name.partition(".")[0] or "table"
    target = out or free(f"compare-{stem}-seed{document.seed}")
    again = None if out is None else "the same command"
    with RunProgress(quiet=quiet or as_json, folder=target, again=again) as progress:
        found = repeated.carry_out(document, wanted, target, progress, told=None if quiet or as_json else _show_columns)
    finish(found, target, quiet=quiet, as_json=as_json, page=page)


def _show_columns(federation: Federation) -> None:
    """What each column is taken for, before anything is trained."""
    from fedprior.report import assessments, tables

    schema = federation.encoders[0].schema if federation.encoders and federation.encoders[0] is not None else None
    console = screen(120)
    for table in [*([] if schema is None else [assessments.columns(schema)]), tables.federation(federation)]:
        console.print(table)
        console.print()


def _once(
    document: Config, methods: str | None, out: Path | None, *, baselines: bool, quiet: bool, as_json: bool, page: bool
) -> None:
    with loading(f"PyTorch and {document.data['name']}", quiet=quiet or as_json):
        from fedprior import experiment
        from fedprior.cli.progress import RunProgress
        from fedprior.experiment.placing import claim

        chosen = chosen_methods(document.methods, methods, experiment.BESIDE if baselines else ())
        for name, own in chosen.items():
            document.of_method(name, own).build_method()  # a wrong method should not wait for the data to load
        federation = document.load_data()
        setups = [document.of_method(name, own).setup(federation) for name, own in chosen.items()]
    target = out or free(f"compare-{document.data['name']}-seed{document.seed}")
    claim(target)
    with RunProgress(quiet=quiet or as_json, folder=target) as progress:
        found = experiment.compare(
            [setup.method for setup in setups],
            federation,
            model=setups[0].model,
            out=target,
            baselines=False,
            observers=progress,
            **dict(document.settings()),
        )
    finish(found, target, quiet=quiet, as_json=as_json, page=page)


def chosen_methods(
    given: Mapping[str, dict[str, Any]], methods: str | None, beside: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """The methods to compare, each with its options; options of any other method are refused."""
    from fedprior.protocol import METHODS

    named = list(METHODS) if methods == "all" else [m for m in (methods or "").split(",") if m]
    for name in [*named, *given]:
        if name.split("+")[0] not in METHODS:
            raise unknown("method", name, METHODS)
    chosen = {name: given.get(name, {}) for name in named or given}
    if not chosen:
        raise FedpriorError("there is nothing to compare: give --methods a,b,c, or --methods all.")
    chosen |= {name: given.get(name, {}) for name in beside if name not in chosen}
    for name in given:
        if name not in chosen:
            raise FedpriorError(
                f"methods.{name} has options but is not among the compared methods: add it to --methods."
            )
    return chosen
