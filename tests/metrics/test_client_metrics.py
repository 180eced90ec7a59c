"""Metrics of one client's classes, against scikit-learn, naive loops and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    log_loss,
    recall_score,
    roc_auc_score,
)

from fedprior.data.target import Classes, Count, Number
from fedprior.metrics import METRICS, Labels, Metric, Predictive, Values, correct, evaluate, main_metric, metrics_of
from fedprior.metrics.classes import accuracy, auroc, average_precision, balanced_accuracy, ece
from fedprior.metrics.metric import diverged, shown

TWO, FOUR = metrics_of(Classes.numbered(2)), metrics_of(Classes.numbered(4))
ANY = ["accuracy", "balanced_accuracy", "nll", "brier", "ece", "auroc"]
YES_OR_NO = ["average_precision", "sensitivity", "specificity"]
UNDEFINED_WITH_ONE_CLASS = {"auroc", "average_precision", "sensitivity", "specificity"}
two = pytest.mark.parametrize("name", TWO)


def random_predictions(seed: int, n: int, K: int, *, coarse: bool = False) -> tuple[Predictive, Labels]:
    """Log-softmax of sharp logits [n, K]; labels [n] that skip the last class of several; coarse: with many ties."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((n, K))
    logits = np.round(logits / 2) if coarse else logits
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return log_probs, rng.integers(max(K - 1, 2), size=n)


def samples(least: int, most: int) -> st.SearchStrategy[tuple[Predictive, Labels]]:
    return st.builds(
        random_predictions,
        seed=st.integers(0, 10**6),
        n=st.integers(1, 60),
        K=st.integers(least, most),
        coarse=st.booleans(),
    )


def naive_brier(log_probs: Predictive, labels: Labels) -> float:
    """1/n Σ_i Σ_k (p_i(k) - 1[y_i = k])², a term at a time."""
    total = 0.0
    for i, row in enumerate(log_probs):
        for k, log_p in enumerate(row):
            total += (math.exp(log_p) - (k == labels[i])) ** 2 / len(labels)
    return total


def naive_ece(log_probs: Predictive, labels: Labels) -> float:
    """Σ_b n_b/n |accuracy_b - confidence_b|, a bin at a time."""
    probs = np.exp(log_probs)
    total = 0.0
    for b in range(15):
        members = [i for i in range(len(labels)) if b / 15 < max(probs[i]) <= (b + 1) / 15]
        if members:
            hits = sum(int(log_probs[i].argmax() == labels[i]) for i in members)
            confidence = sum(max(probs[i]) for i in members)
            total += len(members) / len(labels) * abs(hits / len(members) - confidence / len(members))
    return total


def expected_of_any(log_probs: Predictive, labels: Labels) -> Values:
    """What every number of classes has, by other people's code; AUROC apart."""
    predicted = log_probs.argmax(axis=1)
    return {
        "accuracy": accuracy_score(labels, predicted),
        "balanced_accuracy": recall_score(labels, predicted, labels=np.unique(labels), average="macro"),
        "nll": log_loss(labels, np.exp(log_probs), labels=range(log_probs.shape[1])),
        "brier": naive_brier(log_probs, labels),
        "ece": naive_ece(log_probs, labels),
    }


def naive_auroc(scores: Predictive, member: Labels) -> float:
    """Share of pairs, one of each kind, that are in the right order; ties are half."""
    pairs = [(a, b) for a in scores[member] for b in scores[~member]]
    return sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)


@settings(deadline=None)
@given(samples(3, 6))
def test_several_classes_agree_with_independent_oracles(sample: tuple[Predictive, Labels]) -> None:
    """AUROC: one against the rest, averaged over the classes that some but not all examples have."""
    log_probs, labels = sample
    found = evaluate(FOUR, log_probs, labels)
    some = [k for k in np.unique(labels).tolist() if (labels != k).any()]
    one_against_rest = [float(roc_auc_score(labels == k, log_probs[:, k])) for k in some]
    assert list(found) == ANY
    assert found.pop("auroc") == (pytest.approx(float(np.mean(one_against_rest))) if some else None)
    assert found == pytest.approx(expected_of_any(log_probs, labels), abs=1e-12)


@settings(deadline=None)
@given(samples(2, 2))
def test_two_classes_agree_with_independent_oracles(sample: tuple[Predictive, Labels]) -> None:
    log_probs, labels = sample
    predicted = log_probs.argmax(axis=1)
    found = evaluate(TWO, log_probs, labels)
    assert list(found) == [*ANY, *YES_OR_NO]
    score, both = log_probs[:, 1] - log_probs[:, 0], len(np.unique(labels)) == 2
    expected = expected_of_any(log_probs, labels) | {
        "auroc": roc_auc_score(labels, score) if both else None,
        "average_precision": average_precision_score(labels, score) if (labels == 1).any() else None,
        "sensitivity": recall_score(labels, predicted) if (labels == 1).any() else None,
        "specificity": recall_score(labels, predicted, pos_label=0) if (labels == 0).any() else None,
    }
    assert {k: v for k, v in found.items() if v is None} == {k: v for k, v in expected.items() if v is None}
    assert {k: v for k, v in found.items() if v is not None} == pytest.approx(
        {k: v for k, v in expected.items() if v is not None}, abs=1e-12
    )
    if both:
        assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))


