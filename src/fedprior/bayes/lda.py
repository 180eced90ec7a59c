"""Linear discriminant analysis on stacks: a Gaussian for every class, one covariance for all, in float64.

Shapes: features Z [C, N, d] with labels y [C, N] and a mask of real rows [C, N]; class means μ [C, K, d]; covariance
Σ [C, d, d]; log class prior [C, K].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Statistics(NamedTuple):
    """What a class-conditional Gaussian model is made of."""

    mean: Tensor  # [C, K, d]
    covariance: Tensor  # [C, d, d]


class Sample(NamedTuple):
    """Some features of each client of a stack."""

    z: Tensor  # [C, N, d] float64
    y: Tensor  # [C, N]
    real: Tensor  # [C, N] bool; False on padding


def head(stats: Statistics, log_prior: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """The Bayes classifier as a linear layer, W [C, K, d] and b [C, K].

    S = (1-ε) Σ + ε tr(Σ)/d I;   W = μ S⁻¹;   b_k = -½ μ_k·W_k + log π_k.  By Cholesky.
    """
    S = shrunk(stats.covariance, shrinkage)
    W = torch.cholesky_solve(stats.mean.transpose(1, 2), torch.linalg.cholesky(S)).transpose(1, 2)
    return W, log_prior - 0.5 * (stats.mean * W).sum(2)


def shrunk(covariance: Tensor, shrinkage: float) -> Tensor:
    """Σ shrunk slightly towards the sphere of the same trace."""
    d = covariance.shape[-1]
    scale = covariance.diagonal(dim1=1, dim2=2).sum(1) / d
    eye = torch.eye(d, dtype=covariance.dtype)
    return (1 - shrinkage) * covariance + shrinkage * scale[:, None, None] * eye


def statistics(sample: Sample, prior: Statistics, ridge: float, least: int = 1) -> Statistics:
    """A client's own statistics; the prior's where data are missing.

    Means of classes with fewer than `least` rows are the prior's. Rows are centred by their class's own mean; the
    scatter is divided by n-1 and gets a ridge. A client with fewer than two rows has the prior's covariance.
    """
    classes = prior.mean.shape[1]
    member = (F.one_hot(sample.y, classes) * sample.real.unsqueeze(-1)).double()  # [C, N, K]
    count = member.sum(1)
    own = member.transpose(1, 2) @ sample.z / count.clamp(min=1).unsqueeze(-1)
    mean = torch.where((count >= least).unsqueeze(-1), own, prior.mean)
    centred = (sample.z - member @ own) * sample.real.unsqueeze(-1)
    n = count.sum(1)
    scatter = centred.transpose(1, 2) @ centred / (n - 1).clamp(min=1)[:, None, None]
    covariance = regularised(scatter, ridge)
    return Statistics(mean, torch.where((n > 1)[:, None, None], covariance, prior.covariance))


def regularised(scatter: Tensor, ridge: float) -> Tensor:
    """Scatter plus ridge; if the ridge is too small, made positive definite by clipping its correlations."""
    covariance = scatter + ridge * torch.eye(scatter.shape[-1], dtype=scatter.dtype)
    return covariance if ridge >= 1e-3 else positive_definite(covariance)


def positive_definite(covariance: Tensor, smallest: float = 1e-4, variance: float = 1e-8) -> Tensor:
    """Clip the eigenvalues of the correlation matrix from below, then restore the variances."""
    scale = covariance.diagonal(dim1=1, dim2=2).clamp(min=variance).sqrt()
    outer = scale.unsqueeze(2) * scale.unsqueeze(1)
    values, vectors = torch.linalg.eigh(covariance / outer)
    clipped = vectors * values.clamp(min=smallest).unsqueeze(1) @ vectors.transpose(1, 2)
    unit = clipped.diagonal(dim1=1, dim2=2).sqrt()
    found: Tensor = clipped / (unit.unsqueeze(2) * unit.unsqueeze(1)) * outer
    return found


def interpolate(own: Statistics, prior: Statistics, beta: Tensor) -> Statistics:
    """β own + (1-β) prior; β [C, 2] has a share for the means and one for the covariance."""
    b_mean, b_cov = beta[:, 0, None, None], beta[:, 1, None, None]
    return Statistics(torch.lerp(prior.mean, own.mean, b_mean), torch.lerp(prior.covariance, own.covariance, b_cov))


def common_basis(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """P [C, d, d] and λ [C, d] with Pᵀ A P = I and Pᵀ B P = diag λ, for positive definite A and B.

    So ((1-β) A + β B)⁻¹ = P diag(1 / (1 - β + β λ)) Pᵀ for every β. Equal matrices have λ = 1 exactly.
    """
    L = torch.linalg.cholesky(first)
    half = torch.linalg.solve_triangular(L, second, upper=False)
    values, vectors = torch.linalg.eigh(torch.linalg.solve_triangular(L, half.transpose(1, 2), upper=False))
    values = values.masked_fill((first == second).all(2).all(1, keepdim=True), 1.0)
    return torch.linalg.solve_triangular(L.transpose(1, 2), vectors, upper=True), values


def compact(sample: Sample) -> Sample:
    """The real rows alone, in their order, padded to the longest client's."""
    order = (~sample.real).byte().argsort(dim=1, stable=True)[:, : int(sample.real.sum(1).max())]
    wide = order.unsqueeze(2).expand(-1, -1, sample.z.shape[2])
    return Sample(sample.z.gather(1, wide), sample.y.gather(1, order), sample.real.gather(1, order))


