"""Federations by name: generated, shipped with a dependency, or stored by `fedprior data fetch` and `import`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedprior.data.allot import PARTITIONS, Limits, Shares, allot, checked, partition_options
from fedprior.data.csv_files import csv
from fedprior.data.domains import digit_domains
from fedprior.data.featureskew import Corruptions, corrupted, pairs
from fedprior.data.federation import Federation, from_arrays
from fedprior.data.stored import NORMALISED, STORED
from fedprior.data.synthetic import Synthetic
from fedprior.data.table import Recipe, Table
from fedprior.errors import FedpriorError
from fedprior.options import call, check_names, names, pick
from fedprior.options import defaults as option_defaults
from fedprior.rng import Key

SYNTHETIC_RECIPE: Recipe = {
    "model": {"name": "mlp", "hidden": [32, 16], "single_logit": True},
    "train": {"optimizer": "adam", "lr": 1e-4, "batch_size": 64, "epochs": 10},
}


def digits() -> Table:
    """1,797 handwritten digits of 8×8 pixels, 10 classes (scikit-learn)."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    recipe: Recipe = {
        "model": {"name": "mlp", "hidden": [64]},
        "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "batch_size": 20, "epochs": 5},
    }
    return Table(x.reshape(-1, 1, 8, 8) / 16, y.astype(np.int64), 10, recipe, {"label": y})


def breast_cancer() -> Table:
    """569 tumours with 30 measurements, benign or malignant (scikit-learn; Wisconsin diagnostic data)."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    recipe: Recipe = {
        "model": {"name": "mlp", "hidden": [16], "single_logit": True},
        "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "batch_size": 16, "epochs": 5},
    }
    return Table(x, y.astype(np.int64), 2, recipe, {"label": y}, standardise=True)


def noise(
    shape: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = [20],  # noqa: B006 - never written to
    classes: Annotated[int, Field(ge=2)] = 10,
    samples: Annotated[int, Field(ge=1)] = 1000,
) -> Table:
    """Standard normal inputs of any shape with labels that tell nothing: for timing, counting and control."""
    rng = np.random.default_rng(0)
    recipe: Recipe = {
        "model": {"name": "softmax"},
        "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.0, "batch_size": 20, "epochs": 1},
    }
    y = np.arange(samples) % classes
    return Table(rng.standard_normal((samples, *shape), dtype=np.float32), y, classes, recipe, {"label": y})


TABLES: dict[str, Callable[..., Table]] = {
    **{f.__name__: f for f in (digits, breast_cancer, noise, csv)},
    **STORED,
    "digit_domains": digit_domains,
}
DATASETS: tuple[str, ...] = ("synthetic", *TABLES)
"""The names that `load` knows."""
PARTITION = {
    **dict.fromkeys(("csv", "femnist", "office_caltech", "office_caltech_surf", "heart_disease"), "column"),
    "digit_domains": "domains",
    "sent140": "merged",
}
"""How a data set is spread over clients unless told otherwise; the others by a Dirichlet law."""
IMAGES = (*NORMALISED, "digit_domains")
SPLIT_OPTIONS = tuple(Shares.model_fields)


def load(name: str, *, seed: int = 0, **options: Any) -> Federation:
    """The federation called `name`; options are the data set's, its partition's and the sizes of the splits."""
    if name == "synthetic":
        return _synthetic(seed, options)
    maker = pick("dataset", {**TABLES, "synthetic": digits}, name)
    partition = _partition(name, options)
    check_names(f"data '{name}' with partition '{partition}'", options, option_names(name, options))
    shares: Shares = checked(Shares, options)
    corruptions: Corruptions = checked(Corruptions, options)
    table = call("dataset", TABLES, name, {k: v for k, v in options.items() if k in names(maker)})
    key = Key.from_seed(seed)
    found = allot(name, table, partition, options, shares, key)
    skew = dict(zip(found.rows, pairs(corruptions, len(found.rows)), strict=True))

    def examples(what: str, rows: Mapping[str, Any], labels: Callable[[str], Any]) -> Each:
        return Each(rows, lambda c: (corrupted(table, rows[c], skew[c], key.fold("corruption", what, c)), labels(c)))

    tests = found.tests
    return from_arrays(
        examples("own", found.rows, lambda c: found.labels[c]),
        tests=None if tests is None else examples("test", tests, lambda c: found.y[tests[c]]),
        classes=found.classes,
        seed=seed,
        standardise=table.standardise,
        impute=table.impute,
        name=name,
        options=options,
        recipe=table.recipe,
        **shares.arguments(),
    )


class Each(Mapping[str, tuple[Any, Any]]):
    """Every client's examples, made when they are asked for: all of them at once would be there twice."""

    def __init__(self, clients: Iterable[str], make: Callable[[str], tuple[Any, Any]]) -> None:
        self.clients, self.make = tuple(clients), make

    def __getitem__(self, client: str) -> tuple[Any, Any]:
        return self.make(client)

    def __iter__(self) -> Iterator[str]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)


def _partition(name: str, options: Mapping[str, Any]) -> str:
    chosen = str(options.get("partition", PARTITION.get(name, "dirichlet")))
    pick("partition", PARTITIONS, chosen)
    return chosen


def _general(name: str) -> list[str]:
    """The options that do not depend on the partition."""
    skew = Corruptions.model_fields if name in IMAGES else ()
    return [*names(TABLES[name]), "partition", *SPLIT_OPTIONS, *Limits.model_fields, *skew]


def option_names(name: str, options: Mapping[str, Any]) -> list[str]:
    """All options that `load(name, **options)` takes, given the partition they choose."""
    if name == "synthetic":
        return [*names(Synthetic), *SPLIT_OPTIONS]
    pick("dataset", TABLES, name)
    return [*_general(name), *partition_options(_partition(name, options))]


def defaults(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a data set that have defaults, spelled out, given the partition that `options` choose."""
    if name == "synthetic":
        return option_defaults(Synthetic)
    partition = _partition(name, options)
    own = option_defaults(PARTITIONS[partition])
    return {"partition": partition} | option_defaults(TABLES[name]) | own


def catalogue() -> list[dict[str, Any]]:
    """Every data set with its options; those of a partition are listed with it."""
    entries: list[dict[str, Any]] = [
        {"name": "synthetic", "about": _first_line(Synthetic), "options": option_names("synthetic", {})}
    ]
    for name, maker in TABLES.items():
        entries.append({"name": name, "about": _first_line(maker), "options": _general(name)})
    for name, thing in PARTITIONS.items():
        options = partition_options(name)
        entries.append({"name": f"partition={name}", "about": _first_line(thing), "options": options})
    return entries


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def _synthetic(seed: int, options: Mapping[str, Any]) -> Federation:
    own = {k: v for k, v in options.items() if k not in SPLIT_OPTIONS}
    generator = call("dataset", {"synthetic": Synthetic}, "synthetic", own)
    shares: Shares = checked(Shares, options)
    if shares.official:
        raise FedpriorError("synthetic has no official test set: give data.test a share, such as 0.2.")
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
        **shares.arguments(),
    )
