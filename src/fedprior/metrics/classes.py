"""Metrics of predicted classes, from log-probabilities [n, K] and class numbers [n]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedprior.metrics.metric import Labels, Metric, Predictive, classes, two_classes

ECE_BINS = 15
_EDGES = np.arange(1, ECE_BINS) / ECE_BINS


def correct(log_probs: Predictive, labels: Labels) -> NDArray[np.bool_]:
    """Whether the top class is the label, [n]; ties go to the lowest index, and a row with NaN is wrong."""
    hit = log_probs.argmax(axis=1) == labels
    return np.asarray(hit & ~np.isnan(log_probs).any(axis=1), dtype=np.bool_)


def _surprises(log_probs: Predictive, labels: Labels) -> NDArray[np.float64]:
    return np.asarray(-log_probs[np.arange(labels.size), labels], dtype=np.float64)


def _errors(log_probs: Predictive, labels: Labels) -> NDArray[np.float64]:
    error = np.exp(log_probs)  # [n, K]
    error[np.arange(labels.size), labels] -= 1
    return np.asarray((error**2).sum(axis=1), dtype=np.float64)


def accuracy(log_probs: Predictive, labels: Labels) -> float:
    """Share of examples whose top class is the label."""
    return float(correct(log_probs, labels).mean())


def balanced_accuracy(log_probs: Predictive, labels: Labels) -> float:
    """Recall of a class, averaged over the classes that occur in `labels`."""
    n = np.bincount(labels)  # [<= K]
    hits = np.bincount(labels, weights=correct(log_probs, labels))
    return float((hits[n > 0] / n[n > 0]).mean())


def nll(log_probs: Predictive, labels: Labels) -> float:
    """Negative log-likelihood, -1/n Σ_i log p_i(y_i) in nats; inf if any label has probability zero."""
    return float(_surprises(log_probs, labels).mean())


def brier(log_probs: Predictive, labels: Labels) -> float:
    """Multi-class Brier score, 1/n Σ_i Σ_k (p_i(k) - 1[y_i = k])², between 0 and 2."""
    return float(_errors(log_probs, labels).mean())


def ece(log_probs: Predictive, labels: Labels) -> float:
    """Expected calibration error of the top class, Σ_b n_b/n |accuracy_b - confidence_b|.

    Bin b = 1 .. 15 holds the examples whose confidence max_k p(k) lies in ((b-1)/15, b/15]. The estimate is
    biased upwards on small test sets: compare clients of one size, or read the pooled value.
    """
    confidence = np.exp(log_probs.max(axis=1))  # [n]
    b = _EDGES.searchsorted(confidence)  # b - 1
    gap = np.bincount(b, weights=correct(log_probs, labels) - confidence)  # n_b (accuracy_b - confidence_b)
    return float(np.abs(gap).sum() / labels.size)


def _odds(log_probs: Predictive) -> NDArray[np.float64]:
    """log p(1)/p(0), [n]: ordered as p(1), which in single precision is 1 for all very confident predictions."""
    return np.asarray(log_probs[:, 1] - log_probs[:, 0], dtype=np.float64)


def auroc(log_probs: Predictive, labels: Labels) -> float | None:
    """Area under the ROC curve by ranks, ties counting half; for several classes the mean of one against the rest.

    A class that does not occur, or is the only one, has none.
    """
    found = [_area(score, member) for score, member in _contests(log_probs, labels)]
    return float(np.mean(found)) if found else None


def _contests(log_probs: Predictive, labels: Labels) -> list[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """The score [n] and the members [n] of class 1, or of each of several classes, if there are members and others."""
    scores = _odds(log_probs)[:, None] if log_probs.shape[1] == 2 else log_probs
    first = log_probs.shape[1] - scores.shape[1]
    pairs = [(np.asarray(column), np.asarray(labels == first + k)) for k, column in enumerate(scores.T)]
    return [(score, member) for score, member in pairs if member.any() and not member.all()]


def _area(score: NDArray[np.float64], member: NDArray[np.bool_]) -> float:
    m = int(member.sum())
    return float((_ranks(score)[member].sum() - m * (m + 1) / 2) / (m * (len(member) - m)))


def _placements(log_probs: Predictive, labels: Labels) -> NDArray[np.float64]:
    """Pseudo-values of the AUROC A, whose variance is that of DeLong et al. (Biometrics 44, 1988).

    V is the share of the other class that an example is ordered rightly with, ties counting half; its pseudo-value is
    A + n/m (V - A), m the size of its class. Over several classes, their mean.
    """
    found = []
    for score, member in _contests(log_probs, labels):
        ranks, share = _ranks(score), np.empty(len(member))
        for own, sign in ((member, 1), (~member, -1)):
            m = int(own.sum())
            below = (ranks[own] - _ranks(score[own])) / (len(member) - m)
            placed = below if sign > 0 else 1 - below
            share[own] = placed.mean() + len(member) / m * (placed - placed.mean())
        found.append(share)
    return np.mean(found, axis=0) if found else np.empty(0)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1, averaged over equal values; not SciPy's, whose module takes seconds to load."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[group], dtype=np.float64)


def average_precision(log_probs: Predictive, labels: Labels) -> float | None:
    """Σ (R_k - R_{k-1}) P_k over the distinct thresholds of p(1), from the highest down."""
    positives = int(np.count_nonzero(labels == 1))
    if not positives:
        return None
    score = _odds(log_probs)
    order = (-score).argsort(kind="stable")
    score, hit = score[order], labels[order] == 1
    ends = np.ones(len(score), dtype=np.bool_)
    np.not_equal(score[1:], score[:-1], out=ends[:-1])
    last = ends.nonzero()[0]  # the last example at each threshold
    found = hit.cumsum()[last]
    precision, recall = found / (last + 1), found / positives
    gained = recall.copy()
    gained[1:] -= recall[:-1]
    return float((gained * precision).sum())


def _recall(log_probs: Predictive, labels: Labels, label: int) -> float | None:
    of_it = labels == label
    return float(correct(log_probs, labels)[of_it].mean()) if of_it.any() else None


def sensitivity(log_probs: Predictive, labels: Labels) -> float | None:
    """Share of class 1 with a predicted probability above one half."""
    return _recall(log_probs, labels, 1)


def specificity(log_probs: Predictive, labels: Labels) -> float | None:
    """Share of class 0 without a predicted probability above one half."""
    return _recall(log_probs, labels, 0)


METRICS = (
    Metric("accuracy", "accuracy", "%", "higher", classes, accuracy, correct),
    Metric("balanced_accuracy", "balanced accuracy", "%", "higher", classes, balanced_accuracy),
    Metric("nll", "NLL", "nats", "lower", classes, nll, _surprises),
    Metric("brier", "Brier score", "", "lower", classes, brier, _errors),
    Metric("ece", "ECE", "%", "lower", classes, ece),
    Metric("auroc", "AUROC", "%", "higher", classes, auroc, pseudo=_placements),
    Metric("average_precision", "average precision", "%", "higher", two_classes, average_precision),
    Metric("sensitivity", "sensitivity", "%", "higher", two_classes, sensitivity),
    Metric("specificity", "specificity", "%", "higher", two_classes, specificity),
)
