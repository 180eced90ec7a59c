"""The tries of a method: its defaults first, then points drawn from what it declares, and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from fedprior.methods import METHODS, build
from fedprior.rng import Key

RATES = (1 / 3, 3.0)
"""The learning rate is searched between these multiples of the recipe's, for every method that trains by it."""


class Try(NamedTuple):
    """Options of a method, and a multiple of the recipe's learning rate."""

    options: dict[str, Any]
    rate: float = 1.0


def drawn(name: str, federation: str, seed: int, tries: int) -> Iterator[Try]:
    """As many tries for each method; a method that has nothing to search has one.

    A draw depends on the method, the federation, the seed and its number alone.
    """
    yield Try({})
    space, trained = METHODS[name.split("+", maxsplit=1)[0]].space, not build(name).hints.own_training
    if not space and not trained:
        return
    for number in range(1, tries):
        rng = Key.from_seed(seed).fold("benchmark", federation, name, number).numpy()
        options: dict[str, Any] = {}
        for option, values in space.items():
            if isinstance(values, tuple):
                options[option] = _between(rng.random(), *values)
            else:
                options[option] = values[int(rng.integers(len(values)))]
        yield Try(options, _between(rng.random(), *RATES) if trained else 1.0)


def _between(share: float, low: float, high: float) -> float:
    """A point on a logarithmic scale, to three digits."""
    return float(f"{math.exp(math.log(low) + share * math.log(high / low)):.3g}")
