"""Pseudo-values: their mean is the metric, and their variance its error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from fedprior.data.target import Classes, Number
from fedprior.metrics import metrics_of
from fedprior.metrics.metric import Metric

AUROC, SEVERAL, RMSE = (
    metrics_of(Classes(("no", "yes")))["auroc"],
    metrics_of(Classes(tuple("abc")))["auroc"],
    metrics_of(Number())["rmse"],
)


def values(metric: Metric, predictive: NDArray[np.float64], labels: NDArray[Any]) -> NDArray[np.float64]:
    assert metric.pseudo is not None
    return metric.pseudo(predictive, labels)


def classes(n: int, k: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Rounded, so that there are ties; every class occurs."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(k), rng.integers(0, k, n - k)])
    logits = (rng.normal(size=(n, k)) + np.eye(k)[labels]).round(1)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True)), labels


def test_their_mean_is_the_area() -> None:
    log_probs, labels = classes(40, 2)
    found = values(AUROC, log_probs, labels)
    odds = log_probs[:, 1] - log_probs[:, 0]
    assert found.mean() == pytest.approx(roc_auc_score(labels, odds))
    assert AUROC.of(log_probs, labels) == pytest.approx(found.mean())
    log_probs, labels = classes(60, 3)
    assert values(SEVERAL, log_probs, labels).mean() == pytest.approx(SEVERAL.of(log_probs, labels))


def test_their_variance_is_delongs() -> None:
    """S₁₀/m + S₀₁/k of the kernel matrix, written out; ours has n and not n - 1 in each class, here within 5 %."""
    log_probs, labels = classes(300, 2, 3)
    odds = log_probs[:, 1] - log_probs[:, 0]
    ill, well = odds[labels == 1], odds[labels == 0]
    kernel = (ill[:, None] > well) + 0.5 * (ill[:, None] == well)
    expected = kernel.mean(1).var(ddof=1) / len(ill) + kernel.mean(0).var(ddof=1) / len(well)
    found = values(AUROC, log_probs, labels)
    assert found.var(ddof=1) / len(found) == pytest.approx(expected, rel=0.05)


def test_where_there_is_one_class_there_are_none() -> None:
    log_probs, _ = classes(9, 2)
    assert values(AUROC, log_probs, np.zeros(9, dtype=np.int64)).shape == (0,)


def test_the_root_of_squares_by_the_jackknife() -> None:
    """Leaving one of n out changes the root by its pseudo-value's share: n R - (n - 1) R₋ᵢ, to first order."""
    rng = np.random.default_rng(0)
    predictive, labels = np.zeros((400, 2)), rng.normal(size=400)
    found = values(RMSE, predictive, labels)
    assert found.mean() == pytest.approx(RMSE.of(predictive, labels))
    squares = labels**2
    without = np.sqrt((squares.sum() - squares) / 399)
    jackknife = 400 * np.sqrt(squares.mean()) - 399 * without
    np.testing.assert_allclose(found, jackknife, rtol=0.01)
    assert values(RMSE, predictive, np.zeros(400)).tolist() == [0.0] * 400
