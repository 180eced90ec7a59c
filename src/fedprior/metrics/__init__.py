"""How good one client's predictions are, how a cohort spreads, and what federation gained each client.

`METRICS` is the table of all metrics. A new metric is one entry; journals, tables, papers and reports read it.
"""

from fedprior.data.target import Target
from fedprior.metrics import classes, counts, numbers
from fedprior.metrics.classes import correct
from fedprior.metrics.cohort import Cohort, cohort, cohort_metrics, spread
from fedprior.metrics.gain import Gain, gain, seed_gain
from fedprior.metrics.metric import Labels, Metric, Predictive, Value, Values, diverged, evaluate, shown

__all__ = [
    "GAINS",
    "METRICS",
    "SELECTS",
    "Cohort",
    "Gain",
    "Labels",
    "Metric",
    "Predictive",
    "Value",
    "Values",
    "cohort",
    "cohort_metrics",
    "correct",
    "diverged",
    "evaluate",
    "gain",
    "main_metric",
    "metrics_of",
    "seed_gain",
    "shown",
    "spread",
]

METRICS: tuple[Metric, ...] = (*classes.METRICS, *numbers.METRICS, *counts.METRICS)
"""All metrics. Those of classes, numbers and counts may share names: no run has two of them."""

GAINS = ("accuracy", "nll")
"""The metric of gains: the first of these that a target has."""

SELECTS = "nll"
"""The metric whose validation mean chooses a round, a setting or a method: every target has it."""


def metrics_of(target: Target) -> dict[str, Metric]:
    """The metrics that a target has, by name."""
    return {metric.name: metric for metric in METRICS if metric.needs(target)}


def main_metric(target: Target) -> Metric:
    """The metric that progress and tables show first."""
    return next(iter(metrics_of(target).values()))
