"""Local: each client trains alone: the baseline for federation, with the same budget.

A client trains in the rounds it takes part in, so its epochs equal those that any other method gives it. The initial
weights come from the run's root key, which every client knows, so nothing is sent.

With `l2`, each client's weights have a prior N(0, 1/λ I), biases excluded:

    w = argmin F_k(w) + λ / (2 n_k) ‖w‖²,  F_k the mean loss over n_k examples

With several λ, a client trains a model for each, and predicts with the one that has the lowest NLL on its validation
examples; without any, with the middle one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.protocol import About, Empty, Logs, Method, Space, Weights, register
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

    space: ClassVar[Mapping[str, Space]] = {"l2": [[], [0.3], [1.0], [3.0], [10.0], [30.0], [100.0]]}

    l2: Annotated[
        tuple[Annotated[float, Field(ge=0)], ...],
        Field(
            description="precision λ of a prior around zero; of several, each client's validation examples choose",
            json_schema_extra={"others": [[5.0], [1.0, 100.0]]},
        ),
    ] = ()

    @property
    def uses_validation(self) -> bool:
        """To choose between several λ."""
        return len(self.l2) > 1

    def init_server(self, key: Key, clients: int = 1) -> Empty:
        """There is no server."""
        return Empty()

    def broadcast(self, server: Empty, ids: Tensor) -> Empty:
        """Nothing is sent to clients."""
        return Empty()

    def init_client(self, down: Empty, data: ClientData, keys: Keys) -> Weights:
        """The initial weights that every method starts from, [C, ...]; with λs, a copy for each, [C, G, ...]."""
        w = tree.expand(self.task.init(keys.root.fold("init")), len(data))
        return Weights(
            {k: v.unsqueeze(1).expand(-1, len(self.l2), *v.shape[1:]) for k, v in w.items()} if self.l2 else w
        )

    def objective(self, w: Params, nothing: Empty, batch: Batch) -> Tensor:
        """F_k(w)."""
        return self.task.nll(w, batch)

    def penalised(self, w: Params, pull: Tensor, batch: Batch) -> Tensor:
        """F_k(w) + λ / (2 n_k) ‖w‖²."""
        weights = [leaf for leaf in self.task.parameters(w).values() if leaf.dim() > 2]  # [C, out, in, ...]
        return self.task.nll(w, batch) + pull / 2 * sum((leaf.square().flatten(1).sum(1) for leaf in weights), pull * 0)

    def pulls(self, data: ClientData) -> Tensor:
        """λ / n_k of every copy [C · G], at most a quarter of what would overshoot: there, weights are nearly zero."""
        found = torch.tensor(self.l2, dtype=self.task.dtype) / data.n.to(self.task.dtype)[:, None]
        steepest = self.train.steepest  # None with Adam or clipping, whose steps do not grow with the pull
        return (found if steepest is None else found.clamp(max=steepest / 4)).flatten()

    def local_update(self, client: Weights, down: Empty, data: ClientData, keys: Keys) -> tuple[Weights, Empty, Logs]:
        """Continue from the client's last weights, with a fresh optimiser."""
        if not self.l2:
            w, loss = descend(self.task, self.train, self.objective, client.w, Empty(), data, keys)
            return Weights(w), Empty(), {"loss": loss}
        rows, shape = self._copies(data), (len(data), len(self.l2))
        start = {k: v.flatten(0, 1) for k, v in client.w.items()}
        w, loss = descend(self.task, self.train, self.penalised, start, self.pulls(data), data[rows], keys[rows])
        copies = {k: v.view(*shape, *v.shape[1:]) for k, v in w.items()}
        return Weights(copies), Empty(), {"loss": loss.view(shape).mean(1)}

    def aggregate(self, server: Empty, ups: Empty, ids: Tensor) -> Empty:
        """Nothing is sent to the server."""
        return server

    def personalise(self, client: Weights, down: Empty, data: ClientData, keys: Keys) -> Weights:
        """The client's own model; of several, the one that its validation examples choose."""
        if not self.l2:
            return client
        chosen = self._chosen(client, data)
        return Weights({k: v[torch.arange(len(data)), chosen] for k, v in client.w.items()})

    def _chosen(self, client: Weights, data: ClientData) -> Tensor:
        """The λ of each client [C]."""
        middle = torch.full((len(data),), len(self.l2) // 2)
        if data.validation is None or not any(data.validation.size):
            return middle
        flat = {k: v.flatten(0, 1) for k, v in client.w.items()}
        nll = self.task.data_nll(flat, data.validation[self._copies(data)]).view(len(data), -1)
        return torch.where(nll.isnan().any(1), middle, nll.argmin(1))

    def _copies(self, data: ClientData) -> list[int]:
        return [c for c in range(len(data)) for _ in self.l2]
