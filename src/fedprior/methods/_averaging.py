"""Base classes of methods with FedAvg's server, and of those that differ from it only in the objective."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.protocol import C, Empty, Logs, Method, P, Weights
from fedprior.rng import Key, Keys
from fedprior.training import descend
from fedprior.tree import Params


class Up(NamedTuple):
    """A client's weights and how many examples they come from."""

    w: Params
    n: Tensor  # [C] float64


class Averaged(Method[Weights, C, Weights, Up, P]):
    """A server that holds one network, sends it to everyone and takes the n-weighted mean of the replies."""

    def init_server(self, key: Key, clients: int = 1) -> Weights:
        """Common initial weights."""
        return Weights(self.task.init(key.fold("init")))

    def broadcast(self, server: Weights, ids: Tensor) -> Weights:
        """The global model."""
        return server

    def aggregate(self, server: Weights, ups: Up, ids: Tensor) -> Weights:
        """w ← Σ n_k w_k / Σ n_k."""
        return Weights(tree.average(ups.w, ups.n))


class Averaging(Averaged[Empty, Weights]):
    """w_t goes down, each client trains from it, the mean of the results is w_{t+1}. Clients keep nothing."""

    @abstractmethod
    def objective(self, w: Params, w_t: Params, batch: Batch) -> Tensor:
        """What a client minimises, [C]."""

    def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Empty:
        """Clients keep nothing."""
        return Empty()

    def local_update(self, client: Empty, down: Weights, data: ClientData, keys: Keys) -> tuple[Empty, Up, Logs]:
        """Minimise the objective from w_t."""
        w, loss = descend(self.task, self.train, self.objective, down.w, down.w, data, keys)
        return client, Up(w, data.n), {"loss": loss}
