"""Numbers and counts: every method that is not about classes learns them, in the target's own unit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import fedprior
from fedprior.methods import METHODS, build
from fedprior.metrics import metrics_of
from fedprior.training import Train
from support import counting, regression

LEARNS = sorted(name for name, cls in METHODS.items() if not cls.about.needs_classes)


def test_enough_methods_do_regression() -> None:
    promised = "local fedavg fedavg_ft fedprox scaffold fedper fedrep ditto apfl pfedme per_fedavg fedmap pfedvem"
    assert {*promised.split(), "pfedbred", "fedbps", "pfedbayes"} <= set(LEARNS)


@pytest.mark.parametrize("name", LEARNS)
def test_it_learns_a_line(name: str) -> None:
    """y = 50 + 10 (β_k · x + ½ ε): the truth has an RMSE of 5, and a constant one of 9 (R² of the truth: 0.69).

    Slopes differ between sites by 0.3 in each of four inputs; a site that learns its own line comes close to 5.
    """
    data = regression(sizes=(80, 60, 100, 70, 90))
    train = Train(lr=0.05, batch_size=20, epochs=5)
    method = build(name, train=train)
    result = fedprior.run(method, data, model={"name": "mlp", "hidden": [16]}, rounds=20, workers=1, seed=1)
    constant = np.std(np.concatenate(data.labels("test")))
    assert result.scores["rmse"]["mean"] < 0.75 * constant
    assert result.scores["r2"]["mean"] > 0.4
    assert 0.6 < result.scores["coverage90"]["mean"] <= 1
    assert list(result.values["site-0"]) == list(metrics_of(data.target))


@pytest.mark.parametrize("name", LEARNS)
def test_it_learns_a_rate(name: str) -> None:
    """y ~ Poisson(e^{1 + β_k · x}): with the mean of all training counts the NLL is 2.59, with the truth about 1.87."""
    data = counting(sizes=(80, 60, 100, 70, 90))
    method = build(name, train=Train(lr=0.05, batch_size=20, epochs=5))
    result = fedprior.run(method, data, model={"name": "mlp", "hidden": [16]}, rounds=20, workers=1, seed=1)
    mean, y = np.concatenate(data.labels("train")).mean(), np.concatenate(data.labels("test"))
    constant = -stats.poisson.logpmf(y, mean).mean()
    assert result.scores["nll"]["mean"] < constant - 0.4
    assert result.scores["r2"]["mean"] > 0.3
    assert 0.8 < result.scores["coverage90"]["mean"] <= 1
    assert list(result.values["site-0"]) == list(metrics_of(data.target))


@pytest.mark.parametrize("name", ["fedavg", "pfedvem", "fedmap"])
def test_the_unit_of_the_target_does_not_matter(name: str) -> None:
    """Hundredths of the unit: the same model, an RMSE a hundred times as large and an NLL larger by log 100."""
    data = regression(sizes=(60, 40, 50))
    fine = fedprior.data.from_arrays(
        {c: _joined(data, k, 100.0) for k, c in enumerate(data.clients)}, target="number", tests=_tests(data, 100.0)
    )
    same = fedprior.data.from_arrays(
        {c: _joined(data, k, 1.0) for k, c in enumerate(data.clients)}, target="number", tests=_tests(data, 1.0)
    )
    a, b = (
        fedprior.run(build(name), d, model="softmax", rounds=5, workers=1, precision="float64", select="last").scores
        for d in (same, fine)
    )
    assert b["rmse"]["mean"] == pytest.approx(100 * a["rmse"]["mean"], rel=1e-4)
    assert b["nll"]["mean"] == pytest.approx(a["nll"]["mean"] + np.log(100), rel=1e-4)
    assert b["r2"]["mean"] == pytest.approx(a["r2"]["mean"], rel=1e-4)


Pair = tuple[np.ndarray, np.ndarray]


def _joined(data: fedprior.data.Federation, c: int, factor: float) -> Pair:
    x, y = data.train.client(c)
    return x.numpy(), factor * y.numpy()


def _tests(data: fedprior.data.Federation, factor: float) -> dict[str, Pair]:
    pairs = {}
    for c, name in enumerate(data.clients):
        x, y = data.test.client(c)
        pairs[name] = (x.numpy(), factor * y.numpy())
    return pairs
