"""Federations by name. Everything here is generated or ships with a dependency: no download."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedprior.data.federation import Federation, from_arrays
from fedprior.data.partition import PARTITIONERS, by_column
from fedprior.data.synthetic import Synthetic
from fedprior.errors import FedpriorError
from fedprior.options import call, check_names, names, pick, plain_errors
from fedprior.options import defaults as option_defaults
from fedprior.rng import Key

Recipe = Mapping[str, Mapping[str, Any]]


class Shares(BaseModel):
    """What part of every client's examples is held back."""

    model_config = ConfigDict(extra="forbid")

    validation: Annotated[float, Field(ge=0, lt=1, description="share for choosing among settings")] = 0.1
    test: Annotated[float, Field(gt=0, lt=1, description="share for the final numbers")] = 0.2


SPLIT_OPTIONS = tuple(Shares.model_fields)
SYNTHETIC_RECIPE: Recipe = {
    "model": {"name": "mlp", "hidden": [32, 16], "single_logit": True},
    "train": {"optimizer": "adam", "lr": 1e-4, "batch_size": 64, "epochs": 10},
}


class Table(NamedTuple):
    """One data set before it is spread over clients."""

    x: NDArray[Any]  # [n, ...]
    y: NDArray[np.int64]  # [n]
    classes: int
    columns: Mapping[str, NDArray[Any]]  # what `partition=column` may use
    recipe: Recipe
    partition: str = "dirichlet"
    standardise: bool = False


def digits() -> Table:
    """1,797 handwritten digits of 8×8 pixels, 10 classes (scikit-learn)."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    recipe: Recipe = {
        "model": {"name": "mlp", "hidden": [64]},
        "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "batch_size": 20, "epochs": 5},
    }
    return Table(x.reshape(-1, 1, 8, 8) / 16, y.astype(np.int64), 10, {"label": y}, recipe)


def breast_cancer() -> Table:
    """569 tumours with 30 measurements, benign or malignant (scikit-learn; Wisconsin diagnostic data)."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    recipe: Recipe = {
        "model": {"name": "mlp", "hidden": [16], "single_logit": True},
        "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "batch_size": 16, "epochs": 5},
    }
    return Table(x, y.astype(np.int64), 2, {"label": y}, recipe, standardise=True)


def csv(path: Path, target: str, client: str) -> Table:
    """A CSV file of your own: numbers in every column, `target` the class, `client` the site a row belongs to."""
    if not path.is_file():
        raise FedpriorError(f"there is no file '{path}': give data.path the path of a CSV file.")
    try:
        frame = pd.read_csv(path)
    except ValueError as error:  # pandas' parser errors are ValueErrors
        raise FedpriorError(f"'{path}' is not a CSV file that can be read: {str(error).strip()}.") from None
    for column in (target, client):
        if column not in frame:
            raise FedpriorError(f"'{path}' has no column '{column}': its columns are {', '.join(frame.columns)}.")
    features = frame.drop(columns=[target, client])
    if features.empty:
        raise FedpriorError(f"'{path}' has no columns beside '{target}' and '{client}': add the inputs of the model.")
    for feature in features:
        if not pd.api.types.is_numeric_dtype(features[feature]):
            raise FedpriorError(f"column '{feature}' of '{path}' is not numeric: encode it as numbers or drop it.")
    labels = sorted(frame[target].dropna().unique())
    if len(labels) < 2 or frame[target].isna().any():
        raise FedpriorError(f"column '{target}' of '{path}' needs a class in every row, and at least two classes.")
    y = frame[target].map({label: i for i, label in enumerate(labels)}).to_numpy(np.int64)
    recipe: Recipe = {
        "model": {"name": "mlp", "hidden": [16]},
        "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "batch_size": 16, "epochs": 5},
    }
    return Table(
        features.to_numpy(np.float64), y, len(labels), {client: frame[client].to_numpy()}, recipe, "column", True
    )


TABLES: dict[str, Callable[..., Table]] = {f.__name__: f for f in (digits, breast_cancer, csv)}
DATASETS: tuple[str, ...] = ("synthetic", *TABLES)
"""The names that `load` knows."""


