"""The base of methods that share a part of the network and keep the rest personal.

A subclass defines which parameters are shared, how a client trains them, and what it does before it predicts. With
nothing personal this is FedAvg, with everything personal it is Local.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.protocol import Logs, Method, Moment, Weights
from fedprior.rng import Key, Keys
from fedprior.training import Train, descend, descend_head
from fedprior.tree import Params


class Shared(NamedTuple):
    """The shared part: the server's state and its message."""

    w: Params


class Client(NamedTuple):
    """The personal part, and the shared one as last trained here, if the personal model uses that."""

    own: Params
    trained: Params


class Up(NamedTuple):
    """The shared part and the example count."""

    w: Params
    n: Tensor  # [C] float64


@dataclass(frozen=True, kw_only=True)
class Split(Method[Shared, Client, Shared, Up, Weights]):
    """Common initial weights; the shared part is averaged by example counts."""

    predict_with: Annotated[
        Literal["aggregated", "trained"],
        Field(description="shared part of the personal model: the server's newest, or as last trained by the client"),
    ] = "aggregated"

    @abstractmethod
    def shares(self, name: str) -> bool:
        """Whether the entry `name` is shared."""

    @abstractmethod
    def fit(self, w: Params, data: ClientData, keys: Keys) -> tuple[Params, Tensor]:
        """Local training of the whole network; returns it and the loss [C]."""

    @property
    def moment(self) -> Moment:
        """Depends on which shared part the personal model has."""
        return "after aggregation" if self.predict_with == "aggregated" else "after local training"

    def part(self, w: Params, *, shared: bool) -> Params:
        """The shared or the personal entries."""
        return {k: v for k, v in w.items() if self.shares(k) == shared}

    def train_part(self, w: Params, train: Train, data: ClientData, keys: Keys, *, head: bool) -> tuple[Params, Tensor]:
        """Train the head with the base frozen, or the base with the head frozen.

        A frozen base runs in evaluation mode: its running statistics are frozen too.
        """
        base, top = self.task.split(w)
        if head:
            top, loss = descend_head(self.task, train, top, base, data, keys)
        else:
            base, loss = descend(self.task, train, self.base_objective, base, top, data, keys)
        return _sorted({**base, **top}), loss

    def base_objective(self, base: Params, head: Params, batch: Batch) -> Tensor:
        """F_k as a function of the base, [C]."""
        return self.task.nll({**base, **head}, batch)

    def objective(self, w: Params, nothing: Params, batch: Batch) -> Tensor:
        """F_k of the whole network, [C]."""
        return self.task.nll(w, batch)

    def init_server(self, key: Key, clients: int = 1) -> Shared:
        """The shared part of the common initial weights."""
        return Shared(self.part(self.task.init(key.fold("init")), shared=True))

    def broadcast(self, server: Shared, ids: Tensor) -> Shared:
        """The shared part, to everyone."""
        return server

    def init_client(self, down: Shared, data: ClientData, keys: Keys) -> Client:
        """The personal part of the common initial weights, which need not be sent because they follow from the seed."""
        first = tree.expand(self.task.init(keys.root.fold("init")), len(data))
        return Client(self.part(first, shared=False), down.w if self.predict_with == "trained" else {})

    def local_update(self, client: Client, down: Shared, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """Train from the shared part that came down and the personal part that stayed."""
        w, loss = self.fit(_sorted({**client.own, **down.w}), data, keys)
        shared = self.part(w, shared=True)
        kept = shared if self.predict_with == "trained" else {}
        return Client(self.part(w, shared=False), kept), Up(shared, data.n), {"loss": loss}

    def aggregate(self, server: Shared, ups: Up, ids: Tensor) -> Shared:
        """Σ n_k w_k / Σ n_k."""
        return Shared(tree.average(ups.w, ups.n))

    def joined(self, client: Client, down: Shared) -> Params:
        """The personal network before any step that a subclass adds."""
        return _sorted({**client.own, **(client.trained if self.predict_with == "trained" else down.w)})


def _sorted(w: Params) -> Params:
    return {k: w[k] for k in sorted(w)}
