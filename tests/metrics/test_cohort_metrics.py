"""The cohort's summary: hand examples, and `pooled` against the concatenated predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedprior.errors import FedpriorError
from fedprior.metrics import METRICS, Labels, LogProbs, client_metrics, cohort_metrics, spread

EMPTY = (np.zeros((0, 0)), np.zeros(0, dtype=np.int64))  # it cannot even say how many classes there are


def client(rng: np.random.Generator, n: int, K: int = 4) -> tuple[LogProbs, Labels]:
    """Calibrated: labels [n] are drawn from the probabilities, so gaps in the ECE have both signs."""
    probs = rng.dirichlet(np.ones(K), size=n)
    return np.log(probs), np.array([rng.choice(K, p=p) for p in probs], dtype=np.int64)


def sure(correct: int, wrong: int) -> tuple[LogProbs, Labels]:
    """A client that gives class 0 probability 0.8 every time, rightly or wrongly."""
    return np.log(np.tile([0.8, 0.2], (correct + wrong, 1))), np.repeat([0, 1], [correct, wrong])


def test_mean_counts_clients_and_pooled_counts_examples() -> None:
    """Accuracies 1/1 and 1/4: mean (1 + 0.25)/2 = 0.625, std 0.75/√2, pooled 2/5, worst ⌈2/10⌉ = 1: 0.25."""
    cohort = cohort_metrics([sure(1, 0), sure(1, 3)])
    expected = {"mean": 0.625, "std": 0.75 / math.sqrt(2), "pooled": 0.4, "worst_decile": 0.25}
    assert cohort.summary["accuracy"] == pytest.approx(expected)
    assert cohort.clients["accuracy"].tolist() == [1, 0.25]
    assert cohort.sizes.tolist() == [1, 4]


def test_worst_decile_by_hand() -> None:
    """11 values 0, 1, .., 10 (shuffled): ⌈11/10⌉ = 2 worst are 0 and 1 (mean 0.5), or 10 and 9 (mean 9.5)."""
    values = np.random.default_rng(0).permutation(11).astype(np.float64)
    worst = {metric: spread(metric, values)["worst_decile"] for metric in METRICS}
    assert worst == {"accuracy": 0.5, "balanced_accuracy": 0.5, "nll": 9.5, "brier": 9.5, "ece": 9.5}
    assert spread("accuracy", values[values < 10])["worst_decile"] == 0  # ten clients: one of them


def test_pooled_is_the_metric_of_all_predictions_together() -> None:
    rng = np.random.default_rng(1)
    predictions = [client(rng, n) for n in (3, 40, 1, 17)]
    together = client_metrics(np.concatenate([p for p, _ in predictions]), np.concatenate([y for _, y in predictions]))
    cohort = cohort_metrics(predictions)
    for name in METRICS:
        assert cohort.summary[name]["pooled"] == together[name]
        weighted = np.average(cohort.clients[name], weights=cohort.sizes)
        assert (cohort.summary[name]["pooled"] == pytest.approx(weighted)) == (name in {"accuracy", "nll", "brier"})


def test_client_values_are_the_client_metrics_in_order() -> None:
    rng = np.random.default_rng(2)
    predictions = [client(rng, n) for n in (5, 9, 30)]
    cohort = cohort_metrics(predictions)
    for i, (log_probs, labels) in enumerate(predictions):
        assert {name: values[i] for name, values in cohort.clients.items()} == client_metrics(log_probs, labels)


def test_clients_without_a_test_set_change_nothing_but_the_count() -> None:
    without = cohort_metrics([sure(1, 0), sure(1, 3)])
    with_empty = cohort_metrics([EMPTY, sure(1, 0), EMPTY, sure(1, 3)])
    assert with_empty.summary == without.summary
    assert (with_empty.evaluated, without.evaluated) == (2, 2)
    assert with_empty.sizes.tolist() == [0, 1, 0, 4]
    assert np.isnan(with_empty.clients["nll"]).tolist() == [True, False, True, False]


@pytest.mark.parametrize("predictions", [[], [EMPTY]])
def test_nobody_evaluated_is_nan_throughout(predictions: list[tuple[LogProbs, Labels]]) -> None:
    cohort = cohort_metrics(predictions)
    assert cohort.evaluated == 0
    for summary in cohort.summary.values():
        assert set(summary) == {"mean", "std", "worst_decile", "pooled"}
        assert all(math.isnan(value) for value in summary.values())


def test_one_client_has_no_standard_deviation() -> None:
    summary = cohort_metrics([sure(3, 1)]).summary["accuracy"]
    assert math.isnan(summary.pop("std"))
    assert summary == {"mean": 0.75, "pooled": 0.75, "worst_decile": 0.75}


def test_infinite_and_diverged_clients_are_not_hidden() -> None:
    infinite = spread("nll", np.array([np.inf, 1.0]))
    assert (infinite["mean"], infinite["worst_decile"]) == (np.inf, np.inf)
    assert math.isnan(infinite["std"])
    assert all(math.isnan(value) for value in spread("accuracy", np.array([np.nan, 1.0, 0.5])).values())


def test_unknown_metric_is_named() -> None:
    with pytest.raises(FedpriorError, match="did you mean 'accuracy'"):
        spread("acuracy", np.ones(3))
