"""What the clients, inputs and classes of a federation are called, for what a method says about its estimates."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprior.data.federation import Federation
from fedprior.data.target import Classes


class Names(NamedTuple):
    """Names, in the order of the arrays."""

    clients: tuple[str, ...]
    inputs: tuple[str, ...]  # of an example, flattened: the schema's, or x1, x2, …
    classes: tuple[str, ...]  # none: the target is a number
    units: NDArray[np.float64]  # [inputs]  what was divided by at every site; nan where sites differ in it


def names_of(federation: Federation) -> Names:
    """Those of a federation."""
    count = math.prod(federation.shape)
    prepared = federation.preparation
    known = () if prepared.schema is None else prepared.schema.inputs
    inputs = known if len(known) == count else tuple(f"x{j + 1}" for j in range(count))
    units = np.full(count, np.nan if prepared.standardise else 1.0)
    if prepared.common is not None:
        units = np.broadcast_to(prepared.common.scaler.std, federation.shape).reshape(count)
    classes = federation.target.levels if isinstance(federation.target, Classes) else ()
    return Names(federation.clients, inputs, classes, units)
