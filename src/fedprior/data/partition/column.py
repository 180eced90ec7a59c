"""Partitions by a known attribute of each example: a site, a writer, a user, a domain."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from fedprior.data.partition.base import Alpha, MinSize, groups
from fedprior.data.partition.slicing import RandomSlicing
from fedprior.data.partition.spread import Dirichlet
from fedprior.data.partition.view import Indices, Parts, View, numbered, register_partition
from fedprior.errors import FedpriorError
from fedprior.options import renamed

Column = Annotated[
    str | None,
    BeforeValidator(lambda name: name if name is None else str(name)),
    Field(description="Column to use; the first by default."),
]


@register_partition("column")
@renamed(at_most="max_clients")
def by_column(
    view: View,
    column: Column = None,
    min_size: MinSize = 1,
    smaller: Annotated[Literal["refuse", "drop"], Field(description="What to do with smaller clients.")] = "refuse",
    clients: Annotated[int | None, Field(ge=1, description="Use only the first so many clients, by name.")] = None,
    max_clients: Annotated[int | None, Field(ge=1, description="The same, but fewer are accepted.")] = None,
) -> Parts:
    """The clients are the distinct values of a column [N]: name -> sorted indices, site2 before site10."""
    found = _named(view.column(column))
    small = [f"{name} ({len(indices)})" for name, indices in found.items() if len(indices) < min_size]
    if small and smaller == "refuse":
        listed = ", ".join(small[:5]) + (f" and {len(small) - 5} more" if len(small) > 5 else "")
        raise FedpriorError(f"clients with fewer than {min_size} examples: {listed}; drop them or lower min_size.")
    kept = [name for name in sorted(found, key=_natural) if len(found[name]) >= min_size]
    if len(kept) < (clients or 1):
        raise FedpriorError(
            f"{len(kept)} clients have at least {min_size} examples, not {clients or 1}: use fewer clients or a "
            "smaller min_size."
        )
    chosen = {name: found[name] for name in kept[:clients][:max_clients]}
    return Parts(chosen, kinds=lambda examples: _codes(examples.column(column)))  # whatever their labels


@register_partition("merged")
@renamed(least="min_users")
def merged(
    view: View,
    column: Column = None,
    clients: Annotated[int, Field(ge=1, description="Number of clients.")] = 10,
    alpha: Alpha = 0.5,
    min_users: Annotated[int, Field(ge=1, description="Smallest number of users per client.")] = 10,
) -> Parts:
    """Users, in the data's order, are merged into clients: `min_users` each, and a Dir(alpha) share of the rest.

    pFedBreD's partition of Sent140. Every example is used once.
    """
    found = _named(view.column(column))
    users = sorted(found, key=lambda name: int(found[name][0]))
    rest = len(users) - clients * min_users
    if rest < 0:
        raise FedpriorError(
            f"{len(users)} users cannot be split into {clients} clients of at least {min_users}: use fewer or smaller "
            "clients."
        )
    p = view.rng.dirichlet(np.full(clients, alpha))
    p = p if np.isclose(p.sum(), 1) else np.full(clients, 1 / clients)
    ends = np.rint(np.cumsum(p) * rest).astype(np.int64) + min_users * np.arange(1, clients + 1)
    starts = np.concatenate([[0], ends[:-1]])
    parts = [np.sort(np.concatenate([found[name] for name in users[a:b]])) for a, b in zip(starts, ends, strict=True)]
    return Parts(numbered(parts), kinds=lambda examples: _codes(examples.column(column)))


@register_partition("domains")
def domains(
    view: View,
    column: Column = None,
    per_domain: Annotated[int, Field(ge=1, description="Clients per domain.")] = 4,
    within: Annotated[
        Literal["dirichlet", "slicing"], Field(description="How a domain is distributed among its clients.")
    ] = "dirichlet",
    alpha: Alpha = 0.5,
    labels_each: Annotated[int, Field(ge=1, description="Slicing: labels per client.")] = 5,
    min_size: MinSize = 10,
) -> Parts:
    """Each domain is distributed among `per_domain` clients of its own, by Dir(alpha) over its classes or by slicing.

    pFedFDA's DIGIT-5 is per_domain=4, alpha=0.5; pFedVEM's Digit-Five is slicing with 5 labels per client.
    """
    found, clients = _named(view.column(column)), dict[str, Indices]()
    split = (
        Dirichlet(clients=per_domain, alpha=alpha, min_size=min_size)
        if within == "dirichlet"
        else RandomSlicing(clients=per_domain, labels=labels_each, min_size=min_size)
    )
    for name, rng in zip(sorted(found, key=_natural), view.rng.spawn(len(found)), strict=True):
        try:
            parts = split(view.at(found[name], rng)).clients.values()
        except FedpriorError as error:
            raise FedpriorError(f"in domain '{name}', {error}") from None
        clients |= numbered([found[name][part] for part in parts], name)
    return Parts(clients, kinds=lambda examples: _crossed(examples.column(column), examples.labels))


def _codes(values: NDArray[Any]) -> Indices:
    """Distinct values as numbers from 0."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _crossed(values: NDArray[Any], labels: Indices) -> Indices:
    """A number per pair of value and label."""
    return _codes(values) * (int(labels.max()) + 1) + labels


def _named(values: NDArray[Any]) -> dict[str, Indices]:
    """The indices of each distinct value as a name; an empty one is refused."""
    import pandas as pd

    names = np.array([str(v).strip() for v in values], dtype=object)  # other types lose a NUL at the end of a name
    missing = np.flatnonzero(pd.isna(values) | (names == ""))
    if len(missing) or not len(names):
        raise FedpriorError(
            f"the column that names the client is empty in {len(missing)} of {len(names)} rows "
            f"(first {missing[:3].tolist()}): give every row a client or drop it."
        )
    return groups(names)


def _natural(name: str) -> list[str | int]:
    """Sort key in which runs of digits count as numbers."""
    return [int(token) if token.isdecimal() else token for token in re.split(r"(\d+)", name)]
