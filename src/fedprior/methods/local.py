"""Local: each client trains alone: the baseline for federation, with the same budget.

A client trains in the rounds it takes part in, so its epochs equal those that any other method gives it. The initial
weights come from the run's root key, which every client knows, so nothing is sent.

With `l2`, each client's weights have a prior N(0, 1/λ I), and its biases N(0, 1/min(λ, 1)):

    w = argmin F_k(w) + λ / (2 n_k) ‖w‖² + min(λ, 1) / (2 n_k) ‖b‖²,  F_k the mean loss over n_k examples

Of a number, the weights of the last layer that give its log-variance have 100 λ: few rows tell how a variance changes.

With `decay`, λ is multiplied by it after each of a client's updates: from a strong prior to a weak one, each solution
the start of the next. The round that validation chooses is then a choice of λ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.models.likelihood import Gaussian
from fedprior.protocol import About, Empty, Logs, Method, Space, Weights, register
from fedprior.rng import Key, Keys
from fedprior.training import descend
from fedprior.tree import Params

STEADY = 100.0
"""Of a number: how many times as strong the prior is on a variance that changes with the inputs."""


class Alone(NamedTuple):
    """What a client keeps."""

    w: Params
    strength: Tensor  # λ of the next update, [C]


class Pull(NamedTuple):
    """Precisions of the prior, per example."""

    weights: Tensor  # [C]
    biases: Tensor  # [C]
    variance: Tensor  # [C]  of a number: weights of the last layer that give its log-variance


@register
class Local(Method[Empty, Alone, Empty, Empty, Weights]):
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

    space: ClassVar[Mapping[str, Space]] = {"l2": [0.0, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]}

    l2: Annotated[float, Field(ge=0, description="precision λ of a prior around zero")] = 0.0
    decay: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="λ shrinks by this factor with every update",
            json_schema_extra={"alive_with": {"l2": 5.0}},
        ),
    ] = 1.0

    def init_server(self, key: Key, clients: int = 1) -> Empty:
        """There is no server."""
        return Empty()

    def broadcast(self, server: Empty, ids: Tensor) -> Empty:
        """Nothing is sent to clients."""
        return Empty()

    def init_client(self, down: Empty, data: ClientData, keys: Keys) -> Alone:
        """The initial weights that every method starts from."""
        w = tree.expand(self.task.init(keys.root.fold("init")), len(data))
        return Alone(w, torch.full((len(data),), self.l2, dtype=self.task.dtype))

    def objective(self, w: Params, nothing: Empty, batch: Batch) -> Tensor:
        """F_k(w)."""
        return self.task.nll(w, batch)

    def penalised(self, w: Params, pull: Pull, batch: Batch) -> Tensor:
        """F_k(w) + λ / (2 n_k) ‖w‖² + min(λ, 1) / (2 n_k) ‖b‖²."""
        loss, number = self.task.nll(w, batch), isinstance(self.task.likelihood, Gaussian)
        for name, leaf in self.task.parameters(w).items():
            if leaf.dim() > 2:  # [C, out, in, ...]; scales of norms are left alone
                square = leaf.square().flatten(2).sum(2)  # [C, out]
                loss = loss + pull.weights / 2 * square.sum(1)
                if number and name.startswith(f"{self.task.head}."):
                    loss = loss + (pull.variance - pull.weights) / 2 * square[:, 1]
            elif name.endswith("bias"):
                loss = loss + pull.biases / 2 * leaf.square().sum(1)
        return loss

    def pulls(self, strength: Tensor, data: ClientData) -> Pull:
        """λ / n_k, at most a quarter of what would overshoot, (2 + 2m) / lr for SGD: there, weights are nearly zero."""
        most = torch.inf if self.train.optimizer == "adam" else (1 + self.train.momentum) / (2 * self.train.lr)
        n, precisions = data.n.to(self.task.dtype), (strength, strength.clamp(max=1), STEADY * strength)
        return Pull(*((own / n).clamp(max=most) for own in precisions))

    def local_update(self, client: Alone, down: Empty, data: ClientData, keys: Keys) -> tuple[Alone, Empty, Logs]:
        """Continue from the client's last weights, with a fresh optimiser."""
        if self.l2:
            prior = self.pulls(client.strength, data)
            w, loss = descend(self.task, self.train, self.penalised, client.w, prior, data, keys)
        else:
            w, loss = descend(self.task, self.train, self.objective, client.w, Empty(), data, keys)
        return Alone(w, client.strength * self.decay), Empty(), {"loss": loss}

    def aggregate(self, server: Empty, ups: Empty, ids: Tensor) -> Empty:
        """Nothing is sent to the server."""
        return server

    def personalise(self, client: Alone, down: Empty, data: ClientData, keys: Keys) -> Weights:
        """The client's own model."""
        return Weights(client.w)
