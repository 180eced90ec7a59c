"""FedMAP's synthetic clients (arXiv 2405.19000, Appendix B.1): a ball in a shell, one affine map per client.

Deviations from the authors' code: labels are shuffled before the features are drawn, not rows afterwards; the
constant column with the client's number is left out; client k draws from a generator of its own, so that its
rows do not depend on how many clients there are (while it stays in the same half of them).
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from fedprior.data.registry import register_dataset
from fedprior.data.table import Clients, Recipe
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError
from fedprior.options import STRICT
from fedprior.room import check_room

RECIPE: Recipe = {
    "model": {"name": "mlp", "hidden": [32, 16], "single_logit": True},
    "train": {"optimizer": "adam", "lr": 1e-4, "batch_size": 64, "epochs": 10},
}
Client = tuple[NDArray[np.float64], NDArray[np.int64]]


def ball_and_shell(
    y: NDArray[np.int64], rng: np.random.Generator, features: int, intrinsic: int, noise_variance: float
) -> NDArray[np.float64]:
    """Features before any map, [n, features]: the norm of the first `intrinsic` ones separates the classes.

    Class 0: N(0, 2 I). Class 1: uniform direction, radius ~ N(8, 2). The other features are noise.
    """
    x = rng.normal(0, np.sqrt(noise_variance), (len(y), features))
    core = rng.normal(size=(len(y), intrinsic))
    radius = rng.normal(8, np.sqrt(2), (len(y), 1))
    shell = radius * core / np.linalg.norm(core, axis=1, keepdims=True)
    x[:, :intrinsic] = np.where(y[:, None] == 1, shell, np.sqrt(2) * core)
    return x


@register_dataset("synthetic", partition=None)
@dataclass(frozen=True, config=STRICT)
class Synthetic:
    """The paper's three scenarios; quantity and label skew concern the second half of the clients."""

    skew: Annotated[
        Literal["feature", "quantity", "label"], Field(description="What differs besides the affine maps.")
    ] = "label"
    clients: Annotated[int, Field(ge=1, description="Number of clients.")] = 10
    samples: Annotated[int, Field(ge=2, description="Rows per client.")] = 2000
    noise_variance: Annotated[
        float, Field(ge=0, description="Variance of the noise features: 9 as in the code, 2 in the paper.")
    ] = 9.0
    features: Annotated[int, Field(ge=1, description="Number of features.")] = 30
    intrinsic: Annotated[int, Field(ge=1, description="Features that carry the class, before the maps.")] = 4
    ratio: Annotated[int, Field(ge=1, description="Quantity skew: factor by which rows are fewer.")] = 4
    majority: Annotated[float, Field(ge=0.5, lt=1, description="Label skew: share of class 0.")] = 0.85

    def __post_init__(self) -> None:
        if self.intrinsic > self.features:
            raise FedpriorError(
                f"intrinsic={self.intrinsic} is more than features={self.features}: use a smaller number."
            )
        if self.skew == "quantity" and self.samples < 2 * self.ratio:
            raise FedpriorError(
                f"samples={self.samples} and ratio={self.ratio} leave small clients fewer than 2 rows: "
                f"use at least samples={2 * self.ratio}."
            )

    def drawn(self, rng: np.random.Generator) -> Clients:
        """The clients with their names."""
        rows, maps = self.samples * self.features, self.features**2
        size = 8 * (2 * self.clients * rows + 3 * rows + 4 * maps) + 1000 * self.clients  # a generator each
        check_room("data 'synthetic'", size, "lower data.clients, data.samples or data.features")
        clients = self.generate(rng)
        width = len(str(len(clients)))
        named = {f"client-{k + 1:0{width}d}": examples for k, examples in enumerate(clients)}
        return Clients(named, Classes.numbered(2), RECIPE, standardise=True)

    def generate(self, rng: np.random.Generator) -> list[Client]:
        """One (x [n, features], y [n] of 0 and 1) per client."""
        shared, *own = rng.spawn(1 + self.clients)
        rotation = np.linalg.qr(shared.normal(size=(self.features, self.features))).Q
        return [self._client(k, rotation, client_rng) for k, client_rng in enumerate(own)]

    def _client(self, k: int, rotation: NDArray[np.float64], rng: np.random.Generator) -> Client:
        skewed = 2 * k >= self.clients
        n = self.samples // self.ratio if skewed and self.skew == "quantity" else self.samples
        zeros = round(n * (self.majority if skewed and self.skew == "label" else 0.5))
        A = rng.normal(size=(self.features, self.features))
        b = 5 * (k + 1) * rng.normal(size=self.features)
        y = rng.permutation(np.repeat([0, 1], [zeros, n - zeros]))
        x = ball_and_shell(y, rng, self.features, self.intrinsic, self.noise_variance)
        return x @ rotation @ A + b, y
