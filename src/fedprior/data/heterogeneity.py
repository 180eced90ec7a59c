"""How different the clients of a partition are, in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedprior.errors import FedpriorError


def _entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy in nats over the last axis, with 0 log 0 = 0."""
    return np.asarray(-(p * np.log(np.where(p > 0, p, 1))).sum(-1))


def divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Jensen-Shannon divergence in bits of each row of p [clients, classes] from q [classes]: 0 to 1."""
    return np.asarray((_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2) / np.log(2))


def heterogeneity(labels: NDArray[np.int64], parts: Sequence[NDArray[np.int64]], classes: int) -> dict[str, float]:
    """Spread of sizes, and distances between each client's label distribution and that of all `labels`.

    `size_cv` is standard deviation over mean; `tv` the mean total-variation distance and `js` the mean
    Jensen-Shannon divergence in bits, both 0 for equal distributions and at most 1; `labels` the mean number
    of labels a client has; `effective_labels` the mean of exp(entropy), in which rare labels count less.
    """
    sizes = np.array([len(part) for part in parts])
    if not sizes.size or not sizes.all():
        raise FedpriorError("heterogeneity needs clients with at least one example each: drop the empty ones.")
    if labels.min() < 0 or labels.max() >= classes:
        raise FedpriorError(
            f"labels run from {labels.min()} to {labels.max()}, outside 0..{classes - 1}: number them from 0."
        )
    counts = np.stack([np.bincount(labels[part], minlength=classes) for part in parts])  # [clients, classes]
    p = counts / sizes[:, None]
    q = np.bincount(labels, minlength=classes) / len(labels)  # [classes]
    js = divergence(p, q)
    return {
        "size_min": float(sizes.min()),
        "size_median": float(np.median(sizes)),
        "size_max": float(sizes.max()),
        "size_cv": float(sizes.std() / sizes.mean()),
        "tv": float(np.abs(p - q).sum(1).mean() / 2),
        "js": float(js.mean()),
        "labels": float((counts > 0).sum(1).mean()),
        "effective_labels": float(np.exp(_entropy(p)).mean()),
    }
