"""The covariance Σ = L Lᵀ of what differs between sites, and how the marginal likelihood changes with it.

A small change of Σ is written L → L (I + S/2), S symmetric: on the diagonal of a diagonal Σ, S is the change of the log
variance. With b the mode of a site's standardised deviation, M its covariance, and a = M Lᵀ c (see `bayes.mixed`),

    ∂ log Z / ∂S = ½ [b bᵀ + M - I - ½ (a bᵀ + b aᵀ)];    information ½ (1 - M_ii) (1 - M_jj)

The prior is ½ log |Σ| - tr Σ / (2 τ²): for a diagonal Σ every deviation σ ~ Rayleigh(τ), with τ = ½, and in general
the Wishart law of Chung et al. (2015). It keeps the mode away from 0, and from infinity where sites are few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedprior.bayes.lda import pack, unpack

START, FLOOR = 0.1, 1e-6
"""Variances in the beginning, and the smallest that they may become."""
TAU2 = 0.25
"""τ² of the prior."""
LEAST = 1e-2
"""Information of a log variance below which it is as good as unknown."""


class Terms(NamedTuple):
    """A function of the covariance: its value, its gradient by S, and its information."""

    value: Tensor  # []
    gradient: Tensor  # [p]
    information: Tensor  # [p]


class Covariance(Protocol):
    """A family of covariances of D coefficients, with p free entries of S."""

    def start(self) -> Tensor:
        """Σ in the beginning, as it is stored."""

    def factor(self, stored: Tensor, random: Tensor) -> Tensor:
        """L [D, D]; 0 for coefficients that are the same at every site (`random` [D] is 0)."""

    def entries(self, symmetric: Tensor) -> Tensor:
        """The free entries of symmetric matrices, [..., D, D] -> [..., p]."""

    def variances(self, information: Tensor) -> Tensor:
        """The variances of the free entries of S [p] by their information [p], as `Terms` and messages have it."""

    def matrix(self, entries: Tensor) -> Tensor:
        """The symmetric matrix [D, D] that has these free entries [p]; 0 elsewhere."""

    def moved(self, stored: Tensor, step: Tensor) -> Tensor:
        """Σ after a step [p]."""

    def coordinate(self, before: Tensor, step: Tensor, stored: Tensor) -> Tensor:
        """Where a step led from a coordinate [p], so that what was said of one Σ can be carried to another."""

    def change(self, before: Tensor, after: Tensor) -> float:
        """How far Σ has moved, relative to its size; what lies at the floor is not looked at."""

    def prior(self, stored: Tensor, random: Tensor) -> Terms:
        """The log-density of the prior."""


@dataclass(frozen=True)
class Diagonal:
    """A variance for every coefficient; stored as logs [D]."""

    size: int

    def start(self) -> Tensor:
        """Equal variances."""
        return torch.full((self.size,), math.log(START), dtype=torch.float64)

    def factor(self, stored: Tensor, random: Tensor) -> Tensor:
        """diag(σ)."""
        return torch.diag((stored / 2).exp() * random)

    def entries(self, symmetric: Tensor) -> Tensor:
        """The diagonal."""
        return symmetric.diagonal(dim1=-2, dim2=-1)

    def variances(self, information: Tensor) -> Tensor:
        """Of the log variances."""
        return 1 / information.clamp(min=LEAST)

    def matrix(self, entries: Tensor) -> Tensor:
        """With this diagonal."""
        return torch.diag(entries)

    def moved(self, stored: Tensor, step: Tensor) -> Tensor:
        """log v + step."""
        return (stored + step).clamp(min=math.log(FLOOR))

    def coordinate(self, before: Tensor, step: Tensor, stored: Tensor) -> Tensor:
        """log v itself."""
        return stored

    def change(self, before: Tensor, after: Tensor) -> float:
        """Of the log variances."""
        alive = torch.maximum(before, after) > math.log(10 * FLOOR)
        return float(((after - before).abs() * alive).max())

    def prior(self, stored: Tensor, random: Tensor) -> Terms:
        """½ log v - v / (2 τ²)."""
        pull = stored.exp() / (2 * TAU2)
        return Terms((random * (stored / 2 - pull)).sum(), random * (0.5 - pull), random * pull)


@dataclass(frozen=True)
class Full:
    """Any covariance; stored as the triangle of L [D(D+1)/2]."""

    size: int

    def start(self) -> Tensor:
        """Equal variances."""
        return pack(math.sqrt(START) * torch.eye(self.size, dtype=torch.float64))

    def _lower(self, stored: Tensor) -> Tensor:
        return unpack(stored, self.size).tril()  # the upper triangle of Lᵀ, mirrored

    def factor(self, stored: Tensor, random: Tensor) -> Tensor:
        """L; the other coefficients are independent of those that differ, so that a mask takes them out."""
        return self._lower(stored) * random * random.unsqueeze(-1)

    def entries(self, symmetric: Tensor) -> Tensor:
        """The triangle."""
        return pack(symmetric)

    def variances(self, information: Tensor) -> Tensor:
        """Entries off the diagonal stand in S twice, and have twice the information of one."""
        twice = 2 - self.entries(torch.eye(self.size, dtype=torch.float64))
        return 1 / (twice * information.clamp(min=LEAST))

    def matrix(self, entries: Tensor) -> Tensor:
        """With this triangle."""
        return unpack(entries, self.size)

    def moved(self, stored: Tensor, step: Tensor) -> Tensor:
        """L exp(S) Lᵀ, with no eigenvalue below the floor."""
        lower = self._lower(stored)
        values, vectors = torch.linalg.eigh(lower @ torch.linalg.matrix_exp(unpack(step, self.size)) @ lower.T)
        return pack(torch.linalg.cholesky(vectors * values.clamp(min=FLOOR) @ vectors.T).T)

    def coordinate(self, before: Tensor, step: Tensor, stored: Tensor) -> Tensor:
        """The sum of the steps: exact to first order."""
        return before + step

    def change(self, before: Tensor, after: Tensor) -> float:
        """Of the largest entry, relative to the largest variance."""
        old, new = (lower @ lower.T for lower in map(self._lower, (before, after)))
        return float((new - old).abs().max() / old.diagonal().max().clamp(min=1e-2))

    def prior(self, stored: Tensor, random: Tensor) -> Terms:
        """½ log |Σ| - tr Σ / (2 τ²)."""
        lower = self.factor(stored, random)
        inner = lower.T @ lower / (2 * TAU2)
        value = (random * self._lower(stored).diagonal().log()).sum() - inner.trace()
        gradient = 0.5 * torch.diag(random) - inner
        diagonal = inner.diagonal()
        return Terms(value, pack(gradient), pack(0.5 * (diagonal + diagonal.unsqueeze(-1))))
