"""The cohort's summary: hand examples, and `pooled` against the concatenated predictions."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import fedprior
from fedprior import metrics
from fedprior.data.federation import from_arrays
from fedprior.data.target import Classes, Number
from fedprior.experiment.journal import Journal
from fedprior.methods.fedavg import FedAvg
from fedprior.metrics import Labels, Metric, Predictive, Values, cohort, cohort_metrics, evaluate, metrics_of, spread
from fedprior.metrics.metric import classes
from fedprior.training import Train

TWO, FOUR, NUMBERS = metrics_of(Classes.numbered(2)), metrics_of(Classes.numbered(4)), metrics_of(Number())
EMPTY = (np.zeros((0, 0)), np.zeros(0, dtype=np.int64))  # it cannot even say how many classes there are
MEANS = {"accuracy", "nll", "brier"}
"""The metrics that are means over examples."""


def client(rng: np.random.Generator, n: int, K: int = 4) -> tuple[Predictive, Labels]:
    """Calibrated: labels [n] are drawn from the probabilities, so gaps in the ECE have both signs."""
    probs = rng.dirichlet(np.ones(K), size=n)
    return np.log(probs), np.array([rng.choice(K, p=p) for p in probs], dtype=np.int64)


def sure(correct: int, wrong: int) -> tuple[Predictive, Labels]:
    """A client that gives class 0 probability 0.8 every time, rightly or wrongly."""
    return np.log(np.tile([0.8, 0.2], (correct + wrong, 1))), np.repeat([0, 1], [correct, wrong])


def broken(n: int) -> tuple[Predictive, Labels]:
    """A client whose model diverged."""
    return np.full((n, 2), np.nan), np.arange(n) % 2


def test_mean_counts_clients_and_pooled_counts_examples() -> None:
    """Accuracies 1/1 and 1/4: mean (1 + 0.25)/2 = 0.625, std 0.75/√2, pooled 2/5, worst ⌈2/10⌉ = 1: 0.25."""
    found = cohort_metrics(TWO, [sure(1, 0), sure(1, 3)])
    expected = {"mean": 0.625, "std": 0.75 / math.sqrt(2), "pooled": 0.4, "worst_decile": 0.25, "undefined": 0}
    assert found.summary["accuracy"] == pytest.approx(expected)
    assert found.values("accuracy").tolist() == [1, 0.25]
    assert found.sizes.tolist() == [1, 4]


def test_worst_decile_by_hand() -> None:
    """11 values 0, 1, .., 10 (shuffled): ⌈11/10⌉ = 2 worst are 0 and 1 (mean 0.5), or 10 and 9 (mean 9.5).

    A coverage should be 0.5 or 0.9: 10 and 9 are the farthest from either.
    """
    values = np.random.default_rng(0).permutation(11).astype(np.float64).tolist()
    worst = {name: spread(metric, values)["worst_decile"] for name, metric in (TWO | NUMBERS).items()}
    lowest = {"accuracy", "balanced_accuracy", "auroc", "average_precision", "sensitivity", "specificity", "r2"}
    assert worst == {name: 0.5 if name in lowest else 9.5 for name in worst}
    assert spread(TWO["accuracy"], [v for v in values if v < 10])["worst_decile"] == 0  # ten clients: one of them


def test_the_worst_of_a_share_that_should_be_nine_tenths() -> None:
    """0.95 is off by 0.05, 1.0 by 0.1, and 0.7 by 0.2: that is the worst, though it is neither high nor the lowest."""
    assert spread(NUMBERS["coverage90"], [0.95, 1.0, 0.7])["worst_decile"] == 0.7
    assert spread(NUMBERS["coverage50"], [0.45, 1.0, 0.1])["worst_decile"] == 1.0


def test_pooled_is_the_metric_of_all_predictions_together() -> None:
    rng = np.random.default_rng(1)
    predictions = [client(rng, n) for n in (3, 40, 1, 17)]
    together = evaluate(FOUR, np.concatenate([p for p, _ in predictions]), np.concatenate([y for _, y in predictions]))
    found = cohort_metrics(FOUR, predictions)
    for name in FOUR:
        assert found.summary[name]["pooled"] == together[name]
        if not np.isnan(found.values(name)).any():
            weighted = np.average(found.values(name), weights=found.sizes)
            assert (found.summary[name]["pooled"] == pytest.approx(weighted)) == (name in MEANS)


def test_without_predictions_pooled_is_known_for_means_alone() -> None:
    """Where predictions stay with the clients, Σ n_i v_i / Σ n_i is the same for means, and nothing is for the rest."""
    rng = np.random.default_rng(1)
    predictions = [client(rng, n) for n in (3, 40, 1, 17)] + [EMPTY]
    whole = cohort_metrics(FOUR, predictions)
    found = cohort(FOUR, whole.clients, [len(y) for _, y in predictions], None)
    for name in FOUR:
        pooled = found.summary[name].pop("pooled")
        expected = whole.summary[name].pop("pooled")
        assert pooled == pytest.approx(expected) if name in MEANS else math.isnan(pooled)
        assert found.summary[name] == pytest.approx(whole.summary[name], nan_ok=True)
    diverged = cohort_metrics(TWO, [sure(1, 1), broken(2)])
    assert math.isnan(cohort(TWO, diverged.clients, [2, 2], None).summary["accuracy"]["pooled"])


def test_client_values_are_the_client_metrics_in_order() -> None:
    rng = np.random.default_rng(2)
    predictions = [client(rng, n) for n in (5, 9, 30)]
    found = cohort_metrics(FOUR, predictions)
    assert found.clients == [evaluate(FOUR, log_probs, labels) for log_probs, labels in predictions]


def test_clients_without_a_test_set_change_nothing_but_the_count() -> None:
    without = cohort_metrics(TWO, [sure(1, 0), sure(1, 3)])
    with_empty = cohort_metrics(TWO, [EMPTY, sure(1, 0), EMPTY, sure(1, 3)])
    np.testing.assert_equal(with_empty.summary, without.summary)
    assert (with_empty.evaluated, without.evaluated) == (2, 2)
    assert with_empty.sizes.tolist() == [0, 1, 0, 4]
    assert np.isnan(with_empty.values("nll")).tolist() == [True, False, True, False]
    assert [values["nll"] is None for values in with_empty.clients] == [True, False, True, False]
    assert (with_empty.diverged, without.diverged) == (0, 0)


@pytest.mark.parametrize("predictions", [[], [EMPTY]])
def test_nobody_evaluated_is_nan_throughout(predictions: list[tuple[Predictive, Labels]]) -> None:
    found = cohort_metrics(TWO, predictions)
    assert (found.evaluated, found.diverged) == (0, 0)
    for summary in found.summary.values():
        assert summary.pop("undefined") == 0, "those who have no examples are not in the summary at all"
        assert set(summary) == {"mean", "std", "worst_decile", "pooled"}
        assert all(math.isnan(value) for value in summary.values())


def test_one_client_has_no_standard_deviation() -> None:
    summary = cohort_metrics(TWO, [sure(3, 1)]).summary["accuracy"]
    assert math.isnan(summary.pop("std"))
    assert summary == {"mean": 0.75, "pooled": 0.75, "worst_decile": 0.75, "undefined": 0}


# Undefined, infinite, diverged


def test_a_client_that_cannot_have_a_metric_is_not_in_its_mean() -> None:
    """The first client has one class alone: no AUROC. The others' are 1/2, as all scores are tied."""
    found = cohort_metrics(TWO, [sure(4, 0), sure(1, 1), sure(2, 1)])
    assert found.clients[0]["auroc"] is None
    assert found.summary["auroc"] == {"mean": 0.5, "std": 0, "worst_decile": 0.5, "pooled": 0.5, "undefined": 1}
    assert found.summary["accuracy"]["undefined"] == 0
    assert (found.evaluated, found.diverged) == (3, 0)