def test_auroc_counts_pairs() -> None:
    """p(1) = 0.9, 0.6, 0.6, 0.2 with labels 1, 0, 1, 0: pairs (0.9 > 0.6), (0.9 > 0.2), (0.6 = 0.6), (0.6 > 0.2).

    Three and a half of four are in order: 0.875.
    """
    p = np.array([0.9, 0.6, 0.6, 0.2])
    log_probs, labels = np.log(np.stack([1 - p, p], axis=1)), np.array([1, 0, 1, 0])
    assert auroc(log_probs, labels) == pytest.approx(0.875)
    assert auroc(log_probs[:, ::-1], 1 - labels) == pytest.approx(0.875), "the classes' names do not matter"
    many, of = random_predictions(3, n=40, K=2, coarse=True)
    odds = np.round(many[:, 1] - many[:, 0], 9)
    assert auroc(np.stack([-odds / 2, odds / 2], axis=1), of) == pytest.approx(naive_auroc(odds, of == 1))


def test_average_precision_by_hand() -> None:
    """p(1) = 0.9, 0.8, 0.7, 0.6 with labels 1, 0, 1, 1.

    Recall rises at the first, third and fourth by 1/3 each, at precisions 1, 2/3, 3/4: (1 + 2/3 + 3/4)/3 = 29/36. A tie
    of all four is one threshold: recall rises by 1 at the precision 3/4.
    """
    p, labels = np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 0, 1, 1])
    assert average_precision(np.log(np.stack([1 - p, p], axis=1)), labels) == pytest.approx(29 / 36)
    assert average_precision(np.log(np.full((4, 2), 0.5)), labels) == pytest.approx(3 / 4)


@pytest.mark.parametrize("metric", [auroc, average_precision])
def test_the_sure_are_still_ranked_in_single_precision(metric: object) -> None:
    """Logits of 20 … 40 all have p(1) = 1 in float32, and log p(1) = 0, but log p(0) tells them apart: a perfect order.

    With log p(1) alone they would be a tie, as good as a coin.
    """
    logits = np.array([40, 35, 30, 25, 20], dtype=np.float32)
    log_probs = np.stack([-logits, np.zeros(5, np.float32)], axis=1)  # log σ(-z) = -z - log(1 + e^{-z})
    assert np.log1p(np.exp(-logits)).max() < np.finfo(np.float32).eps
    labels = np.array([1, 1, 1, 0, 0])
    assert evaluate(TWO, log_probs, labels)[metric.__name__] == 1  # type: ignore[attr-defined]


def test_probabilities_of_zero_and_one_are_ranked_too() -> None:
    """Log-odds of inf, 0 and -inf for examples of either class: of the nine pairs three are won, three tied, 4.5/9.

    Three classes that are always sure and right are in perfect order.
    """
    sure = np.array([[-np.inf, 0.0], [math.log(0.5)] * 2, [0.0, -np.inf]])
    found = evaluate(TWO, np.concatenate([sure, sure]), np.repeat([1, 0], 3))
    assert found["auroc"] == 0.5
    several = np.array([[0.0, -np.inf, -np.inf], [-np.inf, 0.0, -np.inf], [-np.inf, -np.inf, 0.0]])
    assert evaluate(FOUR, several, np.arange(3))["auroc"] == 1


def test_balanced_accuracy_by_hand() -> None:
    """Class 0 is found 1 of 4 times, class 2 always (1 of 1), class 1 never occurs: (1/4 + 1) / 2 = 0.625."""
    predicted = np.array([0, 1, 1, 2, 2])
    log_probs = np.log(np.eye(3)[predicted] * 0.7 + 0.1)  # 0.8, 0.1, 0.1
    labels = np.array([0, 0, 0, 0, 2])
    assert balanced_accuracy(log_probs, labels) == pytest.approx(0.625)
    assert accuracy(log_probs, labels) == pytest.approx(0.4)


def test_sensitivity_and_specificity_by_hand() -> None:
    """Of three positives one is called so, of two negatives two: 1/3 and 1. One half is not above one half."""
    p, labels = np.array([0.9, 0.5, 0.1, 0.2, 0.5]), np.array([1, 1, 1, 0, 0])
    found = evaluate(TWO, np.log(np.stack([1 - p, p], axis=1)), labels)
    assert (found["sensitivity"], found["specificity"]) == pytest.approx((1 / 3, 1))


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
    assert evaluate(TWO, log_probs, wrong) == {
        "accuracy": 0, "balanced_accuracy": 0, "nll": np.inf, "brier": 2, "ece": 1, "auroc": None,
        "average_precision": 1, "sensitivity": 0, "specificity": None,
    }  # fmt: skip
    assert evaluate(TWO, log_probs, right) == {
        "accuracy": 1, "balanced_accuracy": 1, "nll": 0, "brier": 0, "ece": 0, "auroc": None,
        "average_precision": None, "sensitivity": None, "specificity": 1,
    }  # fmt: skip


