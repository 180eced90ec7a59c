"""MR-MTL: every client keeps a model of its own, held near the mean of all clients' models.

Liu, Hu, Wu & Smith, NeurIPS 2022, without the noise of differential privacy.

    client    w_k goes on from where it was, by local training on F_k(w) + λ/2 ‖w - w̄‖², w̄ as received
    server    w̄ = mean of the w_k: every client alike, as in the paper's objective, or by example counts

λ = 0 is Local. Between Ditto, whose centre is FedAvg's model, and FedMAP, whose clients start at the centre and whose
mean is weighted: here there is no other model than the personal ones. Where a sample of the clients takes part, w̄ is
the mean of those that report. Buffers of batch normalisation are averaged, and not pulled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.methods._averaging import Averaged, Up
from fedprior.protocol import About, Logs, Space, Weights, register
from fedprior.rng import Keys
from fedprior.training import descend
from fedprior.tree import Params


@register
class MRMTL(Averaged[Weights, Weights]):
    """Mean-regularised multi-task learning."""

    about = About(
        name="mr_mtl",
        title="MR-MTL",
        paper="Liu, Hu, Wu & Smith, On Privacy and Personalization in Cross-Silo Federated Learning, NeurIPS",
        year=2022,
        group="regularised",
        personal="the whole network",
        moment="after local training",
    )

    space: ClassVar[Mapping[str, Space]] = {"strength": (0.001, 10.0)}

    strength: Annotated[float, Field(ge=0, description="λ, pull of every model to the mean of all")] = 1.0
    weighting: Annotated[
        Literal["uniform", "examples"],
        Field(description="every client counts the same in the mean, or by its examples (the authors' code has both)"),
    ] = "uniform"

    @property
    def pull(self) -> float:
        """λ."""
        return self.strength

    def objective(self, w: Params, mean: Params, batch: Batch) -> Tensor:
        """F_k(w) + λ/2 ‖w - w̄‖²."""
        near = tree.sqdist(self.task.parameters(w), self.task.parameters(mean))
        return self.task.nll(w, batch) + self.strength / 2 * near

    def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """w_k = w̄."""
        return down

    def local_update(self, client: Weights, down: Weights, data: ClientData, keys: Keys) -> tuple[Weights, Up, Logs]:
        """Go on from the client's own model."""
        w, loss = descend(self.task, self.train, self.objective, client.w, down.w, data, keys)
        return Weights(w), Up(w, torch.ones_like(data.n) if self.weighting == "uniform" else data.n), {"loss": loss}

    def personalise(self, client: Weights, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """The client's own model."""
        return client
