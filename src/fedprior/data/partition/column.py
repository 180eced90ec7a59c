"""Partitions by what is known of each example: a site, a writer, a user, a domain. They name their clients."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedprior.data.partition.base import Alpha, Indices, MinSize, groups
from fedprior.data.partition.slicing import RandomSlicing
from fedprior.data.partition.spread import Dirichlet
from fedprior.errors import FedpriorError


def by_column(
    values: NDArray[Any],
    min_size: MinSize = 1,
    smaller: Annotated[Literal["refuse", "drop"], Field(description="What becomes of smaller ones.")] = "refuse",
    clients: Annotated[int | None, Field(ge=1, description="Only the first so many, by name.")] = None,
    at_most: Annotated[int | None, Field(ge=1, description="The same, but there may be fewer.")] = None,
) -> dict[str, Indices]:
    """The clients are the distinct values of a column [N]: name -> sorted indices, site2 before site10."""
    found = _named(values)
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
    return {name: found[name] for name in kept[:clients][:at_most]}


def merged(
    values: NDArray[Any],
    rng: np.random.Generator,
    clients: Annotated[int, Field(ge=1, description="Number of clients.")] = 10,
    alpha: Alpha = 0.5,
    least: Annotated[int, Field(ge=1, description="Fewest users a client has.")] = 10,
) -> dict[str, Indices]:
    """Users in the data's order, put together to clients of `least` users and a Dir(alpha) share of the rest.

    pFedBreD's partition of Sent140. Every example is used once.
    """
    found = _named(values)
    users = sorted(found, key=lambda name: int(found[name][0]))
    rest = len(users) - clients * least
    if rest < 0:
        raise FedpriorError(
            f"{len(users)} users do not make {clients} clients of at least {least}: use fewer or smaller ones."
        )
    p = rng.dirichlet(np.full(clients, alpha))
    p = p if np.isclose(p.sum(), 1) else np.full(clients, 1 / clients)
    ends = np.rint(np.cumsum(p) * rest).astype(np.int64) + least * np.arange(1, clients + 1)
    width = len(str(clients - 1))
    starts = np.concatenate([[0], ends[:-1]])
    return {
        f"client-{i:0{width}d}": np.sort(np.concatenate([found[name] for name in users[a:b]]))
        for i, (a, b) in enumerate(zip(starts, ends, strict=True))
    }


def domains(
    values: NDArray[Any],
    labels: Indices,
    rng: np.random.Generator,
    per_domain: Annotated[int, Field(ge=1, description="Clients of each domain.")] = 4,
    within: Annotated[
        Literal["dirichlet", "slicing"], Field(description="How a domain is spread over its clients.")
    ] = "dirichlet",
    alpha: Alpha = 0.5,
    labels_each: Annotated[int, Field(ge=1, description="Slicing: labels per client.")] = 5,
    min_size: MinSize = 10,
) -> dict[str, Indices]:
    """Each domain is spread over `per_domain` clients of its own, by Dir(alpha) over its classes or by slicing.

    pFedFDA's DIGIT-5 is per_domain=4, alpha=0.5; pFedVEM's Digit-Five is slicing with 5 labels per client.
    """
    found, clients = _named(values), dict[str, Indices]()
    split = (
        Dirichlet(clients=per_domain, alpha=alpha, min_size=min_size)
        if within == "dirichlet"
        else RandomSlicing(clients=per_domain, labels=labels_each, min_size=min_size)
    )
    width = len(str(per_domain - 1))
    for name, own in zip(sorted(found, key=_natural), rng.spawn(len(found)), strict=True):
        try:
            parts = split(labels[found[name]], own)
        except FedpriorError as error:
            raise FedpriorError(f"in domain '{name}', {error}") from None
        clients |= {f"{name}-{i:0{width}d}": found[name][part] for i, part in enumerate(parts)}
    return clients


def _named(values: NDArray[Any]) -> dict[str, Indices]:
    """The indices of each distinct value as a name; an empty one is refused."""
    import pandas as pd

    names = np.char.strip(values) if values.dtype.kind == "U" else np.array([str(v).strip() for v in values])
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
