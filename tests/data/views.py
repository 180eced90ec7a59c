"""Partitions of labels or columns alone, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.data.federation import Federation
from fedprior.data.partition import Indices, Partitioner, View
from fedprior.data.target import Classes


def parts_of(
    partitioner: Partitioner, labels: Indices, rng: np.random.Generator, fine: Indices | None = None
) -> list[Indices]:
    """The rows of each client; with `fine`, the labels are superclasses of those."""
    view = View(labels, rng) if fine is None else View(fine, rng, coarse=labels)
    return list(partitioner(view).clients.values())


def column_view(values: NDArray[Any], rng: np.random.Generator | None = None, labels: Indices | None = None) -> View:
    """Examples of which one column is known."""
    own = np.zeros(len(values), dtype=np.int64) if labels is None else labels
    return View(own, rng or np.random.default_rng(0), columns={"site": values})


def counts(federation: Federation, split: str = "train") -> Indices:
    """How often each client has each label, [clients, labels]."""
    return federation.label_counts(split).to_numpy()


def classes(federation: Federation) -> int:
    """How many there are."""
    assert isinstance(federation.target, Classes)
    return federation.target.count
