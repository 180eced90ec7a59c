"""Feature skew on top of a partition: pFedFDA's CIFAR-S, in which half of the clients see corrupted images."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedprior.data.table import Table
from fedprior.errors import FedpriorError, unknown
from fedprior.options import STRICT
from fedprior.rng import Key

SEVERITIES = 5


class Corruptions(BaseModel):
    """Which clients' images are corrupted, training and test alike, and how.

    Client m of the first `corrupted` share gets corruption m mod 10 of the list. Its severity is m mod 5 + 1 if
    `published`, as in pFedFDA's code: ten pairs, each at every tenth client. It is floor(m / 10) mod 5 + 1 if `unique`,
    the fifty pairs that the paper describes. Or all of them get the named corruption, at `severity`.
    """

    model_config = ConfigDict(**STRICT, frozen=True)

    corruption: Annotated[str, Field(description="none, published, unique, or the name of a corruption")] = "none"
    corrupted: Annotated[
        float, Field(ge=0, le=1, description="share of the clients to corrupt, starting with the first")
    ] = 0.5
    severity: Annotated[int, Field(ge=1, le=SEVERITIES, description="how strong a named corruption is")] = 3


class Pair(NamedTuple):
    """What is done to a client's images."""

    corruption: str
    severity: int


def pairs(options: Corruptions, clients: int) -> list[Pair | None]:
    """The corruption of each client; None: clean images."""
    if options.corruption == "none":
        return [None] * clients
    from fedprior.data.corruption import CORRUPTIONS

    if options.corruption not in ("published", "unique", *CORRUPTIONS):
        raise unknown("corruption", options.corruption, ("none", "published", "unique", *CORRUPTIONS))
    found: list[Pair | None] = []
    for m in range(clients):
        if m >= round(options.corrupted * clients):
            found.append(None)
        elif options.corruption in CORRUPTIONS:
            found.append(Pair(options.corruption, options.severity))
        else:
            step = m if options.corruption == "published" else m // len(CORRUPTIONS)
            found.append(Pair(CORRUPTIONS[m % len(CORRUPTIONS)], step % SEVERITIES + 1))
    return found


def corrupted(table: Table, rows: NDArray[np.int64], pair: Pair | None, key: Key) -> NDArray[Any]:
    """The inputs of a client, corrupted before they are prepared."""
    if pair is None:
        return table.select(rows)
    if table.x.dtype != np.uint8 or table.x.ndim != 4:
        raise FedpriorError("corruptions apply to images only: leave out data.corruption.")
    from fedprior.data.corruption import corrupt

    images = corrupt(np.ascontiguousarray(table.x[rows]), pair.corruption, pair.severity, key)
    return images if table.prepare is None else table.prepare(images)
