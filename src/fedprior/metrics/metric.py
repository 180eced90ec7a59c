"""What a metric is: an entry of a table that journals, tables and reports read.

A metric is a number of one client's predictive distributions [n, P] and labels [n], in float64. Two cases
are always distinguished: a metric that is *undefined* for a client (no examples, a single class) is None; the metrics
of a model that *diverged*, whose predictions are not finite, are nan, and so is every mean of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedprior.data.target import Classes, Count, Target

Predictive: TypeAlias = NDArray[np.floating[Any]]  # [n, P]
Labels: TypeAlias = NDArray[Any]  # [n]
Value: TypeAlias = float | None
Values: TypeAlias = dict[str, Value]

Unit = Literal["%", "nats", "own", ""]
"""How a value is shown: as a percentage, in nats, in the target's own unit, or as a plain number."""


class Metric(NamedTuple):
    """One entry. `each` gives every example's share [n], where the metric is their mean.

    `pseudo` gives pseudo-values [n] of a metric that is not a mean: their mean is the metric, and their spread is its
    error to first order. Where the metric is undefined there are none [0].
    """

    name: str
    title: str
    unit: Unit
    better: Literal["higher", "lower"] | float  # or its ideal value
    needs: Callable[[Target], bool]
    of: Callable[[Predictive, Labels], Value]
    each: Callable[[Predictive, Labels], NDArray[Any]] | None = None
    pseudo: Callable[[Predictive, Labels], NDArray[np.float64]] | None = None

    def badness(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same values on a scale on which less is better."""
        if isinstance(self.better, float):
            return np.abs(values - self.better)
        return -values if self.better == "higher" else values


def diverged(predictive: Predictive) -> bool:
    """Whether predictions come from a model that is not finite; a log-probability of -inf is a probability of 0."""
    return bool(np.isnan(predictive).any())


def evaluate(metrics: Mapping[str, Metric], predictive: Predictive, labels: Labels) -> Values:
    """Every metric of one client, by name."""
    if predictive.ndim != 2 or labels.shape != predictive.shape[:1]:
        raise ValueError(f"want predictions [n, P], labels [n]; got {predictive.shape}, {labels.shape}")
    if labels.size == 0:
        return dict.fromkeys(metrics)
    if diverged(predictive):
        return dict.fromkeys(metrics, float("nan"))
    exact = predictive.astype(np.float64)
    with np.errstate(over="ignore"):  # a model that is hopelessly sure of itself
        return {name: metric.of(exact, labels) for name, metric in metrics.items()}


def shown(metric: Metric, value: Value) -> str:
    """A formatted value without its unit: percentages with one decimal, numbers with three significant ones."""
    if value is None:
        return "–"
    if np.isnan(value):
        return "diverged"
    return f"{100 * value:.1f}" if metric.unit == "%" else f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"


def classes(target: Target) -> bool:
    """For any number of classes."""
    return isinstance(target, Classes)


def two_classes(target: Target) -> bool:
    """For two classes."""
    return isinstance(target, Classes) and target.count == 2


def numbers(target: Target) -> bool:
    """For a numeric target, counts too."""
    return not isinstance(target, Classes)


def counts(target: Target) -> bool:
    """For a count."""
    return isinstance(target, Count)


def measured(target: Target) -> bool:
    """For a number that is not a count."""
    return numbers(target) and not counts(target)
