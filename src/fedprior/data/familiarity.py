"""Rows unlike those that a model was trained on, told by what its encoder knows: levels, means and deviations.

A row is flagged where a number lies more than `FAR` standard deviations from the mean of the training rows (by
Chebyshev's inequality at most 1 in 16 of them does, whatever their distribution, and of normal ones 1 in 16,000), where
a category has a level that training did not have, and where a value is missing in a column that was complete. The
smallest and largest training values would tell more, but they are patients' values, and a model's file holds none. A
row that is unusual only in its combination of values is not flagged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedprior.data.columns import Column
from fedprior.data.encoder import Encoder
from fedprior.data.schema import by_name
from fedprior.names import on_screen

FAR = 4.0
"""Standard deviations from the mean."""


def unlike(encoder: Encoder, frame: pd.DataFrame) -> list[str]:
    """For each row why it is unlike the training data, or an empty text."""
    schema, scaler = encoder.schema, encoder.scaler
    if schema is None:
        return [""] * len(frame)
    table, reasons = by_name(frame), [list[str]() for _ in range(len(frame))]
    scaled = bool((scaler.mean != 0).any() or (scaler.std != 1).any())
    for column in schema.used:
        given, name = table[column.name], on_screen(column.name)
        told = _gaps(column, given) if not column.missing else np.full(len(frame), "", dtype=object)
        if column.kind == "category":
            told = np.where(column.odd(given), "unknown level", told)
        elif column.kind == "number" and scaled:
            k = schema.inputs.index(column.name)
            told = _distance(column.values(given)[:, 0], float(scaler.mean[k]), float(scaler.std[k]), told)
        for row in np.flatnonzero(told != ""):
            reasons[row].append(f"{name}: {told[row]}")
    return ["; ".join(found) for found in reasons]


def _gaps(column: Column, given: Any) -> NDArray[Any]:
    return np.where(given.isna().to_numpy(np.bool_), "missing", "").astype(object)


def _distance(values: NDArray[np.float64], mean: float, std: float, told: NDArray[Any]) -> NDArray[Any]:
    z = (values - mean) / std
    far = np.abs(np.nan_to_num(z, nan=0.0)) > FAR
    words = np.array([f"{abs(v):.1f} SD {'above' if v > 0 else 'below'} the mean" for v in z], dtype=object)
    return np.where(far, words, told)
