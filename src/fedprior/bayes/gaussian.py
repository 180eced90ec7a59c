"""Diagonal Gaussians on stacked trees."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fedprior import tree
from fedprior.tree import Params


def inverse_softplus(value: float) -> float:
    """The π with softplus(π) = value > 0, without overflow or loss of small values."""
    return value + math.log(-math.expm1(-value))


def deviations(pi: Params) -> Params:
    """σ = softplus(π)."""
    return tree.map(F.softplus, pi)


def kl_to_isotropic(mu: Params, sigma: Params, centre: Params, variance: Tensor) -> Tensor:
    """KL( N(μ, σ²) ‖ N(c, ρ² I) ) of each client's whole tree, [C]; ρ² is `variance` [C].

    Σ_i  log ρ - log σ_i + (σ_i² + (μ_i - c_i)²) / (2ρ²) - ½
    """
    total = torch.zeros_like(variance)
    for m, s, c in zip(tree.leaves(mu), tree.leaves(sigma), tree.leaves(centre), strict=True):
        spread = (s.square() + (m - c).square()).flatten(1).sum(1)
        count = s[0].numel()
        total = total + count / 2 * variance.log() - s.log().flatten(1).sum(1) + spread / (2 * variance) - count / 2
    return total


def pooled_variance(theta: Params, variance: Params, mean: Params, weights: Tensor, floor: float) -> Params:
    """The variance of the mixture Σ a_k N(θ_k, v_k) about `mean`, element by element, never below `floor`.

    a = weights / Σ weights. With each client's posterior mean and variance this is the M-step of empirical Bayes for
    the prior's variance: Σ a_k [ v_k + (θ_k - γ)² ].
    """
    spread = tree.map(lambda t, v, m: v + (t - m).square(), theta, variance, mean)
    return tree.map(lambda leaf: leaf.clamp(min=floor), tree.average(spread, weights))