@two
def test_every_metric_says_which_way_is_better(name: str) -> None:
    """Right at 90 % beats wrong at 90 % for a label of each class: badness falls, whatever the metric's direction."""
    log_probs = np.log(np.array([[0.9, 0.1], [0.1, 0.9]]))
    good, bad = (TWO[name].of(log_probs, labels) for labels in (np.array([0, 1]), np.array([1, 0])))
    assert good is not None
    assert bad is not None
    assert TWO[name].badness(np.array([good])) < TWO[name].badness(np.array([bad]))


# What a metric is undefined for, and what diverged


@two
def test_no_examples_are_undefined_and_no_number(name: str) -> None:
    assert evaluate(TWO, np.zeros((0, 2)), np.zeros(0, dtype=np.int64))[name] is None


@two
def test_one_class_alone(name: str) -> None:
    """Ranks need both classes, recalls need the class they are of; all else is a number."""
    log_probs = np.log(np.array([[0.7, 0.3], [0.6, 0.4]]))
    values = [evaluate(TWO, log_probs, np.full(2, label))[name] for label in (0, 1)]
    assert (None in values) == (name in UNDEFINED_WITH_ONE_CLASS)


@two
def test_a_model_that_diverged_has_nan_for_all_even_what_it_could_not_have(name: str) -> None:
    """One row of nan among good ones, and labels of one class: nan and not None."""
    broken = np.array([[0.0, -np.inf], [np.nan, np.nan]])
    value = evaluate(TWO, broken, np.array([0, 0]))[name]
    assert value is not None
    assert math.isnan(value)


def test_only_nan_is_divergence() -> None:
    assert diverged(np.array([[0.0, np.nan]]))
    assert not diverged(np.array([[0.0, -np.inf]]))


def test_correct_counts_a_nan_row_as_wrong_and_gives_a_tie_to_the_lowest_class() -> None:
    log_probs = np.array([[np.nan, 0.0], [-0.7, -0.7], [-0.7, -0.7], [-2.0, -0.1]])
    assert correct(log_probs, np.array([0, 0, 1, 1])).tolist() == [False, True, False, True]


def test_bad_labels_and_shapes_are_refused() -> None:
    log_probs = np.log(np.full((2, 2), 0.5))
    for labels in ([0], [[0], [1]]):
        with pytest.raises(ValueError, match="labels"):
            evaluate(TWO, log_probs, np.array(labels))
    with pytest.raises(ValueError, match="predictions"):
        evaluate(TWO, log_probs[0], np.array([0, 1]))
    for labels in ([0, 2], [0, -1]):
        with pytest.raises((ValueError, IndexError)):
            evaluate(TWO, log_probs, np.array(labels))


def test_float32_is_computed_in_float64_and_left_as_it_was() -> None:
    exact, labels = random_predictions(0, n=1000, K=5)
    log_probs = exact.astype(np.float32)
    before = log_probs.copy()
    assert evaluate(FOUR, log_probs, labels) == evaluate(FOUR, before.astype(np.float64), labels)
    np.testing.assert_array_equal(log_probs, before)


# The table


def test_which_target_has_which_metrics() -> None:
    assert list(metrics_of(Classes.numbered(5))) == ANY
    assert list(metrics_of(Classes.numbered(2))) == [*ANY, *YES_OR_NO]
    assert list(metrics_of(Number())) == ["rmse", "mae", "nll", "r2", "coverage50", "coverage90"]
    assert list(metrics_of(Count())) == ["rmse", "mae", "r2", "nll", "coverage50", "coverage90"]
    assert [main_metric(target).name for target in (Classes.numbered(3), Number())] == ["accuracy", "rmse"]


@pytest.mark.parametrize(
    "metric", [m for m in METRICS if m.each is not None], ids=lambda m: f"{m.title} {m.needs.__name__}"
)
def test_what_examples_give_adds_up_to_the_metric(metric: Metric) -> None:
    """`each` is a share per example whose mean is the metric: gains and pooled values rely on it."""
    labels: Labels
    rng = np.random.default_rng(0)
    predictive, labels = random_predictions(0, n=30, K=2)
    if metric.needs(Number()):
        labels = rng.normal(size=30)
    elif metric.needs(Count()):
        predictive = np.exp(predictive)  # means from 0 to 1, variances from 1 to e
    assert metric.each is not None
    each = metric.each(predictive, labels)
    assert each.shape == (30,)
    assert each.mean() == pytest.approx(metric.of(predictive, labels))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("accuracy", 0.8123, "81.2"),
        ("accuracy", 1.0, "100.0"),
        ("accuracy", 0.0, "0.0"),
        ("accuracy", None, "–"),
        ("auroc", float("nan"), "diverged"),
        ("nll", 0.12345, "0.123"),
        ("nll", float("inf"), "inf"),
        ("nll", None, "–"),
        ("rmse", 12345.6, "1.235e+04"),
        ("r2", -0.5, "-0.500"),
        ("rmse", float("nan"), "diverged"),
    ],
)
def test_shown(name: str, value: float | None, text: str) -> None:
    assert shown((TWO | metrics_of(Number()))[name], value) == text
