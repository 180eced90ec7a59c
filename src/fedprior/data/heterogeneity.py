"""How different the clients of a federation are, in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.errors import FedpriorError


def _entropy(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropy in nats over the last axis, with 0 log 0 = 0."""
    return np.asarray(-(p * np.log(np.where(p > 0, p, 1))).sum(-1))


def divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Jensen-Shannon divergence in bits of each row of p [clients, groups] from q [groups]: 0 to 1."""
    return np.asarray((_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2) / np.log(2))


def size_spread(sizes: Sequence[int]) -> dict[str, float]:
    """Smallest, median and largest number of examples, and `size_cv`, standard deviation over mean."""
    n = np.asarray(sizes)
    if not n.size or not n.all():
        raise FedpriorError("heterogeneity needs clients with at least one example each: drop the empty ones.")
    return {
        "size_min": float(n.min()),
        "size_median": float(np.median(n)),
        "size_max": float(n.max()),
        "size_cv": float(n.std() / n.mean()),
    }


def label_spread(labels: Sequence[NDArray[np.int64]], classes: int) -> dict[str, float]:
    """Distances between each client's label distribution and that of all clients.

    `tv` is the mean total-variation distance and `js` the mean Jensen-Shannon divergence in bits, both 0 for equal
    distributions and at most 1; `labels` the mean number of labels a client has; `effective_labels` the mean of
    exp(entropy), in which rare labels count less.
    """
    everyone = np.concatenate(labels)
    if everyone.min() < 0 or everyone.max() >= classes:
        raise FedpriorError(
            f"labels run from {everyone.min()} to {everyone.max()}, outside 0..{classes - 1}: number them from 0."
        )
    counts = np.stack([np.bincount(y, minlength=classes) for y in labels])  # [clients, classes]
    p = counts / counts.sum(1, keepdims=True)
    q = np.bincount(everyone, minlength=classes) / len(everyone)  # [classes]
    return {
        "tv": float(np.abs(p - q).sum(1).mean() / 2),
        "js": float(divergence(p, q).mean()),
        "labels": float((counts > 0).sum(1).mean()),
        "effective_labels": float(np.exp(_entropy(p)).mean()),
    }


def value_spread(labels: Sequence[NDArray[Any]]) -> dict[str, float]:
    """How much the clients' numeric labels differ.

    `between` is the share of the variance of all labels that lies between the clients' means, 0 to 1; `shift` the mean
    distance of a client's mean from that of all, and `scale` the mean of a client's deviation, both in deviations of
    all labels.
    """
    labels = [y.astype(np.float64) for y in labels]  # whose squares single precision may not hold
    everyone = np.concatenate(labels)
    mean, deviation = everyone.mean(), everyone.std() or 1.0
    n, means = np.array([len(y) for y in labels]), np.array([y.mean() for y in labels])
    return {
        "between": float((n * (means - mean) ** 2).sum() / (len(everyone) * deviation**2)),
        "shift": float(np.abs(means - mean).mean() / deviation),
        "scale": float(np.mean([y.std() for y in labels]) / deviation),
    }
