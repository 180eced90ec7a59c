"""The stored data sets as tables: what is normalised, what is missing, and which model suits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedprior.data import store
from fedprior.data.images import Normalise, scaling
from fedprior.data.store import RECORDS
from fedprior.data.table import Recipe, Table
from fedprior.data.text import token_ids

SGD: Mapping[str, Any] = {"optimizer": "sgd", "lr": 0.01, "momentum": 0.5, "weight_decay": 5e-4}  # pFedFDA's
RECIPES: dict[str, Recipe] = {
    "mnist": {"model": {"name": "mlp", "hidden": [100]}, "train": {**SGD, "batch_size": 20, "epochs": 5}},
    "fashion_mnist": {"model": {"name": "mlp", "hidden": [100]}, "train": {**SGD, "batch_size": 20, "epochs": 5}},
    "cifar10": {"model": {"name": "cnn_cifar"}, "train": {**SGD, "batch_size": 50, "epochs": 5}},
    "cifar100": {"model": {"name": "cnn_cifar"}, "train": {**SGD, "batch_size": 50, "epochs": 5}},
    "femnist": {"model": {"name": "cnn_emnist"}, "train": {**SGD, "batch_size": 16, "epochs": 5}},
    "usps": {"model": {"name": "lenet5"}, "train": {**SGD, "batch_size": 20, "epochs": 5}},
    "mnist_m": {"model": {"name": "cnn_cifar"}, "train": {**SGD, "batch_size": 50, "epochs": 5}},
    "office_caltech": {
        "model": {"name": "cnn6"},
        "train": {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "batch_size": 32, "epochs": 5},
    },
    "office_caltech_surf": {"model": {"name": "mlp", "hidden": [64]}, "train": {**SGD, "batch_size": 20, "epochs": 5}},
    "heart_disease": {
        "model": {"name": "mlp", "hidden": [16], "single_logit": True},
        "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "batch_size": 16, "epochs": 5},
    },
    "sent140": {
        "model": {"name": "lstm"},
        "train": {"optimizer": "sgd", "lr": 0.01, "batch_size": 400, "steps": 20},
    },
}
NORMALISED: dict[str, Normalise] = {
    "fashion_mnist": "channel",
    "mnist": "channel",
    "cifar10": "half",
    "cifar100": "half",
    "femnist": "half",
    "usps": "half",
    "mnist_m": "half",
    "office_caltech": "channel",
}
"""How the images of each data set are normalised unless told otherwise."""


def _columns(pool: store.Pool) -> dict[str, NDArray[Any]]:
    """What partitions by column may use: the data set's own first."""
    own = {name: values for name, values in pool.columns.items() if name not in ("split", "coarse")}
    return own | {"label": pool.y}


def _images(name: str, default: Normalise) -> Callable[..., Table]:
    def maker(normalise: Normalise = default) -> Table:
        pool = store.load(name).pool()
        return Table(
            pool.x,
            pool.y,
            RECORDS[name].classes,
            RECIPES[name],
            _columns(pool),
            prepare=scaling(name, normalise, pool.x),
            official=pool.columns["split"] == "test" if "split" in pool.columns else None,
            coarse=pool.columns.get("coarse"),
        )

    maker.__name__, maker.__doc__ = name, f"{RECORDS[name].title}."
    return maker


def office_caltech_surf() -> Table:
    """Office-Caltech-10: 2,533 histograms of 800 visual words (SURF) from four domains.

    A histogram becomes the square roots of its shares, then every input is standardised site by site.
    """
    pool = store.load("office_caltech_surf").pool()
    x = pool.x.astype(np.float64)
    x = np.sqrt(x / np.maximum(x.sum(1, keepdims=True), 1))
    return Table(x, pool.y, 10, RECIPES["office_caltech_surf"], _columns(pool), standardise=True)


CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
"""Codes in the heart data that are no numbers."""
SPARSE = ("slope", "ca", "thal")
"""What most hospitals did not measure."""


def heart_disease(
    rows: Annotated[
        Literal["all", "complete"], Field(description="all, or FLamby's choice of columns and rows")
    ] = "all",
) -> Table:
    """Heart disease: 920 patients of four hospitals, 13 measurements, many of them missing.

    `all`: what is missing (also a cholesterol of 0) becomes the median of the hospital's own training patients, and one
    more input for each measurement tells that it was missing: 31 inputs. `complete` is FLamby's: without slope, ca and
    thal, and without patients that lack anything else, where a cholesterol of 0 counts as a value (303, 261, 46 and 130
    patients, 13 inputs). Codes become one input for each but the first. Inputs are standardised by each hospital.
    """
    pool = store.load("heart_disease").pool()
    features = RECORDS["heart_disease"].features
    used = [name for name in features if rows == "all" or name not in SPARSE]
    values = {name: np.array(pool.x[:, features.index(name)]) for name in used}
    if rows == "all":
        values["chol"][values["chol"] == 0] = np.nan
    missing = np.stack([np.isnan(column) for column in values.values()], axis=1)
    kept = np.arange(len(pool.y)) if rows == "all" else np.flatnonzero(~missing.any(1))
    inputs = [coded for name, column in values.items() for coded in _coded(name, column)]
    inputs += list(missing.T.astype(np.float64)) if rows == "all" else []
    return Table(
        np.stack(inputs, axis=1)[kept],
        pool.y[kept],
        2,
        RECIPES["heart_disease"],
        {name: values[kept] for name, values in _columns(pool).items()},
        standardise=True,
        impute=True,
    )


def _coded(name: str, column: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """A measurement as inputs; where it is missing, so are they."""
    if name not in CATEGORIES:
        return [column]
    return [np.where(np.isnan(column), np.nan, column == code) for code in CATEGORIES[name][1:]]


def sent140(
    length: Annotated[int, Field(ge=1, description="tokens of a tweet that are read")] = 25,
    vocabulary: Annotated[int, Field(ge=2, description="token ids, 0 being padding; as model.vocabulary")] = 22_764,
) -> Table:
    """Sentiment140: tweets by user, positive or negative, as token ids.

    Words and punctuation marks are numbered by a hash, so that there is no vocabulary to build: see `text.token_ids`.
    """
    pool = store.load("sent140").pool()
    recipe = dict(RECIPES["sent140"])
    recipe["model"] = {**recipe["model"], "vocabulary": vocabulary}
    return Table(token_ids(pool.x, length, vocabulary), pool.y, 2, recipe, _columns(pool))


STORED: dict[str, Callable[..., Table]] = {
    **{name: _images(name, how) for name, how in NORMALISED.items()},
    **{maker.__name__: maker for maker in (office_caltech_surf, heart_disease, sent140)},
}
