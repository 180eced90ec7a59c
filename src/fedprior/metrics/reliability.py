"""How often predictions come true that claim to do so: what a perfectly calibrated model puts on the diagonal.

Two classes: the predicted probability of class 1 against its frequency. Several: the probability of the top class
against its accuracy. A number or a count: the level of a central interval against the share of labels inside.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from fedprior.data.target import Classes, Count, Target
from fedprior.metrics import counts
from fedprior.metrics.classes import correct
from fedprior.metrics.metric import Labels, Predictive, diverged

BINS = 10
LEVELS = np.arange(1, 10) / 10
NORMAL = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""


class Point(NamedTuple):
    """Predictions that claim about the same, and what became of them, with a 95 % interval."""

    claimed: float
    found: float
    low: float
    high: float
    n: int


def reliability(target: Target, predictive: Predictive, labels: Labels) -> list[Point]:
    """Points from the lowest claim to the highest; none without labels or of a model that diverged."""
    if not labels.size or diverged(predictive):
        return []
    if not isinstance(target, Classes):
        exact = predictive.astype(np.float64)
        return _counted(exact, labels) if isinstance(target, Count) else _coverage(exact, labels)
    two = predictive.shape[1] == 2
    claims = np.exp((predictive[:, 1] if two else predictive.max(axis=1)).astype(np.float64))
    came_true = labels == 1 if two else correct(predictive, labels)
    return _binned(claims, came_true)


def _binned(claims: NDArray[np.float64], came_true: NDArray[np.bool_]) -> list[Point]:
    """Bins of equal width, each at the mean of its claims; empty ones are left out."""
    bins = np.minimum((claims * BINS).astype(np.int64), BINS - 1)
    points = []
    for b in range(BINS):
        inside = bins == b
        if inside.any():
            points.append(_point(float(claims[inside].mean()), int(came_true[inside].sum()), int(inside.sum())))
    return points


def _coverage(predictive: NDArray[np.float64], labels: Labels) -> list[Point]:
    distance = np.abs(labels - predictive[:, 0]) * np.exp(-predictive[:, 1] / 2)  # in standard deviations
    widths = ndtri((1 + LEVELS) / 2)
    return [
        _point(float(level), int((distance <= width).sum()), labels.size)
        for level, width in zip(LEVELS, widths, strict=True)
    ]


def _counted(predictive: NDArray[np.float64], labels: Labels) -> list[Point]:
    """A count lies inside by a share of its probability."""
    shares = [float(counts.inside(float(level), predictive, labels).sum()) for level in LEVELS]
    return [_point(float(level), share, labels.size) for level, share in zip(LEVELS, shares, strict=True)]


def _point(claimed: float, hits: float, n: int) -> Point:
    return Point(claimed, hits / n, *wilson(hits, n), n)


def wilson(hits: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n)."""
    p, z2 = hits / n, NORMAL**2
    middle, half = p + z2 / (2 * n), NORMAL * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return max(0.0, (middle - half) / (1 + z2 / n)), min(1.0, (middle + half) / (1 + z2 / n))
