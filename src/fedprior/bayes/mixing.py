"""A family of mixtures of predictive distributions, and a prior over it that sites learn together.

    family     g = (a, T): a on the simplex in steps of 1/m, T a temperature;  p_g = Σ_e a_e p_e^{1/T} / Z_e
    score      ℓ_k(g) = Σ log p_g(y) over rows of site k that no expert was trained on
    posterior  ρ_k = softmax(ℓ_k + log π)
    prior      u = .9 softmax(Σ_k ℓ_k) + .1/G;   π = ½ mean_k ρ_k + ½ u
    predict    Σ_{e,T} A_k[e,T] p_e^{1/T} / Z_e,   A_k[e,T] = Σ_g ρ_k(g) a_g[e] [T_g = T]

The prior needs nothing but sums over sites. Where R of N sites report, each sum keeps the share 1 - R/N of what it was:
with everyone it is that of the round, and otherwise an estimate of that over all sites.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fedprior.models.likelihood import Likelihood

SHARED, FLAT = 0.9, 0.1
"""What the prior of all sites together gives to their joint score, and to all members alike."""
LEAST = -1e4
"""The log-density of a row counts as no less, so that one expert that fails leaves every sum finite."""


class Pool(NamedTuple):
    """The prior over the family, and the sums over sites that it is made from."""

    pi: Tensor  # [G]
    score: Tensor  # [G]  Σ_k ℓ_k
    posterior: Tensor  # [G]  Σ_k ρ_k
    sites: Tensor  # []  how many they are


def start(members: int) -> Pool:
    """All members alike, and nobody heard yet."""
    nothing = torch.zeros(members, dtype=torch.float64)
    return Pool(torch.full_like(nothing, 1 / members), nothing, nothing.clone(), torch.zeros((), dtype=torch.float64))


def heard(pool: Pool, score: Tensor, posterior: Tensor, scored: Tensor, clients: int) -> Pool:
    """The prior after sites have reported ℓ and ρ [R, G], and whether they had rows to score, [R]."""
    keep, own = max(0.0, 1 - len(scored) / clients), scored[:, None]
    total = keep * pool.score + (own * score).sum(0)
    shares = keep * pool.posterior + (own * posterior).sum(0)
    sites = keep * pool.sites + scored.sum()
    if not sites > 0:
        return pool
    together = SHARED * total.softmax(0) + FLAT / len(total)
    return Pool((shares / sites + together) / 2, total, shares, sites)


def posterior(score: Tensor, pi: Tensor) -> Tensor:
    """ρ_k = softmax(ℓ_k + log π): [C, G] and [C, G] -> [C, G]."""
    return (score + pi.log()).softmax(1)


@dataclass(frozen=True)
class Family:
    """Mixing weights on the simplex in steps of 1/m, each with every temperature; a member is (weights, T), T last."""

    experts: int
    steps: int
    temperatures: tuple[float, ...]

    @property
    def size(self) -> int:
        """G."""
        return math.comb(self.steps + self.experts - 1, self.experts - 1) * len(self.temperatures)

    @cached_property
    def weights(self) -> Tensor:
        """Every a, [M, E]: the ways to put m balls into E boxes."""
        places = itertools.combinations(range(self.steps + self.experts - 1), self.experts - 1)
        bars = torch.tensor([[-1, *bars, self.steps + self.experts - 1] for bars in places], dtype=torch.float64)
        return (bars.diff(dim=1) - 1) / self.steps

    def score(self, likelihood: Likelihood, each: Tensor, y: Tensor, real: Tensor) -> Tensor:
        """ℓ over the real rows: the experts' predictive distributions [E, C, N, P], y [C, N], real [C, N] -> [C, G]."""
        found = []
        for temperature in self.temperatures:
            tempered = likelihood.temper(each, temperature)
            for a in self.weights:
                used = a > 0  # an expert that fails spoils only the members that use it
                log_a = a[used].log().to(each.dtype)[:, None, None]
                density = likelihood.mixed_density(tempered[used], log_a, y).double()
                density = density.nan_to_num(nan=LEAST, neginf=LEAST).clamp(min=LEAST)
                found.append((density * real).sum(1))
        by_temperature = torch.stack(found, 1).view(len(y), len(self.temperatures), -1)  # [C, T, M]
        return by_temperature.transpose(1, 2).flatten(1)

    def shares(self, rho: Tensor) -> Tensor:
        """A[e, T], the posterior mean of the weights: [C, G] -> [C, E, T]."""
        members = rho.view(len(rho), -1, len(self.temperatures))
        return torch.einsum("cmt,me->cet", members, self.weights)

    def summary(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The weight of each expert [C, E], and the geometric mean of the temperatures [C]: [C, E, T] -> both."""
        logs = torch.tensor(self.temperatures, dtype=torch.float64).log()
        return shares.sum(2), (shares.sum(1) @ logs).exp()

    def predictive(self, likelihood: Likelihood, each: Tensor, shares: Tensor) -> Tensor:
        """Σ A[e, T] p_e^{1/T} / Z_e: [E, C, N, P] and [C, E, T] -> [C, N, P]. An expert without weight has no say."""
        tempered = torch.stack([likelihood.temper(each, t) for t in self.temperatures], 1).flatten(0, 1)
        log_shares = shares.log().to(each.dtype).flatten(1).T.unsqueeze(2)  # [E·T, C, 1]
        used = (log_shares > -torch.inf).unsqueeze(3)
        return likelihood.mix(torch.where(used, tempered, 0.0), log_shares)
