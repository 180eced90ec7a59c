"""Partitions by proportion: IID, Dirichlet over classes or over clients, quantity."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedprior.data.partition.base import Alpha, ByLabel, MinSize, by_class, dirichlet_counts, filled, owned
from fedprior.data.partition.view import Indices, register_partition
from fedprior.errors import FedpriorError

DRAWS = 100_000
"""Largest number of draws before a partition fails; pFedFDA's Dir(0.1) needs about 5,500."""


@register_partition("iid")
@dataclass(frozen=True, kw_only=True)
class Iid(ByLabel):
    """Random parts whose sizes differ by at most one."""

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        return owned(rng.permutation(np.arange(len(labels)) % self.clients), self.clients)


@register_partition("dirichlet")
@dataclass(frozen=True, kw_only=True)
class Dirichlet(ByLabel):
    """Each class is distributed among the clients in proportions ~ Dir(alpha) (Yurochkin et al. 2019).

    With `cap`, a client that already holds N / clients examples gets nothing of the later classes (pFedFDA);
    zeroing its share and renormalising is the same in law as drawing over the others, which is done here. Clients
    below `min_size` are filled up from the largest, or with `redraw` the shares are drawn until there is none
    (pFedFDA: cap, redraw, min_size=63).
    """

    alpha: Alpha = 0.5
    cap: Annotated[bool, Field(description="Stop filling a client once it holds its fair share.")] = False
    redraw: Annotated[bool, Field(description="Redraw until every client has min_size, instead of filling up.")] = False
    min_size: MinSize = 10

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        classes = list(by_class(labels, rng).values())
        counts = self._draw([len(c) for c in classes], rng)
        for _ in range(DRAWS if self.redraw else 0):
            if counts.sum(0).min() >= self.min_size:
                break
            counts = self._draw([len(c) for c in classes], rng)
        owner = np.empty(len(labels), dtype=np.int64)
        for indices, shares in zip(classes, counts, strict=True):
            owner[indices] = np.repeat(np.arange(self.clients), shares)
        if not self.redraw:
            return owned(filled(owner, self.clients, self.min_size, rng), self.clients)
        if counts.sum(0).min() >= self.min_size:
            return owned(owner, self.clients)
        raise FedpriorError(
            f"{DRAWS} draws gave some client fewer than min_size={self.min_size} examples each time: use fewer "
            "clients, a larger alpha, a smaller min_size, or redraw=false."
        )

    def _draw(self, sizes: list[int], rng: np.random.Generator) -> Indices:
        """How many examples of each class [classes, clients] a client gets; `sizes` are those of the classes."""
        counts = np.zeros((len(sizes), self.clients), dtype=np.int64)
        held, n = np.zeros(self.clients, dtype=np.int64), sum(sizes)
        for size, row in zip(sizes, counts, strict=True):
            takers = np.flatnonzero((held * self.clients < n) | (not self.cap))
            row[takers] = dirichlet_counts(size, self.alpha, len(takers), rng)
            held += row
        return counts


@register_partition("mixture")
@dataclass(frozen=True, kw_only=True)
class Mixture(ByLabel):
    """Each client draws its own mix of labels ~ Dir(alpha · the data's) and fills equal sizes (Hsu et al. 2019).

    Clients take the next examples of their classes in turn. A class that runs out leaves the mixes of the later
    clients, so the last ones get what is left; N - clients * samples examples are not used.
    """

    alpha: Alpha = 0.5
    samples: Annotated[int | None, Field(ge=1, description="Examples per client; N // clients by default.")] = None

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        n = self.samples or len(labels) // self.clients
        if n * self.clients > len(labels):
            raise FedpriorError(
                f"{self.clients} clients of samples={n} need more than the {len(labels)} examples: reduce either."
            )
        classes = list(by_class(labels, rng).values())
        left = np.array([len(indices) for indices in classes])
        prior, start = left / len(labels), np.zeros_like(left)
        parts = []
        for _ in range(self.clients):
            take = _fitting(rng.dirichlet(self.alpha * prior), n, left - start, rng)
            parts.append(np.concatenate([c[a : a + m] for c, a, m in zip(classes, start, take, strict=True)]))
            start += take
        return parts


def _fitting(mix: NDArray[np.float64], n: int, left: Indices, rng: np.random.Generator) -> Indices:
    """`n` draws from a mix of classes with `left` examples remaining, as counts."""
    take = np.zeros_like(left)
    while (missing := n - take.sum()) > 0:
        p = np.where(left > take, np.nan_to_num(mix), 0.0)
        p = p if p.sum() > 0 else (left - take).astype(np.float64)  # its mix is used up: take whatever is left
        take = np.minimum(take + rng.multinomial(missing, p / p.sum()), left)
    return take


@register_partition("quantity")
@dataclass(frozen=True, kw_only=True)
class Quantity(ByLabel):
    """Random labels, sizes in proportions ~ Dir(alpha)."""

    alpha: Alpha = 0.5
    min_size: MinSize = 10

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        shares = dirichlet_counts(len(labels), self.alpha, self.clients, rng)
        owner = rng.permutation(np.repeat(np.arange(self.clients), shares))
        return owned(filled(owner, self.clients, self.min_size, rng), self.clients)
