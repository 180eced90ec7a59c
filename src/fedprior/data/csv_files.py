"""The user's own tables: a CSV file with a column that names the site, or a folder with one file per site."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedprior.data.columns import Kind
from fedprior.data.reading import read_file, read_folder
from fedprior.data.schema import Schema
from fedprior.data.table import Recipe, Scaling, Table
from fedprior.errors import FedpriorError, FedpriorWarning, no_column

RECIPE: Recipe = {
    "model": {"name": "mlp", "hidden": [16]},
    "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "batch_size": 16, "epochs": 5},
}


def csv(
    path: Annotated[Path, Field(description="a CSV file, or a folder with one per site")],
    target: Annotated[str, Field(description="the column to predict")],
    client: Annotated[str | None, Field(description="the column that names the site")] = None,
    missing: Annotated[Literal["refuse", "median"], Field(description="what becomes of missing values")] = "refuse",
    scaling: Scaling = "own",
    target_kind: Annotated[
        Literal["auto", "classes", "number", "count"],
        Field(description="what the target is; auto: classes or a number, by its values"),
    ] = "auto",
    indicators: Annotated[bool, Field(description="add inputs that mark missing values")] = False,
    kinds: Annotated[Mapping[str, Kind] | None, Field(description="kinds of columns that are guessed wrongly")] = None,
) -> Table:
    """Your own CSV data, one file or a folder with one per site: `target` to predict, `client` the site's column.

    Columns are numbers, categories or yes/no, as declared in `kinds` or inferred from their values; keys, dates and
    constants are left out. Missing values are refused, or become the median of the site's own training examples (with
    `scaling=shared`, the mean over all sites); `indicators` adds inputs that mark where.
    """
    frame, files = read_folder(path) if path.is_dir() else (read_file(path), None)
    for column in (target, client):
        if column is not None and column not in frame:
            raise no_column(f"'{path}'", column, frame.columns)
    if files is None and client is None:
        raise FedpriorError(f"data 'csv' needs the option 'client': which column of '{path}' names the site?")
    told = {**(kinds or {}), **({} if target_kind == "auto" else {target: target_kind})}
    schema = Schema.inferred(frame, target=target, site=client, kinds=told, indicators=indicators, where=f"'{path}'")
    _check(path, schema)
    sites = files if client is None else frame[client].to_numpy()
    x, y = schema.matrix(frame, f"'{path}'"), schema.labels(frame)
    columns = {client or "file": np.asarray(sites)}
    fill = missing == "median"
    return Table(x, y, schema.target, RECIPE, columns, standardise=True, impute=fill, schema=schema, scaling=scaling)


def _check(path: Path, schema: Schema) -> None:
    """Check that there is an input, and report the columns that are not used."""
    if not schema.columns:
        raise FedpriorError(f"'{path}' has no columns besides the target and the site: add the inputs of the model.")
    told = "; ".join(f"'{name}' ({note})" for name, note in schema.left_out.items())
    if not schema.used:
        raise FedpriorError(f"no column of '{path}' can be an input: {told}.")
    if told:
        warnings.warn(
            f"not used as inputs: {told}. To use one, declare it, as in data.kinds.NAME=number.",
            FedpriorWarning,
            stacklevel=3,
        )
