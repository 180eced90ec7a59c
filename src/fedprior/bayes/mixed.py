"""A site of a mixed model θ = γ + L b, b ~ N(0, I): the mode of b, and sums that say how log Z would change.

    b     = argmax log p(y | γ + L b) - ½ bᵀb        damped Newton: its Hessian I + LᵀHL is never singular
    H     = Σ_i W_i ⊗ x_i x_iᵀ;   M = (I + LᵀHL)⁻¹;   V = L M Lᵀ
    log Z = log p(y | γ + L b) - ½ bᵀb + ½ log |M|   the Laplace approximation of log ∫ p(y | θ) p(θ) dθ
    c     = Σ_i x_i ⊗ (∂W_i/∂η · x_iᵀV x_i)          how log |M| moves with θ; 0 where the curvature is constant

The derivatives, each tested against finite differences of log Z:

    ∂/∂γ  = Xᵀ(y - p) - ½ (I - HV) c;   information A = H - HVH
    ∂/∂S  = ½ [b bᵀ + M - I - ½ (a bᵀ + b aᵀ)],  a = M Lᵀ c;   information ½ (1 - M_ii) (1 - M_jj)
    ∂/∂ log s² = ½ (E[RSS] / s² - n),  E[RSS] = Σ (y - η)² + tr(X V Xᵀ);   information ½ (n - D + tr M²)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedprior.bayes import glm
from fedprior.bayes.covariance import Covariance
from fedprior.bayes.glm import Family, Normal, Rows
from fedprior.bayes.lda import pack

STEPS, HALVINGS = 60, 40
TOLERANCE = 1e-10
"""Newton decrement of the last step."""


class Fit(NamedTuple):
    """Each site's mode and the Gaussian around it."""

    b: Tensor  # [C, D]
    theta: Tensor  # [C, D]
    eta: Tensor  # [C, N, m]
    log_density: Tensor  # [C]  log p(y | θ)
    H: Tensor  # [C, D, D]
    M: Tensor  # [C, D, D]
    V: Tensor  # [C, D, D]
    log_z: Tensor  # [C]


class Message(NamedTuple):
    """All that a site tells about its rows under the current model; the server adds them up."""

    score: Tensor  # [C, D]
    information: Tensor  # [C, D(D+1)/2]
    slope: Tensor  # [C, p]  by the covariance
    curvature: Tensor  # [C, p]
    noise: Tensor  # [C, 2]  derivative and information of log s²; [C, 0] if there is none
    log_z: Tensor  # [C]


