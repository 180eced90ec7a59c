"""Metrics of predicted numbers, from means and log-variances [n, 2] and numbers [n], all in the target's own unit."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedprior.metrics.metric import Labels, Metric, Predictive, measured, numbers


def _squares(predictive: Predictive, labels: Labels) -> NDArray[np.float64]:
    return np.asarray(np.square(labels - predictive[:, 0]), dtype=np.float64)


def _distances(predictive: Predictive, labels: Labels) -> NDArray[np.float64]:
    return np.asarray(np.abs(labels - predictive[:, 0]), dtype=np.float64)


def _surprises(predictive: Predictive, labels: Labels) -> NDArray[np.float64]:
    """-log N(y; m, e^s)."""
    s = predictive[:, 1]
    return np.asarray(0.5 * (math.log(2 * math.pi) + s + _squares(predictive, labels) * np.exp(-s)), dtype=np.float64)


def rmse(predictive: Predictive, labels: Labels) -> float:
    """Root of the mean squared error."""
    return math.sqrt(float(_squares(predictive, labels).mean()))


def _parts(predictive: Predictive, labels: Labels) -> NDArray[np.float64]:
    """Pseudo-values of the RMSE R, R + (e² - R²) / 2R by the delta method."""
    squares = _squares(predictive, labels)
    root = math.sqrt(float(squares.mean()))
    return root + (squares - root**2) / (2 * root) if root > 0 else squares


def mae(predictive: Predictive, labels: Labels) -> float:
    """Mean absolute error."""
    return float(_distances(predictive, labels).mean())


def nll(predictive: Predictive, labels: Labels) -> float:
    """Negative log-density in nats, which depends on the target's unit."""
    return float(_surprises(predictive, labels).mean())


def r2(predictive: Predictive, labels: Labels) -> float | None:
    """1 - Σ (y - m)² / Σ (y - mean y)², with the mean of these labels; undefined where they are all equal."""
    total = float(np.square(labels - labels.mean()).sum())
    return 1 - float(_squares(predictive, labels).sum()) / total if total > 0 else None


def _inside(level: float, predictive: Predictive, labels: Labels) -> NDArray[np.float64]:
    width = ndtri((1 + level) / 2) * np.exp(predictive[:, 1] / 2)
    return np.asarray(_distances(predictive, labels) <= width, dtype=np.float64)


def coverage50(predictive: Predictive, labels: Labels) -> float:
    """Share of labels inside their central 50 % interval."""
    return float(_inside(0.5, predictive, labels).mean())


def coverage90(predictive: Predictive, labels: Labels) -> float:
    """Share of labels inside their central 90 % interval."""
    return float(_inside(0.9, predictive, labels).mean())


METRICS = (
    Metric("rmse", "RMSE", "own", "lower", numbers, rmse, pseudo=_parts),
    Metric("mae", "MAE", "own", "lower", numbers, mae, _distances),
    Metric("nll", "NLL", "nats", "lower", measured, nll, _surprises),
    Metric("r2", "R²", "", "higher", numbers, r2),
    Metric("coverage50", "50 % coverage", "%", 0.5, measured, coverage50),
    Metric("coverage90", "90 % coverage", "%", 0.9, measured, coverage90),
)
