"""A partition by the values of the inputs: consecutive slices along one direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedprior.data.partition.base import Partitioner, owned
from fedprior.data.partition.view import Indices, Parts, View, register_partition
from fedprior.data.scaling import Scaler
from fedprior.errors import FedpriorError
from fedprior.options import pick

Scores = NDArray[np.float64]  # [n]  where each example lies


@register_partition("features")
@dataclass(frozen=True, kw_only=True)
class Features(Partitioner):
    """Clients are slices of equal size along one input, or along the first principal component of all.

    Components are those of the inputs in units of their deviations, after gaps have been filled with medians. `mix` of
    the examples change places at random: 0 gives each client an interval of its own, 1 is IID. An official test set is
    divided by slice, so that clients are tested where they train.
    """

    feature: Annotated[
        int | str | None,
        Field(description="Number (from 0) or name of an input; the first principal component by default."),
    ] = None
    mix: Annotated[float, Field(ge=0, le=1, description="Share of the examples assigned at random.")] = 0.0

    def _parts(self, view: View) -> list[Indices]:
        n = len(view)
        owner = np.empty(n, dtype=np.int64)
        owner[np.argsort(self._along(view)(view), kind="stable")] = np.arange(n) * self.clients // n
        mixed = view.rng.choice(n, round(self.mix * n), replace=False)
        owner[mixed] = owner[view.rng.permutation(mixed)]
        return owned(owner, self.clients)

    def _told(self, view: View, clients: dict[str, Indices]) -> Parts:
        def slices(examples: View) -> Indices:
            score = self._along(view)
            first = -(-np.arange(1, self.clients) * len(view) // self.clients)  # the lowest rank in each further slice
            return np.searchsorted(np.sort(score(view))[first], score(examples), side="right")

        return Parts(clients, kinds=slices)

    def _along(self, view: View) -> Callable[[View], Scores]:
        """The direction in a view; its function gives the position of any examples along it."""

        def chosen(examples: View) -> NDArray[Any]:
            x = examples.inputs().reshape(len(examples), -1)
            return x if self.feature is None else x[:, [self._number(examples, x.shape[1])]]

        x = chosen(view)
        scale = Scaler.fitted(x, standardise=self.feature is None, impute=True) or np.asarray
        axis = principal(scale(x))
        return lambda examples: scale(chosen(examples)) @ axis

    def _number(self, view: View, inputs: int) -> int:
        at = self.feature
        if isinstance(at, str):
            at = pick("feature", {name: k for k, name in enumerate(view.features)}, at)
        if at is None or not 0 <= at < inputs:
            raise FedpriorError(f"feature={at} is not one of the {inputs} inputs, which are numbered from 0.")
        return at


def principal(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first principal direction [d] of centred inputs [n, d]; its largest entry is positive."""
    from scipy.sparse.linalg import svds

    if min(z.shape) < 2:
        return np.eye(1, z.shape[1]).reshape(-1)
    start = np.random.default_rng(0).standard_normal(min(z.shape))  # the same whatever the seed of the partition
    direction = np.asarray(svds(z, k=1, v0=start, return_singular_vectors="vh")[2][0], dtype=np.float64)
    return -direction if direction[np.abs(direction).argmax()] < 0 else direction