def cross_entropy(stats: Statistics, log_prior: Tensor, sample: Sample, shrinkage: float) -> Tensor:
    """Mean -log p(y | z) of each client's real rows under the model, [C]."""
    return linear_loss(*head(stats, log_prior, shrinkage), sample)


def linear_loss(weight: Tensor, bias: Tensor, sample: Sample) -> Tensor:
    """Mean -log p(y | z) of each client's real rows under the linear classifier W [C, K, d], b [C, K]; [C]."""
    logits = torch.baddbmm(bias.unsqueeze(2), weight, sample.z.transpose(1, 2))  # classes before rows: faster
    own = -F.log_softmax(logits, dim=1).gather(1, sample.y.unsqueeze(1)).squeeze(1) * sample.real
    return own.sum(1) / sample.real.sum(1).clamp(min=1)


def minimise(objective: Callable[[Tensor], Tensor], clients: int, tolerance: float = 1e-3) -> Tensor:
    """The minimiser in [0, 1] of each client's function of one variable, [C].

    The objective may have several minima: a grid of eleven points finds the best, golden sections refine it. The best
    point evaluated is returned.
    """
    best = torch.zeros(clients, dtype=torch.float64)
    value = objective(best)

    def look(at: Tensor) -> Tensor:
        nonlocal best, value
        found = objective(at)
        better = found < value
        best, value = torch.where(better, at, best), torch.where(better, found, value)
        return found

    for step in range(1, 11):
        look(torch.full((clients,), step / 10, dtype=torch.float64))
    low, high = (best - 0.1).clamp(min=0), (best + 0.1).clamp(max=1)
    golden = (5**0.5 - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = look(left), look(right)
    for _ in range(math.ceil(math.log(tolerance / 0.2) / math.log(golden)) - 1):  # the same number for every client
        smaller = at_left < at_right
        low, high = torch.where(smaller, low, left), torch.where(smaller, right, high)
        kept, at_kept = torch.where(smaller, left, right), torch.where(smaller, at_left, at_right)
        new = low + high - kept  # the inner point that the golden ratio does not hand on
        at_new = look(new)
        left, right = torch.where(smaller, new, kept), torch.where(smaller, kept, new)
        at_left, at_right = torch.where(smaller, at_new, at_kept), torch.where(smaller, at_kept, at_new)
    return best


def pack(covariance: Tensor) -> Tensor:
    """The upper triangle of symmetric matrices: [C, d, d] -> [C, d(d+1)/2]."""
    d = covariance.shape[-1]
    rows, columns = torch.triu_indices(d, d)
    return covariance[..., rows, columns]


def unpack(packed: Tensor, d: int) -> Tensor:
    """The inverse of `pack`."""
    rows, columns = torch.triu_indices(d, d)
    full = packed.new_zeros(*packed.shape[:-1], d, d)
    full[..., rows, columns] = packed
    full[..., columns, rows] = packed
    return full
