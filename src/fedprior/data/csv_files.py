"""Tables of one's own: a CSV file with a column that names the site, or a folder with a file a site."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedprior.data.table import Recipe, Table
from fedprior.errors import FedpriorError


def csv(path: Path, target: str, client: str | None = None, missing: Literal["refuse", "median"] = "refuse") -> Table:
    """CSV of your own, one file or a folder of one a site: numbers, `target` the class, `client` the site's column.

    Missing numbers are refused, or become the median of the site's own training examples.
    """
    frame, files = _folder(path) if path.is_dir() else (_file(path), None)
    for column in (target, client):
        if column is not None and column not in frame:
            raise FedpriorError(f"'{path}' has no column '{column}': its columns are {', '.join(frame.columns)}.")
    sites = files if client is None else frame[client].to_numpy()
    if sites is None:
        raise FedpriorError(f"data 'csv' needs the option 'client': which column of '{path}' names the site?")
    features = frame.drop(columns=[target] if client is None else [target, client])
    if features.empty:
        raise FedpriorError(f"'{path}' has nothing but the class and the site: add the inputs of the model.")
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
    x, columns = features.to_numpy(np.float64), {client or "file": sites}
    return Table(x, y, len(labels), recipe, columns, standardise=True, impute=missing == "median")


def _file(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise FedpriorError(f"there is no file '{path}': give data.path a CSV file, or a folder of them.")
    try:
        return pd.read_csv(path)
    except ValueError as error:  # pandas' parser errors are ValueErrors
        raise FedpriorError(f"'{path}' is not a CSV file that can be read: {str(error).strip()}.") from None


def _folder(path: Path) -> tuple[pd.DataFrame, NDArray[np.object_]]:
    """All files one below another, and the name of each row's. The columns must be the same, in any order."""
    files = sorted(path.glob("*.csv"))
    if not files:
        raise FedpriorError(f"the folder '{path}' has no file that ends in .csv: put one there for every site.")
    frames = [_file(file) for file in files]
    for file, frame in zip(files, frames, strict=True):
        for column in sorted(set(frame.columns) ^ set(frames[0].columns)):
            raise FedpriorError(
                f"only one of '{files[0]}' and '{file}' has a column '{column}': all sites need the same columns."
            )
    names = np.repeat(np.array([file.stem for file in files], dtype=object), [len(frame) for frame in frames])
    return pd.concat(frames, ignore_index=True), names
