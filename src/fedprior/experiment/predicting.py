"""Predictions for a table, row by row: probabilities of classes, or numbers with intervals, and rows to mistrust."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri

from fedprior.data.encoder import Encoder
from fedprior.data.familiarity import unlike
from fedprior.data.pictures import loose
from fedprior.data.reading import read_file
from fedprior.data.target import Classes, Count, Target
from fedprior.errors import FedpriorError
from fedprior.experiment.personal import PersonalModel
from fedprior.metrics import counts
from fedprior.names import csv_cell

INTERVALS = (50, 90)
"""Per cent of the central intervals of a number or count."""
UNLIKE = "unlike_training"


def predictions(model: PersonalModel, frame: pd.DataFrame) -> pd.DataFrame:
    """One row per row of the table, in its order.

    Classes: `prediction` and one `probability_CLASS` each. A number or a count: `mean`, `sd` and the ends of its
    central 50 and 90 % intervals. `unlike_training` says why a row is unlike the training data, and is empty where it
    is not.
    """
    encoder = _encoder(model)
    if encoder.schema is None:
        raise FedpriorError("the model was trained on images: give a folder of them.")
    if not len(frame):
        raise FedpriorError("the table has a header but no rows: there is nothing to predict.")
    table = _readable(encoder.schema.target, model.predict(frame))
    return table.assign(**{UNLIKE: unlike(encoder, frame)})


def predict_files(model: PersonalModel, place: Path) -> pd.DataFrame:
    """Predictions for a table or, of a model of images, for a folder of them: `file` is then the first column.

    Images are not compared with those of training: there is no `unlike_training`.
    """
    if not _encoder(model).takes_pixels:
        return predictions(model, read_file(place))
    assert model.shape is not None, "the file of a model of images says it"
    assert model.target is not None, "as every new file does"
    names, x = loose(place, model.shape)
    table = _readable(model.target, model.predict(x, raw=True))
    table.insert(0, "file", names)
    return table


def _encoder(model: PersonalModel) -> Encoder:
    encoder = model.encoder
    if encoder is None or (encoder.schema is None and not encoder.takes_pixels):
        raise FedpriorError("the model was trained on arrays, not on a table: use load_model(path).predict(x).")
    return encoder


def _readable(target: Target, found: NDArray[Any]) -> pd.DataFrame:
    """What a model predicts, with names."""
    rows = pd.RangeIndex(1, len(found) + 1, name="row")
    if isinstance(target, Classes):
        table = pd.DataFrame({"prediction": [target.levels[k] for k in found.argmax(1)]}, index=rows)
        for k, level in enumerate(target.levels):
            table[f"probability_{level}"] = found[:, k]
    else:
        table = pd.DataFrame({"mean": found[:, 0], "sd": found[:, 1]}, index=rows)
        for share in INTERVALS:
            table[f"low_{share}"], table[f"high_{share}"] = (
                _quantiles(target, found, 0.5 + sign * share / 200) for sign in (-1, 1)
            )
    return table


def _quantiles(target: Target, found: NDArray[Any], share: float) -> NDArray[Any]:
    """Of predictive distributions by mean and deviation [n, 2]."""
    if isinstance(target, Count):
        return counts.quantiles(found[:, 0], found[:, 1], share)
    return found[:, 0] + float(ndtri(share)) * found[:, 1]


def as_csv(table: pd.DataFrame) -> str:
    """Predictions as CSV; names of classes are cells that no spreadsheet takes for a formula."""
    plain = table.rename(columns=lambda name: csv_cell(str(name)))
    for name in ("file", "prediction", UNLIKE):
        if name in plain:
            plain[name] = [csv_cell(str(value)) for value in plain[name]]
    return plain.to_csv(float_format="%.6g", lineterminator="\n")