def test_a_client_that_diverged_is_in_every_mean() -> None:
    """nan for all metrics and in the pooled ones; the undefined are counted all the same."""
    found = cohort_metrics(TWO, [sure(4, 0), broken(2), sure(2, 1), EMPTY])
    assert (found.evaluated, found.diverged) == (3, 1)
    for name, summary in found.summary.items():
        undefined = {"auroc": 1, "average_precision": 1, "sensitivity": 1}.get(name, 0)
        assert summary.pop("undefined") == undefined
        assert all(math.isnan(value) for value in summary.values()), name


def test_nobody_has_it() -> None:
    """All clients have one class alone: the mean is nan, nobody diverged, and `undefined` says why."""
    found = cohort_metrics(TWO, [sure(4, 0), sure(2, 0)])
    assert found.diverged == 0
    assert found.summary["auroc"]["undefined"] == 2
    assert math.isnan(found.summary["auroc"]["mean"])


def test_infinite_and_diverged_clients_are_not_hidden() -> None:
    infinite = spread(TWO["nll"], [np.inf, 1.0])
    assert (infinite["mean"], infinite["worst_decile"]) == (np.inf, np.inf)
    assert math.isnan(infinite["std"])
    lost = spread(TWO["accuracy"], [np.nan, 1.0, 0.5])
    assert all(math.isnan(lost[name]) for name in ("mean", "std", "worst_decile"))
    some = spread(TWO["accuracy"], [None, 1.0, 0.5])
    assert (some["mean"], some["undefined"]) == (0.75, 1)


