"""A site of a mixed model θ = γ + L b, b ~ N(0, I): the mode of b, and sums that say how log Z would change.

    b     = argmax log p(y | γ + L b) - ½ bᵀb        damped Newton: its Hessian I + LᵀHL is never singular
    H     = Σ_i W_i ⊗ x_i x_iᵀ;   M = (I + LᵀHL)⁻¹;   V = L M Lᵀ
    log Z = log p(y | γ + L b) - ½ bᵀb + ½ log |M|   the Laplace approximation of log ∫ p(y | θ) p(θ) dθ
    c     = Σ_i x_i ⊗ (∂W_i/∂η · x_iᵀV x_i)          how log |M| moves with θ; 0 where the curvature is constant

The derivatives, each tested against finite differences of log Z:

    ∂/∂γ  = Xᵀ(y - p) - ½ (I - HV) c;   information A = H - HVH
    ∂/∂S  = ½ [b bᵀ + M - I - ½ (a bᵀ + b aᵀ)],  a = M Lᵀ c;   information ½ (1 - M_ii) (1 - M_jj)
    ∂/∂ log s² = ½ (E[RSS] / s² - n),  E[RSS] = Σ (y - η)² + tr(X V Xᵀ);   information ½ (n - D + tr M²)

Restricted likelihood (REML) integrates γ too, with its covariance C, and adds -½ log |ΣA|. At a fixed curvature W its
derivatives are ½ Lᵀ A C A L by S, and ½ tr(C BᵀHB) by log s²,  B = I - VH.

Σ is not known exactly either; let U be the variances of the entries of S. The mode moves as dθ = L M S b: this adds
J = L M Cov(S b) M Lᵀ to its covariance (Kackar & Harville, JASA 79, 1984; Kass & Steffey, JASA 84, 1989). Variances
move as dV = L M S M Lᵀ and dC = C Σ[A L S Lᵀ A] C: intervals are Student's (Satterthwaite, Biometrics 2, 1946). That
of θ - γ has both: where a site's own rows say nearly all about θ, most of what is not known about θ - γ is γ.
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
MANY = 1e6
"""Degrees of freedom."""


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


class Doubt(NamedTuple):
    """What the server does not know exactly."""

    gamma: Tensor  # [D, D]  C, the covariance of γ
    covariance: Tensor  # [D, D]  U, the variances of the entries of S
    sway: Tensor  # [D]  the standard deviations of the diagonal of C


class Spread(NamedTuple):
    """How well each site's coefficients are known."""

    covariance: Tensor  # [C, D, D]  of θ, if Σ is known: V + B C Bᵀ
    error: Tensor  # [C, D]  the standard error of θ, with what is not known of Σ
    deviation: Tensor  # [C, D]  and that of θ - γ
    freedom: Tensor  # [C, D]  degrees of freedom of θ
    deviation_freedom: Tensor  # [C, D]  and of θ - γ


class Message(NamedTuple):
    """All that a site tells about its rows under the current model; the server adds them up."""

    score: Tensor  # [C, D]
    information: Tensor  # [C, D(D+1)/2]
    slope: Tensor  # [C, p]  by the covariance
    curvature: Tensor  # [C, p]
    sway: Tensor  # [C, D]  standard deviation of the variance of γ, for what is not known of Σ: entries at their worst
    noise: Tensor  # [C, 2]  derivative and information of log s²; [C, 0] if there is none
    log_z: Tensor  # [C]