def load(name: str, *, seed: int = 0, **options: Any) -> Federation:
    """The federation called `name`; options are the data set's, its partition's and the sizes of the splits."""
    if name == "synthetic":
        return _synthetic(seed, options)
    maker = pick("dataset", {**TABLES, "synthetic": digits}, name)
    given = {k: v for k, v in options.items() if k in names(maker)}
    table = call("dataset", TABLES, name, given)
    rest = {k: v for k, v in options.items() if k not in given}
    clients = _partitioned(name, table, seed, rest)
    return from_arrays(
        {client: (table.x[rows], table.y[rows]) for client, rows in clients.items()},
        classes=table.classes,
        seed=seed,
        standardise=table.standardise,
        name=name,
        options=options,
        recipe=table.recipe,
        **_shares(rest),
    )


def option_names(name: str, options: Mapping[str, Any]) -> list[str]:
    """All options that `load(name, **options)` takes, given the partition they choose."""
    if name == "synthetic":
        return [*names(Synthetic), *SPLIT_OPTIONS]
    maker = pick("dataset", TABLES, name)
    partition = str(options.get("partition", "column" if name == "csv" else "dirichlet"))
    own = ["column", "min_size"] if partition == "column" else names(pick("partition", _partitions(), partition))
    return [*names(maker), "partition", *own, *SPLIT_OPTIONS]


def defaults(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a data set that have defaults, spelled out, given the partition that `options` choose."""
    parts: list[Any] = [Synthetic] if name == "synthetic" else [TABLES[name]]
    found: dict[str, Any] = {}
    if name != "synthetic":
        partition = options.get("partition", "column" if name == "csv" else "dirichlet")
        parts.append(_partitions()[partition])
        found["partition"] = partition
    for part in parts:
        found |= option_defaults(part)
    return found


def catalogue() -> list[dict[str, Any]]:
    """Every data set with its options; those of a partition are listed with it."""
    entries: list[dict[str, Any]] = [
        {"name": "synthetic", "about": _first_line(Synthetic), "options": option_names("synthetic", {})}
    ]
    for name, maker in TABLES.items():
        entries.append(
            {"name": name, "about": _first_line(maker), "options": [*names(maker), "partition", *SPLIT_OPTIONS]}
        )
    for name in _partitions():
        about = {"name": f"partition={name}", "about": _first_line(_partitions()[name])}
        options = ["column", "min_size"] if name == "column" else names(PARTITIONERS[name])
        entries.append(about | {"options": options})
    return entries


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def _shares(options: Mapping[str, Any]) -> dict[str, float]:
    with plain_errors("data"):
        return Shares(**{k: v for k, v in options.items() if k in SPLIT_OPTIONS}).model_dump()


def _partitions() -> dict[str, Any]:
    return {**PARTITIONERS, "column": by_column}


def _partitioned(name: str, table: Table, seed: int, options: Mapping[str, Any]) -> dict[str, NDArray[np.int64]]:
    partition = options.get("partition", table.partition)
    pick("partition", _partitions(), partition)
    own = {k: v for k, v in options.items() if k not in ("partition", *SPLIT_OPTIONS)}
    check_names(f"data '{name}' with partition '{partition}'", own, option_names(name, {"partition": partition}))
    if partition == "column":
        column = own.pop("column", next(iter(table.columns)))
        values = pick("column", table.columns, str(column))
        return call("partition", {"column": by_column}, "column", own, values=values)
    split = call("partition", PARTITIONERS, partition, own)
    parts = split(table.y, Key.from_seed(seed).fold("partition").numpy())
    width = len(str(len(parts) - 1))
    return {f"client-{i:0{width}d}": rows for i, rows in enumerate(parts)}


def _synthetic(seed: int, options: Mapping[str, Any]) -> Federation:
    own = {k: v for k, v in options.items() if k not in SPLIT_OPTIONS}
    generator = call("dataset", {"synthetic": Synthetic}, "synthetic", own)
    clients = generator.generate(Key.from_seed(seed).fold("synthetic").numpy())
    width = len(str(len(clients)))
    return from_arrays(
        {f"client-{k + 1:0{width}d}": examples for k, examples in enumerate(clients)},
        classes=2,
        seed=seed,
        standardise=True,
        name="synthetic",
        options=options,
        recipe=SYNTHETIC_RECIPE,
        **_shares(options),
    )
