"""UCI's heart disease data of four hospitals."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedprior.data import store
from fedprior.data.registry import register_dataset
from fedprior.data.store.record import Record, Remote, Url
from fedprior.data.table import Recipe, Table
from fedprior.data.target import Classes

# Of copies whose MD5 is the one that FLamby publishes (fed_heart_disease, download.py).
FILES = (
    Remote("processed.cleveland.data", "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8", 18461),
    Remote("processed.hungarian.data", "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796", 10263),
    Remote("processed.switzerland.data", "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314", 4109),
    Remote("processed.va.data", "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f", 6737),
)
FEATURES = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)
RECORD = Record(
    name="heart_disease",
    title="Heart disease: 920 patients of four hospitals, 13 measurements, many of them missing",
    classes=2,
    shape=(13,),
    dtype="float64",
    formats=("hospitals",),
    accepts="UCI's four processed.<hospital>.data files, or a CSV file with their columns and site",
    licence="CC BY 4.0",
    citation="A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano. Heart Disease. UCI repository, 1988.",
    sources=(Url("https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/", FILES),),
    counts={"all": 920},
    columns=("site",),
    groups={"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200},
    features=FEATURES,
)
RECIPE: Recipe = {
    "model": {"name": "mlp", "hidden": [16], "single_logit": True},
    "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "batch_size": 16, "epochs": 5},
}
CATEGORIES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}
"""Measurements that are codes, not numbers."""
SPARSE = ("slope", "ca", "thal")
"""What most hospitals did not measure."""
Column = NDArray[np.float64]  # [n]


@register_dataset(record=RECORD, partition="column")
def heart_disease(
    rows: Annotated[
        Literal["all", "complete"], Field(description="all, or FLamby's choice of columns and rows")
    ] = "all",
) -> Table:
    """Heart disease: 920 patients of four hospitals, 13 measurements, many of them missing.

    `all`: what is missing (also a cholesterol of 0) becomes the median of the hospital's own training patients, and one
    more input per measurement marks that it was missing: 31 inputs. `complete` is FLamby's: without slope, ca and
    thal, and without patients that lack anything else, where a cholesterol of 0 counts as a value (303, 261, 46 and 130
    patients, 13 inputs). Codes become one input per level except the first. Inputs are standardised by each hospital.
    """
    pool = store.load(RECORD.name).pool()
    used = [name for name in FEATURES if rows == "all" or name not in SPARSE]
    values = {name: np.array(pool.x[:, FEATURES.index(name)]) for name in used}
    if rows == "all":
        values["chol"][values["chol"] == 0] = np.nan
    missing = {f"{name} missing": np.isnan(column) for name, column in values.items()}
    inputs = {what: coded for name, column in values.items() for what, coded in _coded(name, column).items()}
    inputs |= {what: gaps.astype(np.float64) for what, gaps in missing.items()} if rows == "all" else {}
    whole = ~np.any(list(missing.values()), axis=0) | (rows == "all")  # [n]
    return Table(
        np.stack(list(inputs.values()), axis=1)[whole],
        pool.y[whole],
        Classes.numbered(RECORD.classes),
        RECIPE,
        {name: known[whole] for name, known in pool.client_columns.items()},
        standardise=True,
        impute=True,
        features=tuple(inputs),
    )


def _coded(name: str, column: Column) -> dict[str, Column]:
    """A measurement as inputs; where it is missing, so are they."""
    if name not in CATEGORIES:
        return {name: column}
    return {f"{name}={code}": np.where(np.isnan(column), np.nan, column == code) for code in CATEGORIES[name][1:]}
