"""Diagonal Gaussians: softplus and its inverse, KL against torch.distributions, variance of a mixture."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal, kl_divergence

from fedprior import tree
from fedprior.bayes.gaussian import deviations, inverse_softplus, kl_to_isotropic, pooled_variance
from fedprior.tree import Params

SHAPES = {"bias": (3,), "weight": (3, 2)}
CLIENTS = 4


def normal(seed: int, clients: int = CLIENTS) -> Params:
    gen = torch.Generator().manual_seed(seed)
    return {k: torch.randn(clients, *s, generator=gen, dtype=torch.float64) for k, s in SHAPES.items()}


def positive(seed: int) -> Params:
    return tree.map(torch.exp, normal(seed))


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def library_kl(mu: Params, sigma: Params, centre: Params, variance: Tensor) -> Tensor:
    """The KL of every entry by torch.distributions, summed over each client's tree."""
    total = torch.zeros_like(variance)
    for k in mu:
        rho = variance.sqrt().view(-1, *[1] * (mu[k].dim() - 1)).expand_as(mu[k])
        total += kl_divergence(Normal(mu[k], sigma[k]), Normal(centre[k], rho)).flatten(1).sum(1)
    return total


# Softplus


def test_inverse_softplus_of_one() -> None:
    """softplus(π) = 1 at π = log(e - 1) = 0.5413248546."""
    assert inverse_softplus(1.0) == pytest.approx(0.5413248546, abs=1e-10)
    assert inverse_softplus(1.0) == pytest.approx(math.log(math.e - 1), abs=1e-15)


@pytest.mark.parametrize("value", [1.0, 0.316, 0.1, 0.01, 1e-4, 1e-12, 5.0, 30.0, 800.0])
def test_deviations_undo_inverse_softplus(value: float) -> None:
    """Small deviations keep all their digits (log(e^s - 1) would lose them), large ones do not overflow.

    Above 20, torch's softplus returns its argument, which is wrong by less than e⁻²⁰ = 2e-9.
    """
    pi = {"t": vector(inverse_softplus(value))}
    assert float(deviations(pi)["t"]) == pytest.approx(value, rel=1e-10)


def test_deviations_are_softplus_leaf_by_leaf() -> None:
    """log(1 + e^π); log 2 at 0; e^π for π → -∞."""
    pi = {"a": vector(0.0, 1.5), "b": vector(-30.0)}
    sigma = deviations(pi)
    assert torch.allclose(sigma["a"], vector(math.log(2), math.log1p(math.exp(1.5))), rtol=1e-14, atol=0)
    assert float(sigma["b"]) == pytest.approx(math.exp(-30), rel=1e-12)


# KL


@pytest.mark.parametrize("seed", range(3))
def test_kl_equals_the_library(seed: int) -> None:
    """Each client has its own ρ², and its KL sums over both tensors and over no other client."""
    mu, sigma, centre = normal(3 * seed), positive(3 * seed + 1), normal(3 * seed + 2)
    variance = vector(0.2, 1.0, 3.5, 40.0)
    ours = kl_to_isotropic(mu, sigma, centre, variance)
    assert ours.shape == (CLIENTS,)
    assert torch.allclose(ours, library_kl(mu, sigma, centre, variance), rtol=1e-12, atol=0)
    for c in range(CLIENTS):
        m, s, w = (tree.index(t, [c]) for t in (mu, sigma, centre))
        assert torch.allclose(kl_to_isotropic(m, s, w, variance[[c]]), ours[[c]], rtol=1e-13, atol=0)


def test_kl_is_zero_only_at_the_prior() -> None:
    """KL(p ‖ p) = 0; moving the mean, the width or the variance makes it positive."""
    centre, variance = normal(0), vector(0.5, 1.0, 2.0, 9.0)
    rho = {k: variance.sqrt().view(-1, *[1] * (v.dim() - 1)).expand_as(v) for k, v in centre.items()}
    assert kl_to_isotropic(centre, rho, centre, variance).abs().max() < 1e-12
    moved = tree.map(lambda leaf: leaf + 0.01, centre)
    assert (kl_to_isotropic(moved, rho, centre, variance) > 1e-6).all()
    for factor in (0.99, 1.01):
        wider = tree.map(lambda leaf, factor=factor: leaf * factor, rho)
        assert (kl_to_isotropic(centre, wider, centre, variance) > 1e-6).all()
        assert (kl_to_isotropic(centre, rho, centre, variance * factor) > 1e-6).all()


