"""Small handwritten digits, shipped with scikit-learn."""

from __future__ import annotations

import numpy as np

from fedprior.data.registry import register_dataset
from fedprior.data.table import Recipe, Table
from fedprior.data.target import Classes

RECIPE: Recipe = {
    "model": {"name": "mlp", "hidden": [64]},
    "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "batch_size": 20, "epochs": 5},
}


@register_dataset()
def digits() -> Table:
    """1,797 handwritten digits of 8×8 pixels, 10 classes (scikit-learn)."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return Table(x.reshape(-1, 1, 8, 8) / 16, y.astype(np.int64), Classes.numbered(10), RECIPE, {"label": y})
