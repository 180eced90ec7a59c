"""pFedBreD's partition, which is pFedMe's: few labels per client, sizes from a log-normal law."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedprior.data.partition.base import ByLabel, groups
from fedprior.data.partition.view import Indices, Parts, View, register_partition
from fedprior.errors import FedpriorError

FIRST = 10
"""Examples of each of its labels that every client gets before sizes are drawn."""


@register_partition("lognormal")
@dataclass(frozen=True, kw_only=True)
class LogNormal(ByLabel):
    """pFedBreD's log-normal sizes: client u has the labels u, u + 1, ... mod C; some examples are not used.

    Classes are consumed in the data's order. Every client first gets 10 examples of each of its labels. Then
    P ~ LogNormal(0, 2) of shape [C, clients, labels] is scaled so that class l sums to its count less r, and client u
    gets for its j-th label l, with p = floor(P[l, u // (clients / C), j]), if class l has more than so many left,

        style mnist (r = 1000):    m = p · U{1..10} + U{10..200}
        style cifar (r = clients): m = 2 (p + U{300..600})

    more examples, else none. As in the authors' code, the second index of P uses only a few of its rows.
    The paper: labels=3 with 100 clients on MNIST, labels=2 on Fashion-MNIST, labels=3 with style=cifar and 20 clients
    on CIFAR10, each with test=0.25 and split=random. Their MNIST script labels the first 10 examples of the j-th
    label of a client as j; `mislabel` does so too.
    """

    labels: Annotated[int, Field(ge=1, description="Distinct labels per client.")] = 3
    style: Annotated[Literal["mnist", "cifar"], Field(description="Which of the authors' formulas.")] = "mnist"
    mislabel: Annotated[bool, Field(description="Repeat the authors' wrong labels on MNIST.")] = False

    def _split(self, labels: Indices, rng: np.random.Generator) -> list[Indices]:
        classes = list(groups(labels).values())
        counts, C = np.array([len(indices) for indices in classes]), len(classes)
        if self.labels > C:
            raise FedpriorError(f"labels={self.labels} is more than the {C} classes: use a smaller number.")
        hands = [[(u + j) % C for j in range(self.labels)] for u in range(self.clients)]
        used = FIRST * np.bincount(np.ravel(hands), minlength=C)
        if (used > counts).any():
            short = int(np.argmax(used > counts))
            raise FedpriorError(
                f"class {short} has {counts[short]} examples, but its clients need {used[short]}, {FIRST} each: use "
                "fewer clients or fewer labels per client."
            )
        reserve = 1000 if self.style == "mnist" else self.clients
        P = rng.lognormal(0.0, 2.0, (C, self.clients, self.labels))
        P *= (np.maximum(counts - reserve, 0) / P.sum((1, 2)))[:, None, None]
        first, parts = np.zeros(C, dtype=np.int64), []
        for hand in hands:
            parts.append([classes[k][first[k] : first[k] + FIRST] for k in hand])
            first[hand] += FIRST
        rows = max(1, self.clients // C)
        for u, hand in enumerate(hands):
            for j, k in enumerate(hand):
                more = self._size(int(P[k, u // rows, j]), rng)
                if used[k] + more < counts[k]:
                    parts[u].append(classes[k][used[k] : used[k] + more])
                    used[k] += more
        return [np.concatenate(part) for part in parts]

    def _size(self, drawn: int, rng: np.random.Generator) -> int:
        if self.style == "mnist":
            extra = int(rng.integers(10, 200, endpoint=True))
            return drawn * int(rng.integers(1, 10, endpoint=True)) + extra
        return 2 * (drawn + int(rng.integers(300, 600, endpoint=True)))

    def _told(self, view: View, clients: dict[str, Indices]) -> Parts:
        if not self.mislabel:
            return Parts(clients)
        relabelled = self.relabelled(view.labels, list(clients.values()))
        return Parts(clients, mislabelled=dict(zip(clients, relabelled, strict=True)))

    def relabelled(self, labels: Indices, parts: list[Indices]) -> list[Indices]:
        """Each client's labels; with `mislabel`, wrong where the authors' are."""
        own = [labels[part] for part in parts]
        C = len(np.unique(labels))
        for u, (part, y) in enumerate(zip(parts, own, strict=True)):
            for j in range(self.labels if self.mislabel else 0):
                y[np.flatnonzero(labels[part] == (u + j) % C)[:FIRST]] = j
        return own
