"""The family, its scores and the prior that sites learn together, against numbers computed by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedprior.bayes import mixing
from fedprior.bayes.mixing import Family
from fedprior.models.likelihood import Categorical, Gaussian


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_grid_is_every_way_to_divide_the_steps() -> None:
    """Two steps among three experts: 4 choose 2 = 6 ways."""
    expected = {w for w in itertools.product((0.0, 0.5, 1.0), repeat=3) if sum(w) == 1}
    family = Family(3, 2, (1.0, 2.0))
    assert {tuple(row) for row in family.weights.tolist()} == expected
    assert family.size == 12


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 3))
def test_the_size_is_that_of_the_grid(experts: int, steps: int, temperatures: int) -> None:
    family = Family(experts, steps, tuple(1.0 + k for k in range(temperatures)))
    assert len(family.weights) * temperatures == family.size
    assert torch.allclose(family.weights.sum(1), torch.ones((), dtype=torch.float64))
    assert (family.weights >= 0).all()


def test_scores_by_hand() -> None:
    """Two experts, two classes, steps of ½, T ∈ {1, ½}; one row with label 0, p = .8 and p = .5 under the experts.

    T = 1: Σ a p = .5, .65, .8 for a_1 = 0, ½, 1. T = ½ squares and normalises: .64/(.64+.04) = 16/17 and .5, so
    .5, ½ (16/17 + ½) = 49/68, 16/17. Members are ordered by weights, then by temperature.
    """
    each = double([[[[0.8, 0.2]]], [[[0.5, 0.5]]]]).log()  # [E, C = 1, N = 1, P]
    family = Family(2, 2, (1.0, 0.5))
    assert family.weights.tolist() == [[0, 1], [0.5, 0.5], [1, 0]]
    found = family.score(Categorical(2), each, torch.tensor([[0]]), torch.tensor([[True]]))
    assert found.exp().tolist() == [pytest.approx([0.5, 0.5, 0.65, 49 / 68, 0.8, 16 / 17], abs=1e-12)]


def test_scores_are_sums_over_real_rows() -> None:
    each = double([[[[0.8, 0.2], [0.3, 0.7], [0.9, 0.1]]]]).log()
    family = Family(1, 6, (1.0,))
    found = family.score(Categorical(2), each, torch.tensor([[0, 1, 0]]), torch.tensor([[True, True, False]]))
    assert found.item() == pytest.approx(math.log(0.8 * 0.7), abs=1e-12)


def test_the_temperature_of_a_number_multiplies_its_variance() -> None:
    """N(1, 4) at T = 2 is N(1, 8): log N(3; 1, 8) = -½ (log 2π + log 8 + 4/8). So is √N(1, 4), normalised on a grid."""
    each = double([[[[1.0, math.log(4.0)]]]])
    family = Family(1, 1, (2.0,))
    found = family.score(Gaussian(), each, double([[3.0]]), torch.tensor([[True]])).item()
    assert found == pytest.approx(-0.5 * (math.log(2 * math.pi) + math.log(8) + 0.5), abs=1e-12)
    grid = np.linspace(-40, 42, 400_001)
    powered = np.exp(-0.5 * (grid - 1) ** 2 / 4) ** 0.5
    there = np.exp(-0.5 * (3 - 1) ** 2 / 4) ** 0.5
    assert found == pytest.approx(math.log(there / np.trapezoid(powered, grid)), abs=1e-6)


def test_a_mixture_of_numbers_is_scored_as_it_is_predicted() -> None:
    """½ N(0, 1) + ½ N(2, 1): mean 1, variance 1 + 1 = 2; the score of y = 1 is log N(1; 1, 2) = -½ log 4π."""
    each = double([[[[0.0, 0.0]]], [[[2.0, 0.0]]]])
    family = Family(2, 2, (1.0,))
    found = family.score(Gaussian(), each, double([[1.0]]), torch.tensor([[True]]))
    assert found[0, 1].item() == pytest.approx(-0.5 * math.log(4 * math.pi), abs=1e-12)
    mixed = family.predictive(Gaussian(), each, double([[[0.5], [0.5]]]))
    assert mixed[0, 0].tolist() == pytest.approx([1.0, math.log(2)], abs=1e-12)


def test_the_posterior_by_hand() -> None:
    """ℓ = (log 2, 0, log 3), π = (½, ¼, ¼): proportional to 1, ¼, ¾."""
    found = mixing.posterior(double([[math.log(2), 0, math.log(3)]]), double([[0.5, 0.25, 0.25]]))
    assert found[0].tolist() == pytest.approx([1 / 2, 1 / 8, 3 / 8], abs=1e-12)


def test_the_prior_by_hand() -> None:
    """Two sites, three members; ℓ = (log 2, 0, 0) and (log 3, log 2, 0), ρ = (.6, .2, .2) and (.2, .4, .4).

    Σℓ = (log 6, log 2, 0): softmax (6, 2, 1)/9. u = .9 (6, 2, 1)/9 + .1/3 = (.6, .2, .1) + 1/30. mean ρ = (.4, .3, .3).
    π = ½ (.4, .3, .3) + ½ (.6 + 1/30, .2 + 1/30, .1 + 1/30) = (31/60, 16/60, 13/60).
    """
    score = double([[math.log(2), 0, 0], [math.log(3), math.log(2), 0]])
    rho = double([[0.6, 0.2, 0.2], [0.2, 0.4, 0.4]])
    pool = mixing.heard(mixing.start(3), score, rho, torch.ones(2).double(), 2)
    assert pool.pi.tolist() == pytest.approx([31 / 60, 16 / 60, 13 / 60], abs=1e-12)
    again = mixing.heard(pool, score, rho, torch.ones(2).double(), 2)
    assert again.pi.tolist() == pytest.approx(pool.pi.tolist(), abs=1e-15)  # everyone reported: nothing old is left


def test_sums_keep_what_the_absent_said() -> None:
    """One of two sites reports: the sum becomes ½ S + ℓ. S = (2, 0), then ℓ = (0, 4): (1, 4); a site without rows
    says nothing, but halves what is old: (½, 2)."""
    rho, one = double([[0.5, 0.5]]), torch.ones(1).double()
    pool = mixing.heard(mixing.start(2), double([[2.0, 0.0]]), rho, one, 2)
    pool = mixing.heard(pool, double([[0.0, 4.0]]), rho, one, 2)
    assert pool.score.tolist() == [1, 4]
    assert pool.sites.item() == 1.5
    pool = mixing.heard(pool, double([[9.0, 9.0]]), rho, 0 * one, 2)
    assert pool.score.tolist() == [0.5, 2]
    assert pool.sites.item() == 0.75


def test_sums_estimate_those_over_all_sites() -> None:
    """Each of 40 sites, drawn 10 at a time: the mean of the kept sum is that over all 40."""
    rng, pool, found = np.random.default_rng(0), mixing.start(2), []
    scores = torch.from_numpy(rng.normal(size=(40, 2)))
    for _ in range(4000):
        drawn = torch.from_numpy(rng.choice(40, 10, replace=False))
        pool = mixing.heard(pool, scores[drawn], torch.full((10, 2), 0.5).double(), torch.ones(10).double(), 40)
        found.append(pool.score)
    assert torch.stack(found[100:]).mean(0).tolist() == pytest.approx(scores.sum(0).tolist(), abs=0.6)
    assert pool.sites.item() == pytest.approx(40)


def test_nobody_has_rows_to_score() -> None:
    pool = mixing.start(4)
    found = mixing.heard(pool, torch.zeros(3, 4).double(), torch.ones(3, 4).double(), torch.zeros(3).double(), 3)
    assert found is pool


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_the_prediction_is_linear_in_the_members(experts: int, steps: int, seed: int) -> None:
    """Σ_g ρ(g) p_g, member by member, in plain numpy; the library uses Σ A[e, T] softmax(log p_e / T)."""
    rng = np.random.default_rng(seed)
    temperatures = (0.5, 1.0, 2.0)
    family = Family(experts, steps, temperatures)
    p = rng.dirichlet(np.ones(3), size=(experts, 2, 4))  # [E, C, N, K]
    rho = rng.dirichlet(np.ones(family.size), size=2)
    expected = np.zeros((2, 4, 3))
    for g, (a, t) in enumerate(itertools.product(family.weights.numpy(), temperatures)):
        powered = p ** (1 / t)
        tempered = powered / powered.sum(-1, keepdims=True)
        expected += rho[:, g, None, None] * np.einsum("e,ecnk->cnk", a, tempered)
    shares = family.shares(torch.from_numpy(rho))
    found = family.predictive(Categorical(3), torch.from_numpy(p).log(), shares).exp().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert torch.allclose(shares.sum((1, 2)), torch.ones((), dtype=torch.float64))


def test_an_expert_that_fails_spoils_only_what_uses_it() -> None:
    """Its predictions are not numbers: the member without it is the other expert, and takes all the weight."""
    good = double([[[0.6, 0.4], [0.7, 0.3]]]).log()
    each = torch.stack([torch.full_like(good, torch.nan), good])
    family = Family(2, 2, (1.0,))
    score = family.score(Categorical(2), each, torch.tensor([[0, 0]]), torch.ones(1, 2, dtype=torch.bool))
    assert torch.isfinite(score).all()
    assert score[0, 0].item() == pytest.approx(math.log(0.6 * 0.7))
    shares = family.shares(mixing.posterior(score, double([[1 / 3] * 3])))
    assert torch.allclose(family.predictive(Categorical(2), each, shares), good, atol=1e-12)


def test_a_useless_expert_loses_its_weight_as_rows_grow() -> None:
    """Beside the truth, an expert that knows nothing: its share is 1/2 before any row, and tends to zero."""
    rng, family, found = np.random.default_rng(0), Family(2, 6, (0.5, 0.7, 1.0, 1.4, 2.0)), []
    flat = torch.full((1, family.size), 1 / family.size).double()
    for n in (0, 10, 100, 1000, 10_000):
        p = torch.from_numpy(1 / (1 + np.exp(2 * rng.normal(size=n))))
        y = torch.from_numpy((rng.random(n) < p.numpy()).astype(np.int64))
        truth = torch.stack([1 - p, p], 1).log()
        each = torch.stack([truth, torch.full_like(truth, math.log(0.5))]).unsqueeze(1)  # [E, 1, n, 2]
        score = family.score(Categorical(2), each, y[None], torch.ones(1, n, dtype=torch.bool))
        shares = family.shares(mixing.posterior(score, flat))[0]
        found.append(float(shares[1].sum()))
    assert found[0] == pytest.approx(0.5)
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.01
    assert float(shares[0, 2]) > 0.99  # the truth is known at T = 1
