"""Metrics of counts against SciPy's distributions and simulated truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from fedprior.data.target import Count
from fedprior.metrics import certainty, counts, evaluate, main_metric, metrics_of
from fedprior.metrics.reliability import reliability
from fedprior.models.likelihood import Counts

METRICS = metrics_of(Count())
Floats = NDArray[np.float64]


def drawn(n: int, excess: float, seed: int = 0) -> tuple[Floats, Floats]:
    """Means from 0.05 to 20 with variances (1 + excess) times as large, and counts drawn from them."""
    rng = np.random.default_rng(seed)
    mean = np.exp(rng.uniform(np.log(0.05), np.log(20), size=n))
    r = mean / excess if excess else np.inf
    y = rng.poisson(mean if not excess else mean * rng.gamma(r, 1 / r))
    return np.stack([mean, np.log(mean * (1 + excess))], axis=1), y.astype(np.float64)


def test_counts_have_the_metrics_of_numbers() -> None:
    assert list(METRICS) == ["rmse", "mae", "r2", "nll", "coverage50", "coverage90"]
    assert main_metric(Count()).name == "rmse"


@pytest.mark.parametrize("excess", [0.0, 0.5, 4.0])
def test_the_nll_is_scipys_and_the_likelihoods(excess: float) -> None:
    predictive, y = drawn(200, excess)
    mean = predictive[:, 0]
    r = mean / excess if excess else None
    log_p = stats.poisson.logpmf(y, mean) if r is None else stats.nbinom.logpmf(y, r, r / (r + mean))
    found = evaluate(METRICS, predictive, y)
    assert found["nll"] == pytest.approx(-log_p.mean(), rel=1e-8)
    ours = Counts().log_density(torch.from_numpy(predictive), torch.from_numpy(y))
    assert found["nll"] == pytest.approx(-ours.mean().item(), rel=1e-8)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))


@pytest.mark.parametrize("excess", [0.0, 0.5, 4.0])
def test_a_calibrated_model_is_on_the_diagonal(excess: float) -> None:
    """Also for counts of mostly 0, of which every interval holds more than its level: by the share of a count's mass.

    Of 20,000 rows a share has an error of at most 0.0036; four of them.
    """
    predictive, y = drawn(20_000, excess)
    for point in reliability(Count(), predictive, y):
        assert point.found == pytest.approx(point.claimed, abs=0.0145)
        assert point.low < point.found < point.high
    found = evaluate(METRICS, predictive, y)
    assert found["coverage50"] == pytest.approx(0.5, abs=0.0145)
    assert found["coverage90"] == pytest.approx(0.9, abs=0.0085)
    narrow = predictive.copy()
    narrow[:, 0], narrow[:, 1] = predictive[:, 0] * 2, predictive[:, 1] + np.log(2)
    wrong = evaluate(METRICS, narrow, y)["coverage90"]
    assert wrong is not None
    assert wrong < 0.87


def test_how_much_of_a_count_is_inside_by_hand() -> None:
    """Poisson(log 2): P(0) = ½ fills [0, ½], of which [¼, ¾] has half; P(≤ 1) = ½ + ½ log 2 = 0.847 fills up to ¾."""
    rate = np.log(2)
    predictive = np.tile([rate, np.log(rate)], (2, 1))
    inside = counts.inside(0.5, predictive, np.array([0.0, 1.0]))
    np.testing.assert_allclose(inside, [0.5, 0.25 / (rate / 2)])


def test_quantiles_are_scipys() -> None:
    mean, deviation = np.array([0.5, 4.0, 4.0]), np.sqrt([0.5, 4.0, 12.0])
    found = counts.quantiles(mean, deviation, 0.95)
    assert found.tolist() == [
        stats.poisson.ppf(0.95, 0.5),
        stats.poisson.ppf(0.95, 4),
        stats.nbinom.ppf(0.95, 2, 1 / 3),
    ]


def test_the_entropy_of_a_count_is_left_out() -> None:
    assert certainty.certainty(Count(), drawn(5, 0.0)[0]) == {}
