"""The predictions of the global model, which is the same for all clients: many small clients share a forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedprior.data.client import ClientData
from fedprior.models.task import EVALUATION_BATCH
from fedprior.protocol import AnyMethod


def predict_shared(
    method: AnyMethod, server: Any, data: ClientData, order: Iterable[int]
) -> list[NDArray[np.float32]] | None:
    """One entry per client, or None if the method has no global model.

    Clients are gathered in a given order, so that the result does not depend on the order that they are stored in.
    """
    found: dict[int, NDArray[np.float32]] = {}
    for rows in gathered(data.size, order):
        predictive = method.predict_global(server, torch.cat([data.client(c)[0] for c in rows]))
        if predictive is None:
            return None
        ends = np.cumsum([data.size[c] for c in rows])[:-1]
        found |= zip(rows, np.split(predictive.float().numpy(), ends), strict=True)
    return [found[c] for c in range(len(data))]


def gathered(sizes: Sequence[int], order: Iterable[int]) -> list[list[int]]:
    """Groups of clients that have an evaluation batch of examples together, or of a single larger one."""
    groups, total = [list[int]()], 0
    for c in order:
        if groups[-1] and total + sizes[c] > EVALUATION_BATCH:
            groups.append([])
            total = 0
        groups[-1].append(c)
        total += sizes[c]
    return groups
