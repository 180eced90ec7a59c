"""Generalised linear models on stacks of sites, in float64: likelihoods, their derivatives, and the rows.

Shapes: rows x [C, N, d], a constant first; m outputs η = x Θᵀ [C, N, m]; coefficients θ [C, D] with D = m d, output by
output. A family is the distribution of y given η. Its three derivatives are all that a Laplace approximation needs, so
a further family is one more class here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedprior.data.client import ClientData

PROBIT = math.pi / 8
"""Of the approximation E[sigmoid(η)] = sigmoid(mean / √(1 + π/8 variance)) (MacKay, 1992)."""


class Family(Protocol):
    """log p(y | η) and its derivatives by η."""

    @property
    def outputs(self) -> int:
        """m, the linear predictors per row."""

    @property
    def curved(self) -> bool:
        """Whether the curvature depends on η; if not, the Laplace approximation is exact."""

    def log_density(self, eta: Tensor, y: Tensor) -> Tensor:
        """log p(y | η), [C, N]."""

    def residual(self, eta: Tensor, y: Tensor) -> Tensor:
        """∂ log p / ∂η, [C, N, m]."""

    def weight(self, eta: Tensor) -> Tensor:
        """W = -∂² log p / ∂η², [C, N, m, m]."""

    def slope(self, eta: Tensor, h: Tensor) -> Tensor:
        """Σ_ab h_ab ∂W_ab / ∂η, [C, N, m], for a symmetric h [C, N, m, m]."""


@dataclass(frozen=True)
class Multinomial:
    """K classes: one logit against the first of two classes, or a symmetric softmax with an output per class."""

    classes: int

    @property
    def outputs(self) -> int:
        """One for two classes, otherwise one per class."""
        return 1 if self.classes == 2 else self.classes

    @property
    def curved(self) -> bool:
        """p (1 - p)."""
        return True

    def _logits(self, eta: Tensor) -> Tensor:
        return F.pad(eta, (1, 0)) if self.classes == 2 else eta

    def _p(self, eta: Tensor) -> Tensor:
        return self._logits(eta).softmax(-1)[..., -self.outputs :]

    def log_density(self, eta: Tensor, y: Tensor) -> Tensor:
        """The label's log-probability."""
        return self._logits(eta).log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def residual(self, eta: Tensor, y: Tensor) -> Tensor:
        """y - p."""
        return F.one_hot(y, self.classes)[..., -self.outputs :] - self._p(eta)

    def weight(self, eta: Tensor) -> Tensor:
        """diag(p) - p pᵀ."""
        p = self._p(eta)
        return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)

    def slope(self, eta: Tensor, h: Tensor) -> Tensor:
        """W (diag h - 2 h p), since ∂p_a / ∂η_j = W_aj; with one logit w (1 - 2p) h."""
        p = self._p(eta).unsqueeze(-1)
        inner = h.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) - 2 * h @ p
        return (self.weight(eta) @ inner).squeeze(-1)


@dataclass(frozen=True)
class Normal:
    """A number with noise of variance s²."""

    variance: float

    @property
    def outputs(self) -> int:
        """The mean."""
        return 1

    @property
    def curved(self) -> bool:
        """1/s², whatever the mean."""
        return False

    def log_density(self, eta: Tensor, y: Tensor) -> Tensor:
        """-½ [log 2πs² + (y - η)² / s²]."""
        gap = y - eta.squeeze(-1)
        return -0.5 * (math.log(2 * math.pi * self.variance) + gap.square() / self.variance)

    def residual(self, eta: Tensor, y: Tensor) -> Tensor:
        """(y - η) / s²."""
        return (y.unsqueeze(-1) - eta) / self.variance

    def weight(self, eta: Tensor) -> Tensor:
        """1 / s²."""
        return torch.full_like(eta, 1 / self.variance).unsqueeze(-1)

    def slope(self, eta: Tensor, h: Tensor) -> Tensor:
        """The curvature is constant."""
        return torch.zeros_like(eta)


@dataclass(frozen=True)
class Poisson:
    """A count whose rate μ is e^η times that of the mean count."""

    mean: float

    @property
    def outputs(self) -> int:
        """The log rate."""
        return 1

    @property
    def curved(self) -> bool:
        """μ."""
        return True

    def _rate(self, eta: Tensor) -> Tensor:
        return self.mean * eta.exp()

    def log_density(self, eta: Tensor, y: Tensor) -> Tensor:
        """y log μ - μ - log y!."""
        y, log_rate = y.double(), eta.squeeze(-1) + math.log(self.mean)
        return y * log_rate - log_rate.exp() - (y + 1).lgamma()

    def residual(self, eta: Tensor, y: Tensor) -> Tensor:
        """y - μ."""
        return y.unsqueeze(-1) - self._rate(eta)

    def weight(self, eta: Tensor) -> Tensor:
        """μ."""
        return self._rate(eta).unsqueeze(-1)

    def slope(self, eta: Tensor, h: Tensor) -> Tensor:
        """μ h."""
        return self._rate(eta) * h.squeeze(-1)


