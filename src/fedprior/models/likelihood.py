"""What a network's outputs mean: the distribution of a label given its last layer.

A likelihood turns outputs into a loss, into a predictive distribution of P numbers per example, and into the curvature
for a Laplace approximation. Networks, methods and the engine use only this protocol.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fedprior.data.target import Classes, Count, Number, Target

if TYPE_CHECKING:
    from fedprior.models.task import Task

FLOOR = 1e-4
"""Smallest predicted variance, in units of the target's variance: keeps the loss finite for an exact fit."""
STEEPEST = 20.0
"""Largest size of a count's log rate, relative to the mean: keeps predictions finite for inputs far from all others."""
POISSON = 1e-4
"""Excess of a variance over its mean, relative to it, below which a count is Poisson's to first order."""


class Likelihood(Protocol):
    """p(y | outputs) for a stack of clients."""

    @property
    def outputs(self) -> int:
        """Width of the network's last layer."""

    @property
    def parameters(self) -> int:
        """P, the number of values that describe a predictive distribution."""

    def fits(self, width: int) -> bool:
        """Whether a last layer of this width is valid."""

    def losses(self, out: Tensor, y: Tensor) -> Tensor:
        """-log p(y | out) of every example: out [C, ..., o], y [C, ...] -> [C, ...]."""

    def predictive(self, out: Tensor) -> Tensor:
        """The distribution of y: [..., o] -> [..., P]."""

    def mix(self, draws: Tensor, log_weights: Tensor) -> Tensor:
        """One distribution from several, [S, ..., P] with log-weights that broadcast to [S, ...] -> [..., P]."""

    def mixed_density(self, draws: Tensor, log_weights: Tensor, y: Tensor) -> Tensor:
        """log p(y) under the mixture of several, [S, ..., P] and [...] -> [...]: `log_density` of `mix`."""

    def temper(self, predictive: Tensor, temperature: float) -> Tensor:
        """The distribution p^{1/T} / Z, wider for T > 1 and narrower for T < 1: [..., P] -> [..., P]."""

    def log_density(self, predictive: Tensor, y: Tensor) -> Tensor:
        """log p(y) under a predictive distribution, [..., P] and [...] -> [...]."""

    def readable(self, predictive: Tensor) -> Tensor:
        """A readable predictive distribution: probabilities, or mean and standard deviation."""

    def curvature(self, out: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The expected Hessian of the loss by the outputs, as functions f [B] of `out` [B, o] with weights a [B].

        It is Σ a ∇f ∇fᵀ, so that squared gradients of f by the weights, weighted by a, add up to the GGN's diagonal.
        """


@dataclass(frozen=True)
class Categorical:
    """One of K classes. The predictive distribution is K log-probabilities; a single output z stands for (0, z)."""

    classes: int

    @property
    def outputs(self) -> int:
        """One per class."""
        return self.classes

    @property
    def parameters(self) -> int:
        """A log-probability per class."""
        return self.classes

    def fits(self, width: int) -> bool:
        """K logits, or the single one of two classes."""
        return width == self.classes or (width == 1 and self.classes == 2)

    def logits(self, out: Tensor) -> Tensor:
        """[..., o] -> [..., K]."""
        return F.pad(out, (1, 0)) if out.shape[-1] == 1 else out

    def losses(self, out: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy, with classes before examples: torch's softmax over a short last axis is slow."""
        if out.dim() == 3 and out.shape[-1] == 1:
            return F.binary_cross_entropy_with_logits(out.squeeze(-1), y.to(out.dtype), reduction="none")
        logits = self.logits(out).flatten(1, -2).transpose(1, 2)  # further axes are draws
        return F.cross_entropy(logits, y.flatten(1), reduction="none").view_as(y)

    def predictive(self, out: Tensor) -> Tensor:
        """Log-probabilities."""
        return F.log_softmax(self.logits(out), dim=-1)

    def mix(self, draws: Tensor, log_weights: Tensor) -> Tensor:
        """Probabilities are averaged, not logits."""
        return (draws + log_weights.unsqueeze(-1)).logsumexp(0)

    def mixed_density(self, draws: Tensor, log_weights: Tensor, y: Tensor) -> Tensor:
        """Only the label's probabilities are averaged."""
        chosen = draws.gather(-1, y.expand(draws.shape[:-1]).unsqueeze(-1))
        return self.mix(chosen, log_weights).squeeze(-1)

    def temper(self, predictive: Tensor, temperature: float) -> Tensor:
        """softmax(log p / T)."""
        return F.log_softmax(predictive / temperature, dim=-1)

    def log_density(self, predictive: Tensor, y: Tensor) -> Tensor:
        """The label's log-probability."""
        return predictive.gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def readable(self, predictive: Tensor) -> Tensor:
        """Probabilities."""
        return predictive.exp()

    def curvature(self, out: Tensor) -> list[tuple[Tensor, Tensor]]:
        """diag(p) - p pᵀ = Σ_c p_c ∇log p_c (∇log p_c)ᵀ."""
        log_p = self.predictive(out)
        return [(log_p[:, c], log_p[:, c].detach().exp()) for c in range(log_p.shape[1])]


class Moments(ABC):
    """A predictive distribution that is known by its mean and log-variance, in the target's own unit."""

    @property
    def parameters(self) -> int:
        """Mean and log-variance."""
        return 2

    @abstractmethod
    def log_density(self, predictive: Tensor, y: Tensor) -> Tensor:
        """log p(y) under a predictive distribution, [..., 2] and [...] -> [...]."""

    def mix(self, draws: Tensor, log_weights: Tensor) -> Tensor:
        """The mixture's first two moments: mean Σ a m and variance Σ a [v + (m - mean)²], Σ a = 1.

        Variances are relative to the largest, because in the target's unit they may be beyond single precision.
        """
        a, means, s = log_weights.exp(), draws[..., 0], draws[..., 1]
        mean, unit = (a * means).sum(0), s.detach().amax(0)
        gaps = (means - mean) * (-unit / 2).exp()
        return torch.stack([mean, unit + (a * ((s - unit).exp() + gaps.square())).sum(0).log()], -1)

    def mixed_density(self, draws: Tensor, log_weights: Tensor, y: Tensor) -> Tensor:
        """The density of the distribution with the mixture's moments."""
        return self.log_density(self.mix(draws, log_weights), y)

    def readable(self, predictive: Tensor) -> Tensor:
        """Mean and standard deviation."""
        return torch.stack([predictive[..., 0], (predictive[..., 1] / 2).exp()], -1)


@dataclass(frozen=True)
class Gaussian(Moments):
    """A number. The outputs are the mean and the log-variance of the *standardised* target, whatever its unit.

    The predictive distribution, mean and log-variance, is in the target's own unit, and so is the loss: -log p(y) of
    the original number. `mean` and `deviation` are those of all clients' training targets, see
    `data.target.Number`.
    """

    mean: float = 0.0
    deviation: float = 1.0

    @property
    def outputs(self) -> int:
        """Mean and log-variance."""
        return 2

    def fits(self, width: int) -> bool:
        """Exactly two."""
        return width == 2

    def _read(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the standardised target; the variance is e^s + FLOOR."""
        return out[..., 0], torch.logaddexp(out[..., 1], torch.full((), math.log(FLOOR), dtype=out.dtype))

    def losses(self, out: Tensor, y: Tensor) -> Tensor:
        """½ [log 2π + s + (z - m)² e^{-s}] + log deviation, z the standardised label."""
        m, s = self._read(out)
        z = (y - self.mean) / self.deviation
        return 0.5 * (math.log(2 * math.pi) + s + (z - m).square() * (-s).exp()) + math.log(self.deviation)

    def predictive(self, out: Tensor) -> Tensor:
        """Mean and log-variance in the target's unit."""
        m, s = self._read(out)
        return torch.stack([self.mean + self.deviation * m, s + 2 * math.log(self.deviation)], -1)

    def temper(self, predictive: Tensor, temperature: float) -> Tensor:
        """N(m, v)^{1/T} is N(m, T v) up to a constant: the temperature multiplies the variance."""
        return torch.stack([predictive[..., 0], predictive[..., 1] + math.log(temperature)], -1)

    def log_density(self, predictive: Tensor, y: Tensor) -> Tensor:
        """log N(y; m, e^s)."""
        m, s = predictive[..., 0], predictive[..., 1]
        return -0.5 * (math.log(2 * math.pi) + s + ((y - m) * (-s / 2).exp()).square())

    def curvature(self, out: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Fisher information of a mean, e^{-s}, and of a log-variance, ½."""
        m, s = self._read(out)
        return [(m, (-s).detach().exp()), (s, torch.full_like(s, 0.5))]


@dataclass(frozen=True)
class Counts(Moments):
    """A number of events, Poisson's. The output is the log rate relative to that of the `mean` count.

    It is in units of Poisson's deviation there, 1 / √mean, so that the loss is as curved for large counts as for small
    ones. The predictive distribution, mean and log-variance, is the negative binomial one with these moments, since
    what is not known of the rate adds to the variance; at equal moments it is Poisson's.
    """

    mean: float = 1.0

    @property
    def outputs(self) -> int:
        """The log rate."""
        return 1

    def fits(self, width: int) -> bool:
        """Exactly one."""
        return width == 1

    def _log_rate(self, out: Tensor) -> Tensor:
        own = out[..., 0] / math.sqrt(max(1.0, self.mean))
        return own.clamp(-STEEPEST, STEEPEST) + math.log(self.mean)

    def losses(self, out: Tensor, y: Tensor) -> Tensor:
        """λ - y log λ + log y!, in double precision: for large counts it is a small difference of large numbers."""
        log_rate, y = self._log_rate(out).double(), y.double()
        return (log_rate.exp() - y * log_rate + (y + 1).lgamma()).to(out.dtype)

    def predictive(self, out: Tensor) -> Tensor:
        """Mean and variance are the rate."""
        log_rate = self._log_rate(out)
        return torch.stack([log_rate.exp(), log_rate], -1)

    def averaged(self, relative: Tensor, variance: Tensor) -> Tensor:
        """The distribution of a count whose log rate, relative to the mean's, is normal: a lognormal rate's moments."""
        log_mean = (relative + variance / 2).clamp(-STEEPEST, STEEPEST) + math.log(self.mean)
        mean = log_mean.exp()
        return torch.stack([mean, log_mean + (mean * variance.clamp(max=STEEPEST).expm1()).log1p()], -1)

    def temper(self, predictive: Tensor, temperature: float) -> Tensor:
        """The variance is multiplied as a number's is, but stays at least that of Poisson's distribution, the mean."""
        log_mean, s = predictive[..., 0].log(), predictive[..., 1]
        return torch.stack([predictive[..., 0], torch.maximum(s + math.log(temperature), log_mean)], -1)

    def log_density(self, predictive: Tensor, y: Tensor) -> Tensor:
        """The negative binomial with r = m² / (v - m); where v is nearly m, Poisson's to first order in v/m - 1."""
        m, s, y = predictive[..., 0].double(), predictive[..., 1].double(), y.double()
        m = m.clamp(min=torch.finfo(torch.float64).tiny)
        excess = (s - m.log()).expm1().clamp(min=0)
        poisson = y * m.log() - m + excess / m * ((y - m).square() - y) / 2
        r = m / excess.clamp(min=POISSON)
        binomial = (y + r).lgamma() - r.lgamma() - r * (m / r).log1p() + y * (m.log() - (m + r).log())
        return (torch.where(excess < POISSON, poisson, binomial) - (y + 1).lgamma()).to(predictive.dtype)

    def curvature(self, out: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Fisher information of a log rate, the rate."""
        log_rate = self._log_rate(out)
        return [(log_rate, log_rate.detach().exp())]


def likelihood_of(target: Target) -> Likelihood:
    """The likelihood for a target."""
    if isinstance(target, Classes):
        return Categorical(target.count)
    if isinstance(target, Count):
        return Counts(target.mean or 1.0)
    if isinstance(target, Number):
        return Gaussian(target.mean, target.deviation)
    raise TypeError(f"there is no likelihood for {type(target).__name__}")


def linear_coefficients(likelihood: Likelihood, inputs: int) -> int:
    """Those of a linear model: one of two classes and a number take a single output, K classes take K."""
    outputs = 1 if likelihood.parameters == 2 else likelihood.parameters
    return outputs * (inputs + 1)


def equal_weights(draws: int, dtype: torch.dtype) -> Tensor:
    """log 1/S for each of S draws, to `mix` them by: [S, 1, 1]."""
    return torch.full((draws, 1, 1), -math.log(draws), dtype=dtype)


def categories(task: Task) -> Categorical:
    """The likelihood of a method that needs classes; `Method.bind` has already refused others."""
    assert isinstance(task.likelihood, Categorical)
    return task.likelihood
