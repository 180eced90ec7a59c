"""The metrics of a cohort: one value a client, and what the N values say together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprior.errors import unknown
from fedprior.metrics.client import HIGHER_IS_BETTER, METRICS, Labels, LogProbs, client_metrics


class Cohort(NamedTuple):
    """Metrics of N clients, those without test examples included as nan."""

    clients: dict[str, NDArray[np.float64]]  # metric -> [N], nan where the test set is empty
    sizes: NDArray[np.int64]  # [N] test examples
    evaluated: int  # clients with a test set: those that the summary speaks of
    summary: dict[str, dict[str, float]]  # metric -> mean, std, worst_decile, pooled


def spread(metric: str, values: NDArray[np.float64]) -> dict[str, float]:
    """How one metric spreads over the clients that have it, values [N].

    * `mean`: every client counts the same, whatever its size
    * `std`: sqrt(Σ (v_i - mean)² / (N - 1)); nan for a single client, and when a value is infinite
    * `worst_decile`: mean of the ⌈N/10⌉ worst, the lowest or the highest as the metric has it

    No values, or a nan among them (a diverged client), make all three nan.
    """
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    N = values.size
    if N == 0 or np.isnan(values).any():
        return dict.fromkeys(("mean", "std", "worst_decile"), float("nan"))
    ascending = np.sort(values)
    worst = (ascending if metric in HIGHER_IS_BETTER else ascending[::-1])[: -(-N // 10)]
    with np.errstate(invalid="ignore"):  # inf - inf
        std = float(values.std(ddof=1)) if N > 1 else float("nan")
    return {"mean": float(values.mean()), "std": std, "worst_decile": float(worst.mean())}


def cohort_metrics(predictions: Sequence[tuple[LogProbs, Labels]]) -> Cohort:
    """Metrics of each client's (log_probs [n_i, K], labels [n_i]), and their summary.

    `pooled` is the metric of all examples put together; for accuracy, NLL and Brier that is the mean weighted
    by n_i, for balanced accuracy and ECE it is not. Clients without test examples are in no summary.
    """
    rows = [client_metrics(log_probs, labels) for log_probs, labels in predictions]
    clients = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in METRICS}
    sizes = np.array([labels.size for _, labels in predictions], dtype=np.int64)
    evaluated = sizes > 0
    pooled = _pooled([(log_probs, labels) for log_probs, labels in predictions if labels.size])
    summary = {name: spread(name, clients[name][evaluated]) | {"pooled": pooled[name]} for name in METRICS}
    return Cohort(clients, sizes, int(evaluated.sum()), summary)


def _pooled(predictions: Sequence[tuple[LogProbs, Labels]]) -> dict[str, float]:
    if not predictions:
        return dict.fromkeys(METRICS, float("nan"))
    log_probs, labels = zip(*predictions, strict=True)
    return client_metrics(np.concatenate(log_probs), np.concatenate(labels))
