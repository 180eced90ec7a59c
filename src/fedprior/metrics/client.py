"""Metrics of one client's predictions, from log predictive probabilities [n, K] and labels [n].

Every metric is a plain function `(log_probs, labels) -> float`, computed in float64. Two things hold for all:
an empty test set has the value nan, and so have predictions with a nan in them (a diverged model is not a
model with some accuracy). A log-probability of -inf is a probability of zero, and is welcome.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

LogProbs: TypeAlias = NDArray[np.floating[Any]]  # [n, K]
Labels: TypeAlias = NDArray[np.int64]  # [n]
Metric: TypeAlias = Callable[[LogProbs, Labels], float]

ECE_BINS = 15


def _guarded(metric: Metric) -> Metric:
    """Check the shapes, answer nan for nothing or nan, and hand float64 to the formula."""

    @functools.wraps(metric)
    def checked(log_probs: LogProbs, labels: Labels) -> float:
        if log_probs.ndim != 2 or labels.shape != log_probs.shape[:1]:
            raise ValueError(f"want log_probs [n, K], labels [n]; got {log_probs.shape}, {labels.shape}")
        if labels.size == 0 or np.isnan(log_probs).any():
            return float("nan")
        if labels.min() < 0 or labels.max() >= log_probs.shape[1]:
            raise ValueError(f"labels must lie in 0 .. {log_probs.shape[1] - 1}")
        return metric(log_probs.astype(np.float64), labels)

    return checked


def correct(log_probs: LogProbs, labels: Labels) -> NDArray[np.bool_]:
    """Whether the top class is the label, [n]; the lowest index wins a tie, a row with a nan is wrong."""
    hit = log_probs.argmax(axis=1) == labels
    return np.asarray(hit & ~np.isnan(log_probs).any(axis=1), dtype=np.bool_)


@_guarded
def accuracy(log_probs: LogProbs, labels: Labels) -> float:
    """Share of examples whose top class is the label."""
    return float(correct(log_probs, labels).mean())


@_guarded
def balanced_accuracy(log_probs: LogProbs, labels: Labels) -> float:
    """Recall of a class, averaged over the classes that occur in `labels`."""
    n = np.bincount(labels)  # [<= K]
    hits = np.bincount(labels, weights=correct(log_probs, labels))
    return float((hits[n > 0] / n[n > 0]).mean())


@_guarded
def nll(log_probs: LogProbs, labels: Labels) -> float:
    """Negative log-likelihood, -1/n Σ_i log p_i(y_i) in nats; inf once a label was given probability zero."""
    return float(-log_probs[np.arange(labels.size), labels].mean())


@_guarded
def brier(log_probs: LogProbs, labels: Labels) -> float:
    """Multi-class Brier score, 1/n Σ_i Σ_k (p_i(k) - 1[y_i = k])², between 0 and 2."""
    error = np.exp(log_probs)  # [n, K]
    error[np.arange(labels.size), labels] -= 1
    return float((error**2).sum(axis=1).mean())


@_guarded
def ece(log_probs: LogProbs, labels: Labels) -> float:
    """Expected calibration error of the top class, Σ_b n_b/n |accuracy_b - confidence_b|.

    Bin b = 1 .. 15 holds the examples whose confidence max_k p(k) lies in ((b-1)/15, b/15]. The estimate is
    biased upwards on small test sets: compare clients of one size, or read the pooled value.
    """
    confidence = np.exp(log_probs.max(axis=1))  # [n]
    b = np.digitize(confidence, np.arange(1, ECE_BINS) / ECE_BINS, right=True)
    gap = np.bincount(b, weights=correct(log_probs, labels) - confidence)  # n_b (accuracy_b - confidence_b)
    return float(np.abs(gap).sum() / labels.size)


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "nll": nll,
    "brier": brier,
    "ece": ece,
}
HIGHER_IS_BETTER = frozenset({"accuracy", "balanced_accuracy"})


def client_metrics(log_probs: LogProbs, labels: Labels) -> dict[str, float]:
    """Every metric of `METRICS`, by name and in that order."""
    return {name: metric(log_probs, labels) for name, metric in METRICS.items()}