def test_numbers() -> None:
    """RMSE 1 and 3 of one and three examples: the mean is 2, pooled √((1 + 3 · 9)/4) = √7."""
    clients = [(np.array([[1.0, 0.0]]), np.array([2.0])), (np.zeros((3, 2)), np.array([3.0, -3, 3]))]
    found = cohort_metrics(NUMBERS, clients)
    assert found.summary["rmse"]["mean"] == 2
    assert found.summary["rmse"]["pooled"] == pytest.approx(math.sqrt(7))
    assert found.summary["r2"]["undefined"] == 1, "one label has no variance"
    assert found.summary["r2"]["mean"] == 1 - 27 / 24  # labels 3, -3, 3 about their mean 1: 4 + 16 + 4
    assert math.isnan(found.summary["r2"]["std"])


# A new metric is one entry


def top_two(log_probs: Predictive, labels: Labels) -> float:
    """Share of examples whose label is among the two likeliest."""
    return float((np.argsort(log_probs, axis=1)[:, -2:] == labels[:, None]).any(axis=1).mean())


def test_adding_a_metric_is_one_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Journal, files, summary, tables and frames hold it at once. With two classes everybody is right; here are three.

    A client is checked by hand from its predictions.
    """
    entry = Metric("top_two", "top two", "%", "higher", classes, top_two)
    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS, entry))
    rng = np.random.default_rng(0)
    data = from_arrays({f"c{k}": (rng.normal(size=(30, 3)), np.arange(30) % 3) for k in range(3)}).to(torch.float64)
    result = fedprior.run(FedAvg(train=Train(lr=0.1, epochs=1)), data, rounds=2, out=tmp_path / "run")
    likely = result.predictions["test"][1].argsort(axis=1)[:, 1:]
    expected = np.mean([y in row for y, row in zip(data.labels("test")[1], likely, strict=True)])
    assert result.clients["top_two"]["c1"] == expected
    assert "top_two" in result.table
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["selected"]["personal"]["test"]["top_two"]["mean"] == result.clients["top_two"].mean()
    journal = Journal(tmp_path / "run")
    journal.load()
    assert journal.values(result.selected, "test")["c1"]["top_two"] == expected
    assert all("top_two" in row for row in journal.rows)


def test_a_journal_tells_undefined_from_diverged(tmp_path: Path) -> None:
    """Empty cells and `nan`, in memory and from the file."""
    found = cohort_metrics(TWO, [sure(2, 0), broken(2), EMPTY])
    journal = Journal(tmp_path)
    journal.evaluation(1, "personal", "test", ["a", "b", "c"], found)
    again = Journal(tmp_path)
    again.load()
    for history in (journal, again):
        values: dict[str, Values] = history.values(1, "test")
        assert values["a"]["auroc"] is None
        assert values["a"]["accuracy"] == 1
        assert all(v is not None and math.isnan(v) for v in values["b"].values())
        assert all(v is None for v in values["c"].values())
