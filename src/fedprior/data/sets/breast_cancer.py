"""The Wisconsin diagnostic data, shipped with scikit-learn."""

from __future__ import annotations

import numpy as np

from fedprior.data.registry import register_dataset
from fedprior.data.table import Recipe, Table
from fedprior.data.target import Classes

RECIPE: Recipe = {
    "model": {"name": "mlp", "hidden": [16], "single_logit": True},
    "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "batch_size": 16, "epochs": 5},
}


@register_dataset()
def breast_cancer() -> Table:
    """569 tumours with 30 measurements, benign or malignant (scikit-learn; Wisconsin diagnostic data)."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    y, names = found.target, tuple(str(name) for name in found.feature_names)
    columns = {"label": y}
    return Table(found.data, y.astype(np.int64), Classes.numbered(2), RECIPE, columns, standardise=True, features=names)
