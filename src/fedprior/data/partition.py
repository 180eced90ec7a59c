"""Split one labelled data set over clients, in the ways the papers do.

A partitioner is its options; calling it gives one sorted index array per client. Every example goes to
exactly one client (`MajorMinor` is the one exception) and every client has at least `min_size` of them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from fedprior.errors import FedpriorError

Indices = NDArray[np.int64]
Alpha = Annotated[float, Field(gt=0, le=1e9, description="Concentration: small is skewed, large is even.")]
MinSize = Annotated[int, Field(ge=1, description="Fewest examples a client may have.")]


def _groups(values: NDArray[Any]) -> dict[Any, Indices]:
    """The sorted indices of each distinct value."""
    distinct, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")
    return dict(zip(distinct.tolist(), np.split(order, np.cumsum(counts)[:-1]), strict=True))


def _classes(labels: Indices, rng: np.random.Generator) -> dict[int, Indices]:
    """The shuffled indices of each class that occurs."""
    return {label: rng.permutation(indices) for label, indices in _groups(labels).items()}


def _parts(owner: Indices, clients: int) -> list[Indices]:
    """From the owner of each example [N] to the sorted indices of each client; nothing is lost or doubled."""
    sizes = np.bincount(owner, minlength=clients)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])


def _shares(n: int, alpha: float, clients: int, rng: np.random.Generator) -> Indices:
    """`n` examples over `clients` in proportions ~ Dir(alpha), as counts [clients]."""
    p = rng.dirichlet(np.full(clients, alpha))
    if not np.isclose(p.sum(), 1):  # a tiny alpha underflows to zeros or NaN, where Dir(alpha) is one-hot
        p = (np.arange(clients) == rng.integers(clients)).astype(np.float64)
    # Rounded, not truncated: a cumulative sum of 0.999... must not leak an example past its client.
    cuts = np.rint(np.cumsum(p)[:-1] * n).astype(np.int64)
    return np.diff(cuts, prepend=0, append=n)


def _repaired(owner: Indices, clients: int, min_size: int, rng: np.random.Generator) -> Indices:
    """Fill clients up to `min_size` with the fewest moves: random examples of whoever is the largest then.

    With N >= clients * min_size the largest client has more than `min_size` as long as anyone has fewer.
    """
    parts = _parts(owner, clients)
    sizes = np.array([len(part) for part in parts])
    missing = np.repeat(np.arange(clients), np.maximum(min_size - sizes, 0))  # one entry an example to move
    left = sizes.copy()
    for _ in missing:
        left[left.argmax()] -= 1
    moved = [rng.choice(part, n, replace=False) for part, n in zip(parts, sizes - left, strict=True)]
    repaired = owner.copy()
    repaired[np.concatenate(moved)] = rng.permutation(missing)
    return repaired


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Partitioner(ABC):
    """From labels [N] to one sorted index array per client; reproducible given `rng`."""

    clients: Annotated[int, Field(ge=1, description="Number of clients.")] = 20
    min_size: MinSize = 1

    def __call__(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        """Partition `range(len(labels))`."""
        if len(labels) < self.clients * self.min_size:
            raise FedpriorError(
                f"{len(labels)} examples are too few for {self.clients} clients of at least {self.min_size}: "
                "use fewer clients or a smaller min_size."
            )
        parts = [np.sort(part) for part in self._split(labels, rng)]
        sizes = [len(part) for part in parts]
        if min(sizes) < self.min_size:
            raise FedpriorError(
                f"a client gets {min(sizes)} examples, fewer than min_size={self.min_size}: "
                "use fewer clients or a smaller min_size."
            )
        return parts

    @abstractmethod
    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]: ...


@dataclass(frozen=True, kw_only=True)
class Iid(Partitioner):
    """Random parts of equal size, give or take one."""

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        return _parts(rng.permutation(np.arange(len(labels)) % self.clients), self.clients)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partitioner):
    """Each class is spread over the clients in proportions ~ Dir(alpha) (Yurochkin et al. 2019).

    With `cap`, a client that already holds N / clients examples gets nothing of the later classes (pFedFDA);
    zeroing its share and renormalising is the same in law as drawing over the others, which is done here.
    Deviation: clients below `min_size` are filled up after one draw instead of drawing until none is left.
    """

    alpha: Alpha = 0.5
    cap: Annotated[bool, Field(description="Stop filling a client once it holds its fair share.")] = False
    min_size: MinSize = 10

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        owner = np.empty(len(labels), dtype=np.int64)
        sizes = np.zeros(self.clients, dtype=np.int64)
        for indices in _classes(labels, rng).values():
            takers = np.flatnonzero((sizes * self.clients < len(labels)) | (not self.cap))
            shares = _shares(len(indices), self.alpha, len(takers), rng)
            owner[indices] = np.repeat(takers, shares)
            sizes[takers] += shares
        return _parts(_repaired(owner, self.clients, self.min_size, rng), self.clients)


@dataclass(frozen=True, kw_only=True)
class Quantity(Partitioner):
    """Random labels, sizes in proportions ~ Dir(alpha)."""

    alpha: Alpha = 0.5
    min_size: MinSize = 10

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        shares = _shares(len(labels), self.alpha, self.clients, rng)
        owner = rng.permutation(np.repeat(np.arange(self.clients), shares))
        return _parts(_repaired(owner, self.clients, self.min_size, rng), self.clients)


@dataclass(frozen=True, kw_only=True)
class LabelsPerClient(Partitioner):
    """Each client has exactly `labels` labels; a label's examples are split equally among its owners.

    Labels are dealt round a shuffled circle, so the numbers of owners of two labels differ by at most one.
    """

    labels: Annotated[int, Field(ge=1, description="Distinct labels per client.")] = 2

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        classes = _classes(labels, rng)
        least = -(-len(classes) // self.clients)  # fewer would leave a label to nobody
        if not least <= self.labels <= len(classes):
            raise FedpriorError(
                f"{self.clients} clients with labels={self.labels} cannot share {len(classes)} labels: "
                f"use from {least} to {len(classes)} labels per client."
            )
        hands = np.resize(rng.permutation(list(classes)), (self.clients, self.labels))
        owner = np.empty(len(labels), dtype=np.int64)
        for label, indices in classes.items():
            owners = np.flatnonzero((hands == label).any(axis=1))
            if len(indices) < len(owners):
                raise FedpriorError(
                    f"label {label} has {len(indices)} examples for {len(owners)} clients: "
                    "use fewer clients or fewer labels per client."
                )
            owner[indices] = np.resize(owners, len(indices))
        return _parts(owner, self.clients)


@dataclass(frozen=True, kw_only=True)
class Shards(Partitioner):
    """Sort by label, cut into shards of equal size (give or take one), deal them (McMahan et al. 2017)."""

    shards: Annotated[int, Field(ge=1, description="Shards per client.")] = 2

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        count, n = self.clients * self.shards, len(labels)
        if n < count:
            raise FedpriorError(f"{n} examples do not make {count} shards: use fewer clients or shards.")
        by_label = np.concatenate(list(_classes(labels, rng).values()))
        deal = rng.permutation(np.arange(count) // self.shards)  # [count], the client of each shard
        owner = np.empty(n, dtype=np.int64)
        owner[by_label] = deal[np.arange(n) * count // n]
        return _parts(owner, self.clients)


@dataclass(frozen=True, kw_only=True)
class RandomSlicing(Partitioner):
    """pFedVEM's random slicing: `labels` labels per client, equally many of each, sizes far apart.

    Each group of C / `labels` clients deals out all C classes. Every class is cut into one block per group at
    the same random points; group g takes the g-th block from the end of each. Deviations: unequal classes are
    cut at the same fractions; each step has a generator of its own (the authors use one seed twice).
    """

    labels: Annotated[int, Field(ge=1, description="Distinct labels per client.")] = 5
    equal: Annotated[bool, Field(description="Blocks of equal size (the paper's 'Equal').")] = False

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        deal, cut = rng.spawn(2)
        classes = list(_classes(labels, cut).values())
        C, smallest = len(classes), min(len(indices) for indices in classes)
        groups = self.clients * self.labels // C  # also the number of blocks of each class
        if C % self.labels or self.clients * self.labels % C:
            raise FedpriorError(
                f"{self.clients} clients with labels={self.labels} do not form groups of {C} classes each: "
                f"let labels divide {C}, and {C} divide clients * labels."
            )
        if groups > smallest:
            raise FedpriorError(f"{smallest} examples of a class make no {groups} blocks: use fewer clients.")
        owners = np.empty((C, groups), dtype=np.int64)  # the client of each block
        for g in range(groups):
            owners[deal.permutation(C), -1 - g] = (g * C + np.arange(C)) // self.labels
        points = np.sort(1.0 + cut.choice(smallest - 1, groups - 1, replace=False))
        if self.equal:
            points = np.arange(1, groups) * smallest / groups
        owner = np.empty(len(labels), dtype=np.int64)
        for indices, block_owners in zip(classes, owners, strict=True):
            cuts = np.rint(points * len(indices) / smallest).astype(np.int64)
            owner[indices] = np.repeat(block_owners, np.diff(cuts, prepend=0, append=len(indices)))
        return _parts(owner, self.clients)


@dataclass(frozen=True, kw_only=True)
class MajorMinor(Partitioner):
    """FedBPS: a share of each client is uniform over the classes, the rest comes from its `major` classes.

    Client i's major classes are `major` * i, `major` * i + 1, ... mod C. Clients take the next examples of a
    class in turn, from the start when they run out: examples may repeat across clients, never within one, and
    some may be left over. With 20 clients, 10 equal classes and the defaults each is used exactly once.
    """

    uniform_share: Annotated[float, Field(ge=0, le=1, description="Share uniform over classes.")] = 0.2
    major: Annotated[int, Field(ge=1, description="Major classes per client.")] = 2
    samples: Annotated[int | None, Field(ge=1, description="Examples per client, else N // clients.")] = None

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        classes = _classes(labels, rng)
        if self.major > len(classes):
            raise FedpriorError(f"major={self.major} is more than the {len(classes)} classes: use fewer.")
        counts = self._counts(len(classes), self.samples or len(labels) // self.clients)
        ends = np.cumsum(counts, axis=0)
        parts: list[list[Indices]] = [[] for _ in counts]
        for (label, indices), need, end in zip(classes.items(), counts.T, ends.T, strict=True):
            if need.max() > len(indices):
                raise FedpriorError(
                    f"a client needs {need.max()} examples of class {label}, which has {len(indices)}: "
                    "use more clients, fewer samples or a larger uniform_share."
                )
            for part, n, stop in zip(parts, need, end, strict=True):
                part.append(indices.take(np.arange(stop - n, stop), mode="wrap"))
        return [np.concatenate(part) for part in parts]

    def _counts(self, classes: int, samples: int) -> Indices:
        """Examples of each class [clients, C]; remainders go to the last class and the last major one."""
        uniform = round(self.uniform_share * samples)
        counts = np.full((self.clients, classes), uniform // classes)
        counts[:, -1] += uniform % classes
        majors = np.arange(self.clients * self.major).reshape(self.clients, self.major) % classes
        rows = np.arange(self.clients)
        counts[rows[:, None], majors] += (samples - uniform) // self.major
        counts[rows, majors[:, -1]] += (samples - uniform) % self.major
        return counts


PARTITIONERS: dict[str, type[Partitioner]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "labels": LabelsPerClient,
    "shards": Shards,
    "quantity": Quantity,
    "slicing": RandomSlicing,
    "major": MajorMinor,
}


def by_column(values: NDArray[Any], min_size: int = 1) -> dict[str, Indices]:
    """The clients are the distinct values of a column [N]: name -> sorted indices, site2 before site10."""
    import pandas as pd

    names = np.array([str(value).strip() for value in values], dtype=np.str_)
    missing = np.flatnonzero(pd.isna(values) | (names == ""))
    if len(missing) or not len(names):
        raise FedpriorError(
            f"the column that names the client is empty in {len(missing)} of {len(names)} rows "
            f"(first {missing[:3].tolist()}): give every row a client or drop it."
        )
    clients = _groups(names)
    small = [f"{name} ({len(indices)})" for name, indices in clients.items() if len(indices) < min_size]
    if small:
        raise FedpriorError(
            f"clients with fewer than {min_size} examples: {', '.join(small)}; drop them or lower min_size."
        )
    return {name: clients[name] for name in sorted(clients, key=_natural)}


def _natural(name: str) -> list[str | int]:
    """Sort key in which runs of digits count as numbers."""
    return [int(token) if token.isdecimal() else token for token in re.split(r"(\d+)", name)]
