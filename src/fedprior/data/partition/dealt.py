"""Partitions that assign labels to clients: labels per client, shards, major and minor classes."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedprior.data.partition.base import ByLabel, by_class, owned
from fedprior.data.partition.view import Indices, register_partition
from fedprior.errors import FedpriorError


@register_partition("labels")
@dataclass(frozen=True, kw_only=True)
class LabelsPerClient(ByLabel):
    """Each client has exactly `labels` labels; a label's examples are split equally among its owners.

    Labels are assigned in a shuffled cycle, so the numbers of owners of two labels differ by at most one.
    """

    labels: Annotated[int, Field(ge=1, description="Distinct labels per client.")] = 2

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        classes = by_class(labels, rng)
        least = -(-len(classes) // self.clients)  # fewer would leave a label without an owner
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
        return owned(owner, self.clients)


@register_partition("shards")
@dataclass(frozen=True, kw_only=True)
class Shards(ByLabel):
    """Sort by label, cut into shards whose sizes differ by at most one, assign them at random (McMahan et al. 2017)."""

    shards: Annotated[int, Field(ge=1, description="Shards per client.")] = 2

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        count, n = self.clients * self.shards, len(labels)
        if n < count:
            raise FedpriorError(f"{n} examples cannot be split into {count} shards: use fewer clients or shards.")
        by_label = np.concatenate(list(by_class(labels, rng).values()))
        deal = rng.permutation(np.arange(count) // self.shards)  # [count], the client of each shard
        owner = np.empty(n, dtype=np.int64)
        owner[by_label] = deal[np.arange(n) * count // n]
        return owned(owner, self.clients)


@register_partition("major")
@dataclass(frozen=True, kw_only=True)
class MajorMinor(ByLabel):
    """FedBPS: a share of each client is uniform over the classes, the rest comes from its `major` classes.

    Client i's major classes are `major` * i, `major` * i + 1, ... mod C. Clients take the next examples of a
    class in turn, from the start when they run out: examples may repeat across clients, never within one, and
    some may be left over. With 20 clients, 10 equal classes and the defaults each is used exactly once.
    """

    uniform_share: Annotated[float, Field(ge=0, le=1, description="Share that is uniform over the classes.")] = 0.2
    major: Annotated[int, Field(ge=1, description="Major classes per client.")] = 2
    samples: Annotated[int | None, Field(ge=1, description="Examples per client; N // clients by default.")] = None

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        classes = by_class(labels, rng)
        if self.major > len(classes):
            raise FedpriorError(f"major={self.major} is more than the {len(classes)} classes: use a smaller number.")
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
