"""Metrics of one client, against scikit-learn, naive loops and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss, recall_score

from fedprior.metrics import HIGHER_IS_BETTER, METRICS, client_metrics, correct
from fedprior.metrics.client import Labels, LogProbs, Metric, accuracy, balanced_accuracy, ece


def random_predictions(seed: int, n: int, K: int) -> tuple[LogProbs, Labels]:
    """Log-softmax of sharp logits [n, K]; labels [n] that skip the last class."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((n, K))
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return log_probs, rng.integers(max(K - 1, 1), size=n)


samples = st.builds(random_predictions, seed=st.integers(0, 10**6), n=st.integers(1, 60), K=st.integers(2, 6))


def naive_brier(log_probs: LogProbs, labels: Labels) -> float:
    """1/n Σ_i Σ_k (p_i(k) - 1[y_i = k])², a term at a time."""
    total = 0.0
    for i, row in enumerate(log_probs):
        for k, log_p in enumerate(row):
            total += (math.exp(log_p) - (k == labels[i])) ** 2 / len(labels)
    return total


def naive_ece(log_probs: LogProbs, labels: Labels) -> float:
    """Σ_b n_b/n |accuracy_b - confidence_b|, a bin at a time."""
    probs = np.exp(log_probs)
    total = 0.0
    for b in range(15):
        members = [i for i in range(len(labels)) if b / 15 < max(probs[i]) <= (b + 1) / 15]
        if members:
            hits = sum(int(probs[i].argmax() == labels[i]) for i in members)
            confidence = sum(max(probs[i]) for i in members)
            total += len(members) / len(labels) * abs(hits / len(members) - confidence / len(members))
    return total


@given(samples)
def test_metrics_agree_with_independent_oracles(sample: tuple[LogProbs, Labels]) -> None:
    log_probs, labels = sample
    predicted = log_probs.argmax(axis=1)
    expected = {
        "accuracy": accuracy_score(labels, predicted),
        "balanced_accuracy": recall_score(labels, predicted, labels=np.unique(labels), average="macro"),
        "nll": log_loss(labels, np.exp(log_probs), labels=range(log_probs.shape[1])),
        "brier": naive_brier(log_probs, labels),
        "ece": naive_ece(log_probs, labels),
    }
    assert client_metrics(log_probs, labels) == pytest.approx(expected, abs=1e-12)
    assert list(METRICS) == list(expected)


def test_balanced_accuracy_by_hand() -> None:
    """Class 0 is found 1 of 4 times, class 2 always (1 of 1), class 1 never occurs: (1/4 + 1) / 2 = 0.625."""
    predicted = np.array([0, 1, 1, 2, 2])
    log_probs = np.log(np.eye(3)[predicted] * 0.7 + 0.1)  # 0.8, 0.1, 0.1
    labels = np.array([0, 0, 0, 0, 2])
    assert balanced_accuracy(log_probs, labels) == pytest.approx(0.625)
    assert accuracy(log_probs, labels) == pytest.approx(0.4)


def test_ece_by_hand() -> None:
    """Confidences 0.62 (right), 0.64 (wrong), 0.95 (right), 0.99 (right) in bins of width 1/15.

    0.62 and 0.64 share bin 10, (0.6, 0.6667]: |1/2 - 0.63| = 0.13, weight 2/4.
    0.95 and 0.99 share bin 15, (0.9333, 1]:   |1 - 0.97| = 0.03, weight 2/4.
    ECE = 0.5 · 0.13 + 0.5 · 0.03 = 0.08.
    """
    confidence = np.array([0.62, 0.64, 0.95, 0.99])
    log_probs = np.log(np.stack([confidence, 1 - confidence], axis=1))
    labels = np.array([0, 1, 0, 0])
    assert ece(log_probs, labels) == pytest.approx(0.08)


def test_ece_bins_are_closed_on_the_right() -> None:
    """Confidence 0.4 = 6/15 ends bin 6, 0.42 is in bin 7: gaps 0.4 and 0.58 do not cancel.

    0.4 wrong: |0 - 0.4|; 0.42 right: |1 - 0.42|; ECE = (0.4 + 0.58)/2 = 0.49. In one bin |1/2 - 0.41| = 0.09.
    """
    log_probs = np.log(np.array([[0.4, 0.3, 0.3], [0.42, 0.29, 0.29]]))
    assert float(np.exp(log_probs[0, 0])) == 6 / 15
    assert ece(log_probs, np.array([1, 0])) == pytest.approx(0.49)


def test_zero_probability_is_a_value_and_not_an_accident() -> None:
    """All mass on the wrong class: NLL = inf, Brier = 1² + 1² = 2, ECE = |0 - 1| = 1; on the right: all 0."""
    log_probs = np.array([[0.0, -np.inf]])
    wrong, right = np.array([1]), np.array([0])
    assert client_metrics(log_probs, wrong) == {
        "accuracy": 0, "balanced_accuracy": 0, "nll": np.inf, "brier": 2, "ece": 1
    }  # fmt: skip
    assert client_metrics(log_probs, right) == {
        "accuracy": 1, "balanced_accuracy": 1, "nll": 0, "brier": 0, "ece": 0
    }  # fmt: skip


def test_higher_is_better_names_the_direction_of_every_metric() -> None:
    """Right at 90 % beats wrong at 90 %, so the metric's difference has the sign that its direction says."""
    log_probs = np.log(np.array([[0.9, 0.1]]))
    for name, metric in METRICS.items():
        rises = metric(log_probs, np.array([0])) > metric(log_probs, np.array([1]))
        assert rises == (name in HIGHER_IS_BETTER), name


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_empty_and_diverged_predictions_are_nan(metric: Metric) -> None:
    none = metric(np.zeros((0, 3)), np.zeros(0, dtype=np.int64))
    diverged = metric(np.array([[0.0, -np.inf], [np.nan, np.nan]]), np.array([0, 0]))
    assert math.isnan(none)
    assert math.isnan(diverged)


def test_correct_counts_a_nan_row_as_wrong_and_gives_a_tie_to_the_lowest_class() -> None:
    log_probs = np.array([[np.nan, 0.0], [-0.7, -0.7], [-0.7, -0.7], [-2.0, -0.1]])
    assert correct(log_probs, np.array([0, 0, 1, 1])).tolist() == [False, True, False, True]


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_bad_labels_and_shapes_are_refused(metric: Metric) -> None:
    log_probs = np.log(np.full((2, 2), 0.5))
    for labels in ([0, 2], [0, -1], [0], [[0], [1]]):
        with pytest.raises(ValueError, match=r"labels"):
            metric(log_probs, np.array(labels))


def test_float32_is_computed_in_float64_and_left_as_it_was() -> None:
    exact, labels = random_predictions(0, n=1000, K=5)
    log_probs = exact.astype(np.float32)
    before = log_probs.copy()
    assert client_metrics(log_probs, labels) == client_metrics(before.astype(np.float64), labels)
    np.testing.assert_array_equal(log_probs, before)
