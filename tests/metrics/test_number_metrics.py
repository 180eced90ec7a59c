"""Metrics of one client's numbers, against scikit-learn, scipy and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from fedprior.data.target import Number
from fedprior.metrics import Labels, Predictive, evaluate, metrics_of

METRICS = metrics_of(Number("mmol/l"))
every = pytest.mark.parametrize("name", METRICS)


def random_predictions(seed: int, n: int, scale: float) -> tuple[Predictive, Labels]:
    """Means and log-variances [n, 2] in a unit of some size, and labels [n] drawn from them."""
    rng = np.random.default_rng(seed)
    mean, sigma = scale * rng.normal(size=n), scale * rng.uniform(0.2, 2, size=n)
    return np.stack([mean, 2 * np.log(sigma)], axis=1), rng.normal(mean, sigma)


samples = st.builds(
    random_predictions,
    seed=st.integers(0, 10**6),
    n=st.integers(2, 60),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)


@settings(deadline=None)
@given(samples)
def test_metrics_agree_with_independent_oracles(sample: tuple[Predictive, Labels]) -> None:
    predictive, labels = sample
    mean, sigma = predictive[:, 0], np.exp(predictive[:, 1] / 2)
    known = norm(mean, sigma)
    inside = {
        level: [a <= y <= b for a, b, y in zip(*known.interval(level), labels, strict=True)] for level in (0.5, 0.9)
    }
    expected = {
        "rmse": math.sqrt(mean_squared_error(labels, mean)),
        "mae": mean_absolute_error(labels, mean),
        "nll": -known.logpdf(labels).mean(),
        "r2": r2_score(labels, mean),
        "coverage50": np.mean(inside[0.5]),
        "coverage90": np.mean(inside[0.9]),
    }
    assert evaluate(METRICS, predictive, labels) == pytest.approx(expected, rel=1e-9)


def test_by_hand() -> None:
    """Labels 1, 2, 3 and 6 (mean 3, Σ(y - 3)² = 4 + 1 + 0 + 9 = 14), all predicted as N(3, 4): errors -2, -1, 0, 3.

    RMSE √(14/4), MAE 6/4, R² 1 - 14/14 = 0, NLL ½ log(2π · 4) + 14/4/8. With σ = 2 the central half reaches
    0.6745 · 2 = 1.35 either side: two of four; 90 % reach 1.645 · 2 = 3.29: all.
    """
    predictive, labels = np.tile([3.0, math.log(4)], (4, 1)), np.array([1.0, 2, 3, 6])
    assert evaluate(METRICS, predictive, labels) == pytest.approx(
        {
            "rmse": math.sqrt(3.5),
            "mae": 1.5,
            "nll": 0.5 * math.log(8 * math.pi) + 3.5 / 8,
            "r2": 0.0,
            "coverage50": 0.5,
            "coverage90": 1.0,
        }
    )


def test_calibrated_predictions_cover_what_they_say() -> None:
    """20,000 labels drawn as predicted: standard errors √(0.25/n) = 0.0035 and √(0.09/n) = 0.0021, times 4."""
    predictive, labels = random_predictions(0, 20_000, 5.0)
    found = evaluate(METRICS, predictive, labels)
    assert found["coverage50"] == pytest.approx(0.5, abs=0.014)
    assert found["coverage90"] == pytest.approx(0.9, abs=0.0085)


def test_a_change_of_unit() -> None:
    """In units 100 times smaller, errors are 100 times larger, NLL rises by log 100, and shares stay."""
    predictive, labels = random_predictions(1, 50, 1.0)
    smaller = np.stack([100 * predictive[:, 0], predictive[:, 1] + 2 * math.log(100)], axis=1)
    before, after = evaluate(METRICS, predictive, labels), evaluate(METRICS, smaller, 100 * labels)
    for name, value in before.items():
        assert value is not None
        expected = {"rmse": 100 * value, "mae": 100 * value, "nll": value + math.log(100)}.get(name, value)
        assert after[name] == pytest.approx(expected), name


@every
def test_every_metric_says_which_way_is_better(name: str) -> None:
    """Ten labels -0.9, -0.7 … 0.9: predicted as themselves ± 0.01 with σ = 0.0141, or all as 5 with σ = 0.01.

    For the first, errors are 0.71 σ: none inside the half of the mass (0.674 σ), all inside nine tenths (1.645 σ), so
    the coverages are off by 0.5 and 0.1. For the second nothing is covered: off by 0.5 and 0.9.
    """
    labels = np.linspace(-0.9, 0.9, 10)
    close = np.stack([labels + 0.01, np.full(10, 2 * math.log(0.0141))], axis=1)
    far = np.tile([5.0, 2 * math.log(0.01)], (10, 1))
    good, bad = (np.array([evaluate(METRICS, predictive, labels)[name]], np.float64) for predictive in (close, far))
    badness = METRICS[name].badness
    assert badness(good) == pytest.approx(0.5) if name == "coverage50" else badness(good) < badness(bad)


@every
def test_no_examples_are_undefined(name: str) -> None:
    assert evaluate(METRICS, np.zeros((0, 2)), np.zeros(0))[name] is None


@every
@pytest.mark.parametrize("labels", [[3.0], [3.0, 3.0]])
def test_equal_labels_have_no_r2_and_all_else(name: str, labels: list[float]) -> None:
    value = evaluate(METRICS, np.zeros((len(labels), 2)), np.array(labels))[name]
    assert (value is None) == (name == "r2")


@every
def test_a_model_that_diverged_has_nan_for_all(name: str) -> None:
    """A mean, or a log-variance, of a single example is nan; r2 is nan too, although the labels are equal."""
    for broken in ([[np.nan, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, np.nan]]):
        value = evaluate(METRICS, np.array(broken), np.array([1.0, 1.0]))[name]
        assert value is not None
        assert math.isnan(value)


def test_labels_in_single_precision() -> None:
    """Labels are stored as float32 and predictions too: squares are of float64, so 2.5e19² does not overflow."""
    predictive = np.array([[2.5e19, 0.0], [-2.5e19, 0.0]], dtype=np.float32)
    found = evaluate(METRICS, predictive, np.array([0, 1], dtype=np.float32))
    assert found["rmse"] == pytest.approx(2.5e19)