def blank(size: int, entries: int, *, noise: bool) -> Message:
    """A message without content, of one site: D coefficients, p entries of the covariance."""
    shapes = ((size,), (size * (size + 1) // 2,), (entries,), (entries,), (size,), (2 if noise else 0,), ())
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


def _scaled(X: Tensor, L: Tensor) -> Tensor:
    """X L, without the products by zeros if L is diagonal: a fit of many columns spends most of its time on them."""
    diagonal = L.diagonal()
    return X * diagonal if torch.equal(diagonal.diag(), L) else X @ L


def _root(H: Tensor, L: Tensor) -> Tensor:
    """The Cholesky factor of I + LᵀHL; nan where inputs are so large that rounding leaves none."""
    root: Tensor
    inner = _scaled(_scaled(H.mT, L).mT, L)
    root, wrong = torch.linalg.cholesky_ex(torch.eye(len(L), dtype=torch.float64) + inner)
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
    V = _scaled(_scaled(M.mT, L.T).mT, L.T)
    return Fit(b, theta, eta, log_density, H, M, V, log_z)


def message(
    family: Family, covariance: Covariance, rows: Rows, L: Tensor, fit: Fit, doubt: Doubt, *, restricted: bool = False
) -> Message:
    """The sums of every site; `restricted` adds the derivatives of REML.

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
    A = fit.H - fit.H @ fit.V @ fit.H
    AL, C = _scaled(A, L), doubt.gamma if restricted else torch.zeros_like(L)
    if restricted:
        slope = slope + AL.mT @ C @ AL / 2
    noise = _noise(family, rows, fit, C) if isinstance(family, Normal) else torch.zeros(len(b), 0, dtype=torch.float64)
    entries, sway = covariance.entries, _swing(doubt.gamma @ AL, doubt.covariance)
    return Message(score, pack(A), entries(slope), entries(curvature), sway, noise, fit.log_z)


def _swing(R: Tensor, U: Tensor) -> Tensor:
    """The largest standard deviation that the diagonal of R S Rᵀ can have, [C, D]: all entries of S move together."""
    return (_scaled(R.abs(), U.sqrt()) * R.abs()).sum(-1)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _noise(family: Normal, rows: Rows, fit: Fit, C: Tensor) -> Tensor:
    """Derivative and information of log s²; C is that of REML, or 0."""
    n = rows.real.sum(1)
    gap = ((rows.y - fit.eta.squeeze(-1)).square() * rows.real).sum(1) / family.variance
    B = torch.eye(len(C), dtype=torch.float64) - fit.V @ fit.H
    expected = gap + (fit.H * (fit.V + B @ C @ B.transpose(1, 2))).sum((1, 2))
    information = n - fit.M.shape[-1] + fit.M.square().sum((1, 2))
    return torch.stack([(expected - n) / 2, information / 2], 1)


def spread(fit: Fit, L: Tensor, doubt: Doubt, outputs: int = 1) -> Spread:
    """How well θ and θ - γ are known, relative to their means over several outputs: the means themselves never are.

    The mode moves with γ as B = I - VH, and its deviation as -VH: V + B C Bᵀ and V + VH C HV, both with J.
    """
    VH, LM = fit.V @ fit.H, _scaled(fit.M.mT, L.T).mT
    B = torch.eye(len(L), dtype=torch.float64) - VH
    covariance = fit.V + B @ doubt.gamma @ B.transpose(1, 2)
    N = doubt.covariance * fit.b.unsqueeze(2) * fit.b.unsqueeze(1)  # of entries that S has twice; then the diagonal
    N.diagonal(dim1=1, dim2=2).copy_(fit.b.square() @ doubt.covariance)
    J = glm.variances(LM @ N @ LM.transpose(1, 2), outputs)
    deviation = glm.variances(fit.V + VH @ doubt.gamma @ VH.transpose(1, 2), outputs) + J
    swing = _swing(glm.relative(LM.mT, outputs).mT, doubt.covariance)
    freedom = degrees(glm.variances(fit.V, outputs), swing)
    moved = glm.relative(VH.mT, outputs).mT
    sway = (moved.abs() @ doubt.sway.sqrt()).square()  # of VH C HV, whose entries move together at worst
    own = degrees(deviation - J, swing + sway)
    return Spread(covariance, (glm.variances(covariance, outputs) + J).sqrt(), deviation.sqrt(), freedom, own)


def degrees(variance: Tensor, sway: Tensor) -> Tensor:
    """Degrees of freedom of a variance that is estimated with a standard deviation: 1 to a million (known)."""
    return (2 * (variance / sway).square()).nan_to_num(MANY).clamp(1.0, MANY)


def bounded(sums: Tensor) -> Tensor:
    """Sums beyond single precision as infinite: one site's wild units must not decide how all others are scaled."""
    return sums.where(sums.abs() <= torch.finfo(torch.float32).max, torch.inf)
