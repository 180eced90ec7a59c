"""The metrics of a cohort: one value per client, and a summary of the N values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprior.metrics.metric import Labels, Metric, Predictive, Values, evaluate


class Cohort(NamedTuple):
    """Metrics of N clients."""

    clients: list[Values]  # of each client
    sizes: NDArray[np.int64]  # [N] examples
    evaluated: int  # clients that have examples, which the summary covers
    diverged: int  # those of them whose model is not finite
    summary: dict[str, dict[str, float]]  # metric -> mean, std, worst_decile, pooled, undefined

    def values(self, metric: str) -> NDArray[np.float64]:
        """One metric of every client, [N]; nan where it is undefined or the client diverged."""
        return np.array([np.nan if v[metric] is None else v[metric] for v in self.clients], dtype=np.float64)


def spread(metric: Metric, values: Sequence[float | None]) -> dict[str, float]:
    """How one metric spreads over the clients that have it.

    * `mean`: every client counts the same, whatever its size
    * `std`: sqrt(Σ (v_i - mean)² / (N - 1)); nan for a single client, and when a value is infinite
    * `worst_decile`: mean of the ⌈N/10⌉ worst, the lowest, the highest or the farthest off, depending on the metric
    * `undefined`: number of clients for which it is undefined; they are excluded above

    No values, or a nan among them (a diverged client), make the first three nan.
    """
    known = np.array([value for value in values if value is not None], dtype=np.float64)
    found = {"undefined": float(len(values) - known.size)}
    if known.size == 0 or np.isnan(known).any():
        return dict.fromkeys(("mean", "std", "worst_decile"), float("nan")) | found
    worst = known[np.argsort(-metric.badness(known), kind="stable")][: -(-known.size // 10)]
    with np.errstate(invalid="ignore"):  # inf - inf
        std = float(known.std(ddof=1)) if known.size > 1 else float("nan")
    return {"mean": float(known.mean()), "std": std, "worst_decile": float(worst.mean())} | found


def cohort(
    metrics: Mapping[str, Metric],
    clients: Sequence[Values],
    sizes: Sequence[int],
    predictions: Sequence[tuple[Predictive, Labels]] | None,
) -> Cohort:
    """A summary of clients' metrics; clients without examples are excluded.

    `pooled` is the metric of all examples together. Where `predictions` do not leave the clients, it is the mean
    weighted by examples, for metrics where the two are equal.
    """
    n = np.array(sizes, dtype=np.int64)
    there = [values for values, size in zip(clients, sizes, strict=True) if size]
    failed = sum(any(v is not None and math.isnan(v) for v in values.values()) for values in there)
    pooled = _pooled(metrics, predictions) if predictions is not None else _weighted(metrics, clients, n)
    summary = {
        name: spread(metric, [values[name] for values in there]) | {"pooled": pooled[name]}
        for name, metric in metrics.items()
    }
    return Cohort(list(clients), n, len(there), failed, summary)


def cohort_metrics(metrics: Mapping[str, Metric], predictions: Sequence[tuple[Predictive, Labels]]) -> Cohort:
    """Metrics of each client's (predictive [n_i, P], labels [n_i]), and their summary."""
    clients = [evaluate(metrics, predictive, labels) for predictive, labels in predictions]
    return cohort(metrics, clients, [labels.size for _, labels in predictions], predictions)


def _pooled(metrics: Mapping[str, Metric], predictions: Sequence[tuple[Predictive, Labels]]) -> dict[str, float]:
    some = [(predictive, labels) for predictive, labels in predictions if labels.size]
    if not some:
        return dict.fromkeys(metrics, float("nan"))
    predictive, labels = zip(*some, strict=True)
    found = evaluate(metrics, np.concatenate(predictive), np.concatenate(labels))
    return {name: float("nan") if value is None else value for name, value in found.items()}


def _weighted(metrics: Mapping[str, Metric], clients: Sequence[Values], n: NDArray[np.int64]) -> dict[str, float]:
    pooled = {}
    for name, metric in metrics.items():
        known = [(values[name], size) for values, size in zip(clients, n.tolist(), strict=True) if size]
        total = sum(size for _, size in known)
        means = metric.each is not None and total and all(value is not None for value, _ in known)
        pooled[name] = sum((value or 0.0) * size for value, size in known) / total if means else float("nan")
    return pooled
