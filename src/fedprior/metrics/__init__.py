"""How good one client's predictions are, how a cohort spreads, and what federation gained each client."""

from fedprior.metrics.client import (
    HIGHER_IS_BETTER,
    METRICS,
    Labels,
    LogProbs,
    Metric,
    accuracy,
    balanced_accuracy,
    brier,
    client_metrics,
    correct,
    ece,
    nll,
)
from fedprior.metrics.cohort import Cohort, cohort_metrics, spread
from fedprior.metrics.gain import Gain, gain, seed_gain

__all__ = [
    "HIGHER_IS_BETTER",
    "METRICS",
    "Cohort",
    "Gain",
    "Labels",
    "LogProbs",
    "Metric",
    "accuracy",
    "balanced_accuracy",
    "brier",
    "client_metrics",
    "cohort_metrics",
    "correct",
    "ece",
    "gain",
    "nll",
    "seed_gain",
    "spread",
]
