"""pFedVEM's partitions: label skew by random slicing, and concept drift by superclasses.

The clients of a group share all classes. Every class is cut into one block per group, at the same random points for all
classes; group g takes the g-th block from the end of each. So clients of one group have equal sizes,
a client has equally many examples of each of its classes, and the groups differ widely.
Deviations: unequal classes are cut at the same fractions; each step has a generator of its own (the authors use one
seed twice).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedprior.data.partition.base import ByLabel, Partitioner, by_class, groups, owned
from fedprior.data.partition.view import Indices, Parts, View, register_partition
from fedprior.errors import FedpriorError

Equal = Annotated[bool, Field(description="Blocks of equal size (the paper's 'Equal').")]


@register_partition("slicing")
@dataclass(frozen=True, kw_only=True)
class RandomSlicing(ByLabel):
    """pFedVEM's random slicing: `labels` labels per client, equally many of each, very different sizes.

    Each group of C / `labels` clients shares all C classes, shuffled.
    """

    labels: Annotated[int, Field(ge=1, description="Distinct labels per client.")] = 5
    equal: Equal = False

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        deal, cut = rng.spawn(2)
        classes = list(by_class(labels, cut).values())
        C = len(classes)
        if C % self.labels or self.clients * self.labels % C:
            raise FedpriorError(
                f"{self.clients} clients with labels={self.labels} cannot form groups that hold {C} classes each: "
                f"{C} must be a multiple of labels, and clients * labels a multiple of {C}."
            )
        owners = np.empty((C, self.clients * self.labels // C), dtype=np.int64)  # the client of each block
        for g in range(owners.shape[1]):
            owners[deal.permutation(C), -1 - g] = (g * C + np.arange(C)) // self.labels
        return owned(sliced(classes, owners, cut, equal=self.equal), self.clients)


@register_partition("superclass")
@dataclass(frozen=True, kw_only=True)
class Superclass(Partitioner):
    """pFedVEM's concept drift: labels are superclasses, of which a client sees few of the classes within.

    Each client has every label, from `subclasses` of the S classes in it. A group of S / `subclasses` clients shares
    all classes of all superclasses, shuffled within each. All S of them is the paper's 'Homo.'.
    """

    subclasses: Annotated[int, Field(ge=1, description="Classes of each superclass per client.")] = 1
    equal: Equal = False

    def _parts(self, view: View) -> list[Indices]:
        labels, fine = superclasses(view), view.labels
        deal, cut = view.rng.spawn(2)
        classes = by_class(fine, cut)
        within = [list(groups(fine[rows])) for rows in groups(labels).values()]  # the classes of each superclass
        S = len(within[0])
        if any(len(names) != S for names in within) or sum(map(len, within)) != len(classes):
            raise FedpriorError(
                "superclasses must have equally many classes, and each class must be in exactly one of them."
            )
        size = S // self.subclasses  # clients in a group
        if S % self.subclasses or self.clients % max(size, 1):
            raise FedpriorError(
                f"{self.clients} clients with subclasses={self.subclasses} cannot divide the {S} classes of a "
                f"superclass: {S} must be a multiple of subclasses, and clients * subclasses a multiple of {S}."
            )
        rank = {name: i for i, name in enumerate(classes)}
        owners = np.empty((len(classes), self.clients // size), dtype=np.int64)
        for g in range(owners.shape[1]):
            for names in within:
                dealt = [rank[name] for name in deal.permutation(names).tolist()]
                owners[dealt, -1 - g] = g * size + np.arange(S) // self.subclasses
        return owned(sliced(list(classes.values()), owners, cut, equal=self.equal), self.clients)

    def _told(self, view: View, clients: dict[str, Indices]) -> Parts:
        return Parts(clients, labels=superclasses)


def superclasses(view: View) -> Indices:
    """The superclass of each example, or an error where there are none."""
    if view.coarse is None:
        raise FedpriorError(f"{view.data} has no superclasses: partition 'superclass' is for cifar100 and sun397.")
    return view.coarse


def sliced(classes: list[Indices], owners: Indices, cut: np.random.Generator, *, equal: bool) -> Indices:
    """Cut each class into blocks at shared points, with owners [C, blocks]; returns the owner of each example."""
    blocks, smallest = owners.shape[1], min(len(indices) for indices in classes)
    if blocks > smallest:
        raise FedpriorError(f"{smallest} examples of a class cannot be split into {blocks} blocks: use fewer clients.")
    points = np.sort(1.0 + cut.choice(smallest - 1, blocks - 1, replace=False))
    if equal:
        points = np.arange(1, blocks) * smallest / blocks
    owner = np.empty(sum(len(indices) for indices in classes), dtype=np.int64)
    for indices, block_owners in zip(classes, owners, strict=True):
        cuts = np.rint(points * len(indices) / smallest).astype(np.int64)
        owner[indices] = np.repeat(block_owners, np.diff(cuts, prepend=0, append=len(indices)))
    return owner
