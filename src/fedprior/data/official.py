"""Which clients are tested on which examples of an official test set: divided among them, or shared.

A client is tested on examples of the kinds that it trains on. The partition defines the kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.data.partition.base import groups
from fedprior.data.partition.view import Indices
from fedprior.errors import FedpriorError
from fedprior.rng import Key

Counts = Mapping[str, Mapping[Any, int]]  # client -> kind -> training examples
Spare = Mapping[Any, Indices]  # kind -> test examples


def official_tests(
    how: str, kinds: Indices, rows: Mapping[str, Indices], official: NDArray[np.bool_], cap: int | None, key: Key
) -> dict[str, Indices]:
    """The test examples of each client, given what it trains on; `official` [n] marks those that may be used."""
    test = np.flatnonzero(official)
    spare = {kind: test[where] for kind, where in groups(kinds[test]).items()}
    counts = {client: {kind: len(own) for kind, own in groups(kinds[held]).items()} for client, held in rows.items()}
    return shared(counts, spare, cap, key) if how == "shared" else dealt(counts, spare, cap, key)


def dealt(counts: Counts, spare: Spare, cap: int | None, key: Key) -> dict[str, Indices]:
    """Divide the test examples of each kind in proportion to the clients' training examples of it.

    Each is used at most once (kinds that nobody trains on are left out); shares are rounded at random, without bias.
    """
    if cap is not None:
        raise FedpriorError("test_cap applies to test=shared only: with test=official every test example is used once.")
    rng = key.numpy()
    tests: dict[str, list[Indices]] = {client: [] for client in counts}
    for kind, rows in spare.items():
        takers = [client for client, held in counts.items() if kind in held]
        if not takers:
            continue
        share = np.array([counts[client][kind] for client in takers], dtype=np.float64)
        ends = np.floor(np.cumsum(share / share.sum()) * len(rows) + rng.random() - 1e-9).astype(np.int64)
        ends[-1] = len(rows)
        for client, piece in zip(takers, np.split(rng.permutation(rows), ends[:-1]), strict=True):
            tests[client].append(piece)
    return {client: _joined(client, pieces) for client, pieces in tests.items()}


def shared(counts: Counts, spare: Spare, cap: int | None, key: Key) -> dict[str, Indices]:
    """Every client is tested on all test examples of the kinds it trains on, or on `cap` random ones of each."""
    tests = {}
    for client, held in counts.items():
        rng = key.fold(client).numpy()
        pieces = [rng.permutation(spare[kind])[:cap] for kind in held if kind in spare]
        tests[client] = _joined(client, pieces)
    return tests


def _joined(client: str, pieces: list[Indices]) -> Indices:
    rows = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *pieces]))
    if not len(rows):
        raise FedpriorError(
            f"no official test example is left for client '{client}': use test=shared, a share such as test=0.2, or "
            "fewer clients."
        )
    return rows
