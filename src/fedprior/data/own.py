"""The user's own table, made ready for a federation: what is used, what is left out, and a sentence for each.

Scaling is shared by default, so that differences between sites stay; missing values are filled in and marked; rows are
split at random, by groups or by time.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from fedprior.data.columns import Column, Kind, text
from fedprior.data.reading import Raw, read
from fedprior.data.schema import Schema, by_name
from fedprior.data.table import Recipe, Scaling, Split, Table
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError, FedpriorWarning, no_column
from fedprior.names import on_screen

ALONE: Recipe = {"local": {"l2": 300.0, "decay": 0.8}}
RECIPE: Recipe = {
    "model": {"name": "softmax"},
    "train": {"optimizer": "sgd", "lr": 0.2, "momentum": 0.5, "batch_size": 256, "steps": 5},
    "settings": {"rounds": 30, "eval_every": 3},
    "methods": {**ALONE, "fedmap": {"sigma2": 4.0}, "stack": {"scores": "holdout", "options": ALONE}},
}
"""Checked by validation NLL on heart disease, breast cancer and generated tables (docs/results.md), then frozen."""
NUMBERS: Recipe = {
    **RECIPE,
    "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "batch_size": 256, "steps": 20, "clip": 2.0},
}
"""For a number: a variance that shrinks makes gradients grow, and longer steps diverge where rows fit well."""
SITE_LEVEL = "the same in all rows of a site"
NAMED = 5
"""Sites that a sentence names."""

Kinds = Mapping[str, Kind | Literal["classes", "count"]] | None


def table(
    path: Annotated[str, Field(description="a file, a folder with one file per site, or the URL of a database")],
    target: Annotated[str, Field(description="the column to predict")],
    site: Annotated[str | None, Field(description="the column that names the site")] = None,
    sql: Annotated[str | None, Field(description="of a database: a table, or a SELECT statement")] = None,
    group: Annotated[str | None, Field(description="a column: rows with the same value are split together")] = None,
    time: Annotated[str | None, Field(description="a column: each site's latest rows are tested on")] = None,
    missing: Annotated[Literal["fill", "refuse"], Field(description="fill in and mark missing values")] = "fill",
    scaling: Scaling = "shared",
    kinds: Annotated[Kinds, Field(description="kinds of columns that are guessed wrongly")] = None,
) -> Table:
    """Your own table: CSV, Parquet, Excel, a database, or a folder with one file per site.

    Columns are numbers, categories or yes/no, as declared in `kinds` or inferred from their values; keys, dates and
    constants are left out. Missing values become the mean over all sites (with `scaling=own`, the site's median), and
    one more input per column marks where.
    """
    raw, where = read(path, sql), f"'{path}'"
    if raw.files is None and site is None:
        raise FedpriorError(f"which column of {where} names the site? Give it with --site, or data.site=COLUMN.")
    return prepared(raw, target, site, group, time, missing, scaling, kinds, where)


def prepared(
    raw: Raw,
    target: str,
    site: str | None,
    group: str | None,
    time: str | None,
    missing: str,
    scaling: Scaling,
    kinds: Kinds,
    where: str,
) -> Table:
    """A raw table as a `Table`, rows without a target and sites without two rows left out."""
    columns = by_name(raw.frame, where)
    named = [name for name in (target, site, group, time) if name is not None]
    for name in named:
        if name not in columns:
            raise no_column(where, name, columns)
    if target in named[1:]:
        raise FedpriorError(f"column '{target}' of {where} is the target, and cannot name sites, groups or times too.")
    if group is not None and time is not None:
        raise FedpriorError("rows are split by group or by time, not by both: give one of them.")
    sites = raw.files if site is None else columns[site].to_numpy(dtype=object)
    if (empty := int(np.count_nonzero(pd.isna(np.asarray(sites))))) > 0:
        raise FedpriorError(f"column '{site}' of {where} names no site in {empty} rows: fill them in or drop the rows.")
    rows = _rows(columns[target], np.asarray(sites), where)
    frame = raw.frame[rows].drop(columns=[name for name in (group, time) if name is not None and name != site])
    places = np.array([text(name).strip() for name in np.asarray(sites)[rows]], dtype=object)
    schema = Schema.inferred(frame, target=target, site=site, kinds=_told(kinds), indicators=True, where=where)
    schema = _annotated(schema, frame, places)
    _check(where, schema)
    x, y = schema.matrix(frame, where), schema.labels(frame)
    split: Split = "grouped" if group is not None else "time" if time is not None else "random"
    return Table(
        x,
        y,
        schema.target,
        RECIPE if isinstance(schema.target, Classes) else NUMBERS,
        {site or "file": places},
        standardise=True,
        impute=missing == "fill",
        schema=schema,
        scaling=scaling,
        split=split,
        units=_units(columns, group, time, rows, where),
    )


def _told(kinds: Kinds) -> dict[str, str]:
    return {str(name): str(kind) for name, kind in (kinds or {}).items()}


def _rows(target: Any, sites: NDArray[Any], where: str) -> NDArray[np.bool_]:
    """Which rows are used: those with a target, of sites with at least two of them [n]."""
    labelled = target.notna().to_numpy(np.bool_)
    names = pd.Series([text(name).strip() for name in sites], dtype=object)
    counts = names[labelled].value_counts()
    lost = sorted(set(names) - set(counts[counts >= 2].index))
    if not labelled.all():
        _say(f"{(~labelled).sum()} of {len(labelled)} rows of {where} have no '{target.name}' and are left out.")
    if lost:
        told = ", ".join(on_screen(name) for name in lost[:NAMED])
        more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
        _say(f"sites with fewer than two rows to learn from are left out: {told}{more}.")
    used = labelled & ~names.isin(lost).to_numpy(np.bool_)
    if not used.any():
        raise FedpriorError(f"no site of {where} has two rows with a value of '{target.name}': add some.")
    return np.asarray(used)


def _annotated(schema: Schema, frame: pd.DataFrame, places: NDArray[Any]) -> Schema:
    """The schema with a note at every column that tells nothing but the site."""
    grouped = pd.Series(places, index=frame.index)
    several = grouped.nunique() > 1

    def noted(column: Column) -> Column:
        own = frame[column.name].groupby(grouped.to_numpy()).nunique()
        return replace(column, note=SITE_LEVEL) if several and column.used and bool((own <= 1).all()) else column

    return replace(schema, columns=tuple(noted(column) for column in schema.columns))


def _check(where: str, schema: Schema) -> None:
    """Check that there is an input."""
    if not schema.columns:
        raise FedpriorError(f"{where} has no columns besides the target and the site: add the inputs of the model.")
    if not schema.used:
        told = "; ".join(f"'{name}' ({note})" for name, note in schema.left_out.items())
        raise FedpriorError(f"no column of {where} can be an input: {told}.")


def _units(
    columns: Mapping[str, Any], group: str | None, time: str | None, rows: NDArray[np.bool_], where: str
) -> NDArray[Any] | None:
    """The group or the time of each row as numbers [n]."""
    name = group or time
    if name is None:
        return None
    given = columns[name][rows]
    if given.isna().any():
        raise FedpriorError(f"column '{name}' of {where} is empty in {given.isna().sum()} rows: fill them in.")
    if time is None:
        return np.asarray(pd.factorize(given)[0])
    if pd.api.types.is_numeric_dtype(given):
        return np.asarray(given.to_numpy(np.float64))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the format of dates had to be guessed
            return np.asarray(pd.to_datetime(given, utc=True).astype("int64"))
    except (ValueError, TypeError, OverflowError):
        raise FedpriorError(f"column '{name}' of {where} holds neither dates nor numbers: write 2024-12-31.") from None


def _say(told: str) -> None:
    warnings.warn(told, FedpriorWarning, stacklevel=4)
