"""Commands for what comes after training: a new site joins, a model predicts, is exported and described."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedprior.cli.arguments import Json
from fedprior.cli.screen import loading, say, screen
from fedprior.errors import FedpriorError

Place = Annotated[Path, typer.Argument(metavar="RUN", help="the output folder of a run or a comparison")]
Table = Annotated[Path, typer.Argument(metavar="TABLE", help="a table with the run's columns, or a folder of images")]
Prior = Annotated[
    Path, typer.Argument(metavar="RUN", help="the folder of a run or comparison, or the file of its prior")
]
Model = Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a run or comparison, or a model's file")]
Of = Annotated[
    str | None, typer.Option("--method", help="which method of a comparison; by default the recommended one")
]
Site = Annotated[str | None, typer.Option("--site", help="the site whose model to use")]


class Format(StrEnum):
    """What a model is written as."""

    onnx = "onnx"
    safetensors = "safetensors"


def join(
    run: Prior,
    table: Table,
    site_name: Annotated[
        str | None, typer.Option("--site-name", help="name of the new site; by default that of the file")
    ] = None,
    method: Of = None,
    updates: Annotated[
        int | None,
        typer.Option("--updates", min=0, help="local updates; by default one per round up to the kept one"),
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=0, max=1000, help="random draws per point of the curve")] = 20,
    as_json: Json = False,
) -> None:
    """Make a personal model for a site that was not part of the run, without training the federation again.

    Shows how many of its rows the site needs before its own model beats the shared one, and leaves the model and a JSON
    file in RUN/joined, or in `joined` beside the prior. For a run on images, TABLE is a folder with CLASS/*.png.

    Example: fedprior join runs/hospitals basel.csv --site-name Basel
    """
    with loading("PyTorch and the prior", quiet=as_json):
        from fedprior.experiment.admission import read_rows
        from fedprior.experiment.joining import FOLDER
        from fedprior.experiment.joining import join as admit
        from fedprior.experiment.journal import jsonable
        from fedprior.experiment.opened import find_prior, refuse_known
        from fedprior.report.joining import curve_table

        prior, folder = find_prior(run, method)
        site = site_name or table.name.split(".")[0]
        refuse_known(folder, site)
        found = admit(prior, read_rows(prior, table), site, updates=updates, draws=draws)
    path = found.save(folder / FOLDER)
    if as_json:
        print(json.dumps(jsonable(found.document()), indent=2))
        return
    console = screen(120)
    if found.curve is not None:
        console.print(curve_table(found.curve))
        say(console, found.curve.text)
    elif draws:
        say(console, f"{found.rows} rows are too few for a curve over some of them.")
    say(console, f"model of {site}, trained on {found.rows} rows: {path}")


def predict(
    run: Model,
    table: Table,
    site: Site = None,
    method: Of = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="the CSV file to write; by default, predictions are printed")
    ] = None,
) -> None:
    """Predict every row of a table, or every image in a folder, with a site's model, as CSV.

    Gives class probabilities, or a mean with 50 and 90 % intervals, and says which rows are unlike the training data.

    Example: fedprior predict runs/hospitals patients.csv --site va --out predictions.csv
    """
    with loading("PyTorch and the model", quiet=out is None):
        from fedprior.experiment.opened import find_model
        from fedprior.experiment.predicting import UNLIKE, as_csv, predict_files
        from fedprior.files import write_text

        model, _ = find_model(run, site, method)
        found = predict_files(model, table)
    if out is None:
        print(as_csv(found), end="")
        return
    if out.is_dir():
        raise FedpriorError(f"'{out}' is a folder: give --out the name of a file.")
    write_text(out, as_csv(found))
    flagged = f", {int((found[UNLIKE] != '').sum())} for rows unlike the training data" if UNLIKE in found else ""
    say(screen(), f"{len(found)} predictions{flagged}: {out}")


def export(
    run: Model,
    site: Site = None,
    method: Of = None,
    form: Annotated[
        Format, typer.Option("--format", help="onnx takes raw rows, and is compared with our predictions")
    ] = Format.onnx,
    out: Annotated[Path | None, typer.Option("--out", help="a file; by default in RUN/exported")] = None,
) -> None:
    """Write a site's model for use elsewhere, as ONNX or as safetensors.

    The ONNX file takes raw rows and gives probabilities (or mean and sd); its metadata name the columns
    with their levels, and the classes.

    Example: fedprior export runs/hospitals --site va --format onnx
    """
    with loading("PyTorch and the model", quiet=False):
        from fedprior.experiment.exporting import as_onnx
        from fedprior.experiment.opened import find_model
        from fedprior.files import write_bytes

        model, path = find_model(run, site, method)
        content = as_onnx(model) if form is Format.onnx else path.read_bytes()
    place = out or (path.parent if run.is_file() else path.parent.parent / "exported") / f"{path.stem}.{form.value}"
    if place.is_dir():
        raise FedpriorError(f"'{place}' is a folder: give --out the name of a file.")
    if place.resolve() == path.resolve():
        raise FedpriorError(f"'{place}' is the model itself: give --out another name.")
    write_bytes(place, content)
    say(screen(), f"model of {model.client}, {len(content):,} bytes: {place}")


def card(run: Place, site: Site = None, method: Of = None) -> None:
    """Write a model card in Markdown beside each model, or beside that of one site.

    Example: fedprior card runs/hospitals
    """
    with loading("PyTorch and the models", quiet=False):
        from fedprior.report.card import write_cards

        written = write_cards(run, site, method)
    for path in written:
        say(screen(), str(path))
