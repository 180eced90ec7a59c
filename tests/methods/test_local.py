"""Local with a prior around zero: scikit-learn's penalised regression, and the choice of its strength."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import fedprior
from fedprior import Train
from fedprior.data.client import Batch
from fedprior.data.federation import Federation, from_arrays
from fedprior.methods.local import Local
from fedprior.rng import Key

FULL = Train(lr=0.5, momentum=0.5, batch_size=1000, steps=100)  # all rows at every step


def sites(seed: int = 0, **options: Any) -> Federation:
    rng = np.random.default_rng(seed)
    clients = {}
    for name, n in (("a", 80), ("b", 30)):
        x = rng.normal(size=(n, 3))
        clients[name] = (x, (rng.random(n) < 1 / (1 + np.exp(-x @ [1.0, -2.0, 0.0] - 0.5))).astype(np.int64))
    return from_arrays(clients, **{"validation": 0.2, **options})


def trained(federation: Federation, l2: float, decay: float = 1.0, rounds: int = 20, **options: Any) -> fedprior.Result:
    method = Local(l2=l2, decay=decay, train=FULL)
    settings = {"rounds": rounds, "workers": 1, "precision": "float64", "select": "last", **options}
    return fedprior.run(method, federation, model="softmax", **settings)


def coefficients(result: fedprior.Result, client: str) -> np.ndarray[Any, Any]:
    """Slopes and intercept of the log odds."""
    arrays = {name.split(".")[-1]: values for name, values in result.arrays(client).items()}
    return np.append(arrays["weight"][1] - arrays["weight"][0], arrays["bias"][1] - arrays["bias"][0])


@pytest.mark.parametrize("strength", [0.5, 5.0, 20.0])
def test_it_is_scikit_learns_penalised_regression(strength: float) -> None:
    """Two logits ±w/2 have λ/2 · ‖w‖²/2 of penalty: C = 2/λ for scikit-learn's one logit, which liblinear gives the
    intercept too, divided by the square of `intercept_scaling`; with min(λ, 1) for the bias that is λ/min(λ, 1)."""
    federation = sites()
    result = trained(federation, strength)
    ratio = np.sqrt(strength / min(strength, 1))
    for c, client in enumerate(federation.clients):
        x, y = (part.double().numpy() for part in federation.train.client(c))
        design = np.hstack([x, np.full((len(x), 1), ratio)])
        other = LogisticRegression(C=2 / strength, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(design, y)
        expected = other.coef_[0] * [1, 1, 1, ratio]
        np.testing.assert_allclose(coefficients(result, client), expected, atol=2e-4)


def test_with_decay_the_last_prior_is_the_one_that_counts() -> None:
    """λ = 16, 8, 4, 2: the fourth update is trained to the end, so it ends where λ = 2 alone does."""
    federation = sites()
    path, alone = trained(federation, 16.0, 0.5, rounds=4), trained(federation, 2.0)
    strong = trained(federation, 16.0)
    for client in federation.clients:
        np.testing.assert_allclose(coefficients(path, client), coefficients(alone, client), atol=2e-3)
        assert np.abs(coefficients(strong, client) - coefficients(alone, client)).max() > 0.1


def test_validation_chooses_the_prior_by_choosing_the_round() -> None:
    """Labels are noise: the strongest of the priors is best, and the first evaluation is kept."""
    rng = np.random.default_rng(0)
    noise = {k: (rng.normal(size=(30, 8)), np.arange(30) % 2) for k in "ab"}
    result = trained(from_arrays(noise, validation=0.3), 300.0, 0.1, rounds=5, select="validation", eval_every=1)
    assert result.summary["selected"]["round"] <= 2
    assert result.summary["selected"]["personal"]["validation"]["nll"]["mean"] < 0.75


def test_a_prior_that_would_overshoot_is_weakened() -> None:
    """lr · λ/n = 0.5 · 1e6/64 would diverge; at a quarter of the steepest pull, 1.5, weights are small and finite."""
    federation = sites()
    result = trained(federation, 1e6, rounds=2)
    weights = [v for c in federation.clients for k, v in result.arrays(c).items() if k.endswith("weight")]
    assert all(np.isfinite(w).all() and np.abs(w).max() < 0.2 for w in weights)
    bound, n = Local(l2=4.0, train=FULL).bind(result.method.task, FULL), torch.tensor(federation.train.size)
    found = bound.pulls(torch.full((2,), 4.0), federation.train)
    assert found.weights == pytest.approx(4 / n)
    assert found.biases == pytest.approx(1 / n)


@pytest.mark.parametrize("train", [Train(optimizer="adam", lr=0.05, epochs=2), Train(clip=1.0, lr=0.1, epochs=2)])
def test_adam_and_clipping_take_any_prior(train: Train) -> None:
    federation = sites()
    result = fedprior.run(Local(l2=1e6, train=train), federation, model="softmax", rounds=2, workers=1)
    assert np.isfinite(result.mean("nll"))


def test_of_a_number_the_weights_of_the_variance_have_a_prior_a_hundred_times_as_strong() -> None:
    """λ = 2 and n = 16 rows, slopes (1, 2) of the mean and (3, 4) of the log-variance, biases 5 and 6: the penalty is
    2/32 · (1 + 4) + 200/32 · (9 + 16) + 1/32 · (25 + 36) = 158.46875; nothing is capped."""
    rng = np.random.default_rng(0)
    rows = {"a": (rng.normal(size=(20, 2)), rng.normal(size=20))}
    federation = from_arrays(rows, target="number", validation=0.0, test=0.2)
    train = Train(lr=1e-3, batch_size=16, steps=1)
    result = fedprior.run(Local(train=train), federation, model="softmax", rounds=1, workers=1, precision="float64")
    method = Local(l2=2.0, train=train).bind(result.method.task, train)
    names = sorted(method.task.parameters(method.task.init(Key(0))))
    given = {
        name: torch.tensor([[[1.0, 2.0], [3.0, 4.0]]] if name.endswith("weight") else [[5.0, 6.0]]).double()
        for name in names
    }
    data = federation.train
    assert int(data.n[0]) == 16
    batch = Batch(torch.zeros(1, 1, 2).double(), torch.zeros(1, 1).double(), torch.ones(1, 1).double())
    pull = method.pulls(torch.tensor([2.0]).double(), data)
    found = method.penalised(given, pull, batch) - method.task.nll(given, batch)
    assert float(found) == pytest.approx(158.46875)
