"""MyMethod: a personal network held near the mean of all, in a method of its own.

Nobody, venue year, Algorithm 1, Eqs. 1-3.

    client    θ_k = argmin f_k(θ) + λ/2 ‖θ - w‖²      (Eq. 1), from its own θ_k
    server    w = Σ n_k θ_k / Σ n_k                    (Eq. 2)
    predict   θ_k                                      (Eq. 3)

Deviations from the authors' code: none; there is none.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.protocol import About, Logs, Method, Weights, register
from fedprior.rng import Key, Keys
from fedprior.training import descend
from fedprior.tree import Params


class Up(NamedTuple):
    """A client's network, and how many examples it comes from."""

    w: Params
    n: Tensor  # [C] float64


@register
class MyMethod(Method[Weights, Weights, Weights, Up, Weights]):
    """One line."""

    about = About(
        name="my_method",
        title="MyMethod",
        paper="Nobody, A Method in Sixty Lines, nowhere",
        year=2026,
        group="regularised",
        personal="the whole network",
        moment="after local training",
    )

    strength: Annotated[float, Field(ge=0, description="λ, pull to the mean of all")] = 1.0

    def objective(self, theta: Params, w: Params, batch: Batch) -> Tensor:
        """f_k(θ) + λ/2 ‖θ - w‖², [C]  (Eq. 1)."""
        near = tree.sqdist(self.task.parameters(theta), self.task.parameters(w))
        return self.task.nll(theta, batch) + self.strength / 2 * near

    def init_server(self, key: Key, clients: int = 1) -> Weights:
        """The initial weights that every method starts from."""
        return Weights(self.task.init(key.fold("init")))

    def broadcast(self, server: Weights, ids: Tensor) -> Weights:
        """w, to everyone."""
        return server

    def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """θ = w."""
        return down

    def local_update(self, client: Weights, down: Weights, data: ClientData, keys: Keys) -> tuple[Weights, Up, Logs]:
        """Train from the client's own θ  (Eq. 1)."""
        theta, loss = descend(self.task, self.train, self.objective, client.w, down.w, data, keys)
        return Weights(theta), Up(theta, data.n), {"loss": loss}

    def aggregate(self, server: Weights, ups: Up, ids: Tensor) -> Weights:
        """The mean, weighted by examples  (Eq. 2)."""
        return Weights(tree.average(ups.w, ups.n))

    def personalise(self, client: Weights, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """θ  (Eq. 3)."""
        return client
