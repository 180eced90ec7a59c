"""Local with a prior around zero: scikit-learn's penalised regression, and the choice of its strength."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import fedprior
from fedprior import Train
from fedprior.data.federation import Federation, from_arrays
from fedprior.methods.local import Local

FULL = Train(lr=0.5, momentum=0.5, batch_size=1000, steps=100)  # all rows at every step


def sites(seed: int = 0, **options: Any) -> Federation:
    rng = np.random.default_rng(seed)
    clients = {}
    for name, n in (("a", 80), ("b", 30)):
        x = rng.normal(size=(n, 3))
        clients[name] = (x, (rng.random(n) < 1 / (1 + np.exp(-x @ [1.0, -2.0, 0.0] - 0.5))).astype(np.int64))
    return from_arrays(clients, **{"validation": 0.2, **options})


def trained(federation: Federation, *l2: float, rounds: int = 20, **options: Any) -> fedprior.Result:
    method = Local(l2=l2, train=FULL)
    settings = {"rounds": rounds, "workers": 1, "precision": "float64", "select": "last", **options}
    return fedprior.run(method, federation, model="softmax", **settings)


@pytest.mark.parametrize("strength", [0.5, 5.0, 20.0])
def test_it_is_scikit_learns_penalised_regression(strength: float) -> None:
    """Two logits with weights ±w/2 have λ/2 · ‖w‖²/2 of penalty, so C = 2/λ for the one logit of scikit-learn."""
    federation = sites()
    result = trained(federation, strength)
    for c, client in enumerate(federation.clients):
        x, y = (part.double().numpy() for part in federation.train.client(c))
        other = LogisticRegression(C=2 / strength, tol=1e-10, max_iter=10_000).fit(x, y)
        arrays = {name.split(".")[-1]: values for name, values in result.arrays(client).items()}
        np.testing.assert_allclose(arrays["weight"][1] - arrays["weight"][0], other.coef_[0], atol=2e-4)
        np.testing.assert_allclose(arrays["bias"][1] - arrays["bias"][0], other.intercept_[0], atol=2e-4)


def test_of_several_each_site_takes_the_one_with_the_lowest_validation_nll() -> None:
    """The copies are the models of single strengths, bit for bit."""
    federation, grid = sites(3), (0.01, 3.0, 300.0)
    single = [trained(federation, strength, rounds=2) for strength in grid]
    found = trained(federation, *grid, rounds=2)
    for client in federation.clients:
        scores = [one.journal.values(2, "validation")[client]["nll"] for one in single]
        best = single[int(np.argmin(scores))]  # type: ignore[arg-type]
        for name, values in found.arrays(client).items():
            np.testing.assert_array_equal(values, best.arrays(client)[name])


def test_without_validation_examples_it_is_the_middle_one() -> None:
    federation = sites(validation=0.0)
    found, middle = trained(federation, 0.01, 3.0, 300.0, rounds=1), trained(federation, 3.0, rounds=1)
    for client in federation.clients:
        for name, values in found.arrays(client).items():
            np.testing.assert_array_equal(values, middle.arrays(client)[name])


def test_a_prior_that_would_overshoot_is_weakened() -> None:
    """lr · λ/n = 0.5 · 1e6/64 would diverge; at a quarter of the steepest pull, 1.5, weights are small and finite."""
    federation = sites()
    result = trained(federation, 1e6, rounds=2)
    weights = [v for c in federation.clients for k, v in result.arrays(c).items() if k.endswith("weight")]
    assert all(np.isfinite(w).all() and np.abs(w).max() < 0.2 for w in weights)
    assert Local(l2=(1.0,), train=FULL).bind(result.method.task, FULL).pulls(federation.train) == pytest.approx(
        torch.tensor([1 / n for n in federation.train.size])
    )


@pytest.mark.parametrize("train", [Train(optimizer="adam", lr=0.05, epochs=2), Train(clip=1.0, lr=0.1, epochs=2)])
def test_adam_and_clipping_take_any_prior(train: Train) -> None:
    federation = sites()
    result = fedprior.run(Local(l2=(3.0, 1e6), train=train), federation, model="softmax", rounds=2, workers=1)
    assert np.isfinite(result.mean("nll"))


def test_validation_examples_are_seen_only_to_choose() -> None:
    assert not Local().uses_validation
    assert not Local(l2=(1.0,)).uses_validation
    assert Local(l2=(1.0, 2.0)).uses_validation
