"""Partitions with a number of clients, and the pieces that they are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedprior.data.partition.view import Indices, Parts, View, numbered
from fedprior.errors import FedpriorError
from fedprior.options import STRICT

Alpha = Annotated[float, Field(gt=0, le=1e9, description="Concentration: small is skewed, large is even.")]
MinSize = Annotated[int, Field(ge=1, description="Smallest number of examples per client.")]


def groups(values: NDArray[Any]) -> dict[Any, Indices]:
    """The sorted indices of each distinct value."""
    distinct, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")
    return dict(zip(distinct.tolist(), np.split(order, np.cumsum(counts)[:-1]), strict=True))


def by_class(labels: Indices, rng: np.random.Generator) -> dict[int, Indices]:
    """The shuffled indices of each class that occurs."""
    return {label: rng.permutation(indices) for label, indices in groups(labels).items()}


def owned(owner: Indices, clients: int) -> list[Indices]:
    """From the owner of each example [N] to the sorted indices of each client; no example is lost or duplicated."""
    sizes = np.bincount(owner, minlength=clients)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])


def dirichlet_counts(n: int, alpha: float, clients: int, rng: np.random.Generator) -> Indices:
    """`n` examples over `clients` in proportions ~ Dir(alpha), as counts [clients]."""
    p = rng.dirichlet(np.full(clients, alpha))
    if not np.isclose(p.sum(), 1):  # a tiny alpha underflows to zeros or NaN, where Dir(alpha) is one-hot
        p = (np.arange(clients) == rng.integers(clients)).astype(np.float64)
    # Rounded, not truncated: a cumulative sum of 0.999... must not leak an example past its client.
    cuts = np.rint(np.cumsum(p)[:-1] * n).astype(np.int64)
    return np.diff(cuts, prepend=0, append=n)


def filled(owner: Indices, clients: int, min_size: int, rng: np.random.Generator) -> Indices:
    """Fill clients up to `min_size` with the fewest moves: each takes a random example of the currently largest client.

    With N >= clients * min_size the largest client has more than `min_size` as long as anyone has fewer.
    """
    parts = owned(owner, clients)
    sizes = np.array([len(part) for part in parts])
    missing = np.repeat(np.arange(clients), np.maximum(min_size - sizes, 0))  # one entry per example to move
    left = sizes.copy()
    for _ in missing:
        left[left.argmax()] -= 1
    moved = [rng.choice(part, n, replace=False) for part, n in zip(parts, sizes - left, strict=True)]
    repaired = owner.copy()
    repaired[np.concatenate(moved)] = rng.permutation(missing)
    return repaired


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Partitioner(ABC):
    """From a view of N examples to sorted rows per client, called client-0, client-1, ...; its `rng` decides."""

    clients: Annotated[int, Field(ge=1, description="Number of clients.")] = 20
    min_size: MinSize = 1

    def __call__(self, view: View) -> Parts:
        """Partition the view's examples."""
        if len(view) < self.clients * self.min_size:
            raise FedpriorError(
                f"{len(view)} examples are too few for {self.clients} clients of at least {self.min_size}: "
                "use fewer clients or a smaller min_size."
            )
        parts = [np.sort(part) for part in self._parts(view)]
        sizes = [len(part) for part in parts]
        if min(sizes) < self.min_size:
            raise FedpriorError(
                f"a client gets {min(sizes)} examples, fewer than min_size={self.min_size}: "
                "use fewer clients or a smaller min_size."
            )
        return self._told(view, numbered(parts))

    @abstractmethod
    def _parts(self, view: View) -> list[Indices]:
        """The rows of each client, in any order."""

    def _told(self, view: View, clients: dict[str, Indices]) -> Parts:
        return Parts(clients)


@dataclass(frozen=True, kw_only=True)
class ByLabel(Partitioner):
    """A partition that uses only the labels [N]."""

    def _parts(self, view: View) -> list[Indices]:
        return self._split(view.labels, view.rng)

    @abstractmethod
    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]: ...