class Rows(NamedTuple):
    """Each site's rows, padded to the longest."""

    x: Tensor  # [C, N, d], 0 on padding
    y: Tensor  # [C, N]
    real: Tensor  # [C, N] float64: 1, or 0 on padding


def padded(data: ClientData) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs [C, N, inputs] in float64, labels [C, N] and which rows are real [C, N]; 0 elsewhere."""
    longest, inputs = max((1, *data.size)), math.prod(data.x.shape[1:])
    x = torch.zeros(len(data), longest, inputs, dtype=torch.float64)
    y = torch.zeros(len(data), longest, dtype=data.y.dtype)
    for c, n in enumerate(data.size):
        own, labels = data.client(c)
        x[c, :n], y[c, :n] = own.reshape(n, inputs).double(), labels
    return x, y, (torch.arange(longest) < torch.tensor(data.size)[:, None]).double()


def design(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Inputs [C, N, d - 1] as standardised columns behind a constant, [C, N, d]; `mean` and `scale` are [d - 1]."""
    return F.pad((x - mean) * scale, (1, 0), value=1.0)


def outputs(x: Tensor, theta: Tensor) -> Tensor:
    """η: rows [C, N, d] and coefficients [C, m d] -> [C, N, m]."""
    return x @ theta.view(len(theta), -1, x.shape[-1]).transpose(1, 2)


def relative(theta: Tensor, outputs: int) -> Tensor:
    """Coefficients [..., D] less their mean over several outputs: all that a softmax depends on."""
    if outputs == 1:
        return theta
    blocks = theta.reshape(*theta.shape[:-1], outputs, theta.shape[-1] // outputs)
    return (blocks - blocks.mean(-2, keepdim=True)).flatten(-2)


def variances(covariance: Tensor, outputs: int) -> Tensor:
    """Those of relative coefficients, [..., D, D] -> [..., D]."""
    both = relative(relative(covariance, outputs).mT, outputs)
    return both.diagonal(dim1=-2, dim2=-1).clamp(min=0)


def score(rows: Rows, residual: Tensor) -> Tensor:
    """Xᵀ r for residuals [C, N, m], [C, D]."""
    return ((residual * rows.real.unsqueeze(-1)).transpose(1, 2) @ rows.x).flatten(1)


def gram(rows: Rows, weight: Tensor) -> Tensor:
    """Σ_i W_i ⊗ x_i x_iᵀ for weights [C, N, m, m], [C, D, D]."""
    m, real = weight.shape[-1], rows.real.unsqueeze(-1)
    blocks = [[(rows.x * weight[..., a, b, None] * real).transpose(1, 2) @ rows.x for b in range(m)] for a in range(m)]
    return torch.cat([torch.cat(row, 2) for row in blocks], 1)


def row_covariance(x: Tensor, covariance: Tensor) -> Tensor:
    """The covariance of each row's outputs under one of the coefficients [C, D, D], [C, N, m, m]."""
    d = x.shape[-1]
    m = covariance.shape[-1] // d
    blocks = covariance.view(len(x), m, d, m, d)
    pairs = [[((x @ blocks[:, a, :, b]) * x).sum(-1) for b in range(m)] for a in range(m)]
    return torch.stack([torch.stack(row, -1) for row in pairs], -2)


def moments(x: Tensor, mean: Tensor, scale: Tensor, theta: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [C, N, m] and covariance [C, N, m, m] of the outputs for inputs [C, N, i], scaled by [C, i]."""
    rows = design(x, mean.unsqueeze(1), scale.unsqueeze(1))
    return outputs(rows, theta), row_covariance(rows, covariance)


def expected_logits(eta: Tensor, h: Tensor) -> Tensor:
    """Logits [..., m] whose softmax is E[softmax(η)] for η ~ N(eta, h), approximately.

    One logit is scaled as MacKay does. For several, every pair of classes is (Lu, Ie & Sha, 2020, `mf2`):
    p_a ∝ 1 / Σ_j exp(-(η_a - η_j) / √(1 + π/8 Var(η_a - η_j))), which for two classes is the same.
    """
    own = h.diagonal(dim1=-2, dim2=-1)
    if eta.shape[-1] == 1:
        return eta / (1 + PROBIT * own).sqrt()
    variance = own.unsqueeze(-1) + own.unsqueeze(-2) - 2 * h
    gap = (eta.unsqueeze(-1) - eta.unsqueeze(-2)) / (1 + PROBIT * variance.clamp(min=0)).sqrt()
    return -(-gap).logsumexp(-1)