def test_kl_is_exact_and_not_the_bound_of_eq_10() -> None:
    """d = 2, σ² = (e, e), μ = c, ρ² = 1: Σ (-½ + e/2 - ½) = e - 2.

    Eq. 10 of pFedVEM puts -½ log Tr Σ = -½ log 2e = -0.85 for -Σ log σ = -1, which is no upper bound: with both
    terms as printed, KL would be e - 1.85.
    """
    zero = {"t": torch.zeros(1, 2, dtype=torch.float64)}
    sigma = {"t": torch.full((1, 2), math.exp(0.5), dtype=torch.float64)}
    kl = float(kl_to_isotropic(zero, sigma, zero, vector(1.0)))
    assert kl == pytest.approx(math.e - 2, abs=1e-14)
    assert -0.5 * math.log(2 * math.e) == pytest.approx(-0.85, abs=0.005)


@pytest.mark.parametrize("seed", range(3))
def test_kl_gradients(seed: int) -> None:
    """∂/∂μ = τ (μ - w);  ∂/∂π = (τσ - 1/σ) sigmoid(π), with τ = 1/ρ²."""
    mu, pi, w = normal(seed), normal(10 + seed), normal(20 + seed)
    variance = vector(0.3, 1.0, 2.5, 7.0)
    for leaf in (*mu.values(), *pi.values()):
        leaf.requires_grad_()
    kl_to_isotropic(mu, deviations(pi), w, variance).sum().backward()  # type: ignore[no-untyped-call]
    for k in SHAPES:
        tau = (1 / variance).view(-1, *[1] * (mu[k].dim() - 1))
        sigma = torch.log1p(pi[k].detach().exp())
        by_mu, by_pi = mu[k].grad, pi[k].grad
        assert by_mu is not None
        assert by_pi is not None
        assert torch.allclose(by_mu, tau * (mu[k].detach() - w[k]), atol=1e-12)
        assert torch.allclose(by_pi, (tau * sigma - 1 / sigma) * torch.sigmoid(pi[k].detach()), atol=1e-12)


def test_kl_has_a_gradient_by_the_variance() -> None:
    """∂KL/∂ρ² = d/(2ρ²) - (Σσ² + ‖μ - c‖²)/(2ρ⁴): zero at ρ² = (Σσ² + ‖μ - c‖²)/d, so the M-step minimises it."""
    mu, sigma, centre = normal(0), positive(1), normal(2)
    spread = sum(((sigma[k] ** 2 + (mu[k] - centre[k]) ** 2).flatten(1).sum(1) for k in mu), torch.zeros(()))
    best = (spread / 9).requires_grad_()
    kl_to_isotropic(mu, sigma, centre, best).sum().backward()  # type: ignore[no-untyped-call]
    assert best.grad is not None
    assert best.grad.abs().max() < 1e-12
    other = (2 * best.detach()).requires_grad_()
    kl_to_isotropic(mu, sigma, centre, other).sum().backward()  # type: ignore[no-untyped-call]
    assert other.grad is not None
    expected = 9 / (2 * other) - spread / (2 * other**2)
    assert torch.allclose(other.grad, expected, rtol=1e-12)


# Mixtures


def test_pooled_variance_is_that_of_the_mixture() -> None:
    """About the mixture's own mean it equals torch.distributions' MixtureSameFamily, element by element."""
    theta, variance, weights = normal(0), positive(1), vector(5.0, 1.0, 20.0, 2.0)
    mean = tree.average(theta, weights)
    pooled = pooled_variance(theta, variance, mean, weights, floor=0.0)
    for k, shape in SHAPES.items():
        parts = Normal(theta[k].movedim(0, -1), variance[k].sqrt().movedim(0, -1))
        share = Categorical(weights.expand(*shape, CLIENTS))
        mixture = MixtureSameFamily(share, parts)
        assert torch.allclose(mean[k], mixture.mean, rtol=1e-12)
        assert torch.allclose(pooled[k], mixture.variance, rtol=1e-12)


def test_pooled_variance_by_hand() -> None:
    """Weights (1, 3), θ = (0, 2), v = (1, 5), about 1: ¼ (1 + 1) + ¾ (5 + 1) = 5; about 0: ¼ · 1 + ¾ (5 + 4) = 7."""
    theta, variance = {"t": vector(0.0, 2.0)[:, None]}, {"t": vector(1.0, 5.0)[:, None]}
    for weights in (vector(1.0, 3.0), vector(0.02, 0.06)):
        for centre, expected in ((1.0, 5.0), (0.0, 7.0)):
            pooled = pooled_variance(theta, variance, {"t": vector(centre)}, weights, floor=1e-6)
            assert float(pooled["t"]) == pytest.approx(expected, rel=1e-14)


def test_pooled_variance_has_a_floor() -> None:
    """Clients that agree and are sure would give a prior of no width; entries above the floor are left alone."""
    theta = {"t": torch.tensor([[1.0, 0.0], [1.0, 2.0]], dtype=torch.float64)}
    zero = {"t": torch.zeros(2, 2, dtype=torch.float64)}
    pooled = pooled_variance(theta, zero, {"t": vector(1.0, 1.0)}, vector(1.0, 1.0), floor=0.01)
    assert pooled["t"].tolist() == [0.01, 1.0]
