"""Local: each client trains alone: the baseline for federation, with the same budget.

A client trains in the rounds it takes part in, so its epochs equal those that any other method gives it. The initial
weights come from the run's root key, which every client knows, so nothing is sent.
"""

from __future__ import annotations

from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.protocol import About, Empty, Logs, Method, Weights, register
from fedprior.rng import Key, Keys
from fedprior.training import descend
from fedprior.tree import Params


@register
class Local(Method[Empty, Weights, Empty, Empty, Weights]):
    """No messages at all."""

    about = About(
        name="local",
        title="Local",
        paper="each client on its own data",
        year=2017,
        group="baseline",
        personal="everything",
        moment="after local training",
        private=("w",),
    )

    def init_server(self, key: Key, clients: int = 1) -> Empty:
        """There is no server."""
        return Empty()

    def broadcast(self, server: Empty, ids: Tensor) -> Empty:
        """Nothing is sent to clients."""
        return Empty()

    def init_client(self, down: Empty, data: ClientData, keys: Keys) -> Weights:
        """The initial weights that every method starts from."""
        return Weights(tree.expand(self.task.init(keys.root.fold("init")), len(data)))

    def objective(self, w: Params, nothing: Empty, batch: Batch) -> Tensor:
        """F_k(w)."""
        return self.task.nll(w, batch)

    def local_update(self, client: Weights, down: Empty, data: ClientData, keys: Keys) -> tuple[Weights, Empty, Logs]:
        """Continue from the client's last weights, with a fresh optimiser."""
        w, loss = descend(self.task, self.train, self.objective, client.w, Empty(), data, keys)
        return Weights(w), Empty(), {"loss": loss}

    def aggregate(self, server: Empty, ups: Empty, ids: Tensor) -> Empty:
        """Nothing is sent to the server."""
        return server

    def personalise(self, client: Weights, down: Empty, data: ClientData, keys: Keys) -> Weights:
        """The client's own model."""
        return client