def blank(size: int, entries: int, *, noise: bool) -> Message:
    """A message without content, of one site: D coefficients, p entries of the covariance."""
    shapes = ((size,), (size * (size + 1) // 2,), (entries,), (entries,), (2 if noise else 0,), ())
    return Message(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))


def posterior(family: Family, rows: Rows, gamma: Tensor, L: Tensor) -> Fit:
    """The mode of every site under one prior: γ [D], L [D, D]."""
    b = torch.zeros(len(rows.x), len(gamma), dtype=torch.float64)
    value = _objective(family, rows, gamma, L, b)
    for _ in range(STEPS):
        eta = glm.outputs(rows.x, gamma + b @ L.T)
        gradient = glm.score(rows, family.residual(eta, rows.y)) @ L - b
        root = _root(glm.gram(rows, family.weight(eta)), L)
        step = torch.cholesky_solve(gradient.unsqueeze(-1), root).squeeze(-1)
        decrement = (gradient * step).sum(1)
        b, value = _line_search(family, rows, gamma, L, b, value, step, decrement)
        if bool((decrement < TOLERANCE).all()):
            break
    return _fit(family, rows, gamma, L, b)


def _log_density(family: Family, rows: Rows, eta: Tensor) -> Tensor:
    return (family.log_density(eta, rows.y) * rows.real).sum(1)


def _objective(family: Family, rows: Rows, gamma: Tensor, L: Tensor, b: Tensor) -> Tensor:
    return _log_density(family, rows, glm.outputs(rows.x, gamma + b @ L.T)) - b.square().sum(1) / 2


def _root(H: Tensor, L: Tensor) -> Tensor:
    """The Cholesky factor of I + LᵀHL; nan where inputs are so large that rounding leaves none."""
    root: Tensor
    root, wrong = torch.linalg.cholesky_ex(torch.eye(len(L), dtype=torch.float64) + L.T @ H @ L)
    root[wrong > 0] = torch.nan
    return root


def _line_search(
    family: Family,
    rows: Rows,
    gamma: Tensor,
    L: Tensor,
    b: Tensor,
    value: Tensor,
    step: Tensor,
    decrement: Tensor,
) -> tuple[Tensor, Tensor]:
    """Halve each site's step until its objective rises as it should (Armijo), up to rounding."""
    t = torch.ones(len(b), dtype=torch.float64)
    for _ in range(HALVINGS):
        new = b + t.unsqueeze(1) * step
        found = _objective(family, rows, gamma, L, new)
        good = found >= value + 1e-4 * t * decrement - 1e-10 * (1 + value.abs())
        if bool(good.all()):
            return new, found
        t = torch.where(good, t, t / 2)
    return torch.where(good.unsqueeze(1), new, b), torch.where(good, found, value)


def _fit(family: Family, rows: Rows, gamma: Tensor, L: Tensor, b: Tensor) -> Fit:
    theta = gamma + b @ L.T
    eta = glm.outputs(rows.x, theta)
    H = glm.gram(rows, family.weight(eta))
    root = _root(H, L)
    M = torch.cholesky_inverse(root)
    log_density = _log_density(family, rows, eta)
    log_det = 2 * root.diagonal(dim1=1, dim2=2).log().sum(1)
    log_z = log_density - b.square().sum(1) / 2 - log_det / 2
    return Fit(b, theta, eta, log_density, H, M, L @ M @ L.T, log_z)


def message(family: Family, covariance: Covariance, rows: Rows, L: Tensor, fit: Fit) -> Message:
    """The sums of every site.

    Where a site has fewer rows than columns, c = 0 (penalised quasi-likelihood): its Laplace approximation is too rough
    to be differentiated.
    """
    c = torch.zeros_like(fit.theta)
    if family.curved:
        few = rows.real.sum(1, keepdim=True) < rows.x.shape[-1]
        h = glm.row_covariance(rows.x, fit.V)
        c = glm.score(rows, family.slope(fit.eta, h)).masked_fill(few, 0.0)
    residual = glm.score(rows, family.residual(fit.eta, rows.y))
    score = residual - (c - _times(fit.H, _times(fit.V, c))) / 2
    b, a = fit.b, _times(fit.M, c @ L)
    outer = b.unsqueeze(2) * b.unsqueeze(1) - (a.unsqueeze(2) * b.unsqueeze(1) + b.unsqueeze(2) * a.unsqueeze(1)) / 2
    slope = (outer + fit.M - torch.eye(len(L), dtype=torch.float64)) / 2
    share = 1 - fit.M.diagonal(dim1=1, dim2=2)
    curvature = share.unsqueeze(2) * share.unsqueeze(1) / 2
    information = pack(fit.H - fit.H @ fit.V @ fit.H)
    noise = _noise(family, rows, fit) if isinstance(family, Normal) else torch.zeros(len(b), 0, dtype=torch.float64)
    return Message(score, information, covariance.entries(slope), covariance.entries(curvature), noise, fit.log_z)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _noise(family: Normal, rows: Rows, fit: Fit) -> Tensor:
    """Derivative and information of log s²."""
    n = rows.real.sum(1)
    gap = ((rows.y - fit.eta.squeeze(-1)).square() * rows.real).sum(1) / family.variance
    expected = gap + (fit.H * fit.V).sum((1, 2))
    information = n - fit.M.shape[-1] + fit.M.square().sum((1, 2))
    return torch.stack([(expected - n) / 2, information / 2], 1)


def spread(fit: Fit, C: Tensor) -> tuple[Tensor, Tensor]:
    """The covariance of θ, [C, D, D], and the standard errors of θ - γ, [C, D], if γ has the covariance C [D, D].

    The mode moves with γ as θ̂' = B = I - VH, and the deviation as -VH: V + B C Bᵀ and V + VH C HV.
    """
    VH = fit.V @ fit.H
    B = torch.eye(len(C), dtype=torch.float64) - VH
    deviation = (fit.V + VH @ C @ VH.transpose(1, 2)).diagonal(dim1=1, dim2=2)
    return fit.V + B @ C @ B.transpose(1, 2), deviation.clamp(min=0).sqrt()


def bounded(sums: Tensor) -> Tensor:
    """Sums beyond single precision as infinite: one site's wild units must not decide how all others are scaled."""
    return sums.where(sums.abs() <= torch.finfo(torch.float32).max, torch.inf)
