"""Ditto: FedAvg, and beside it a personal model held near the global one.

Li, Hu, Beirami & Smith, ICML 2021, Algorithm 1.

    global      FedAvg, untouched by the rest
    personal    v_k by E_p epochs on F_k(v) + μ/2 ‖v - w_t‖², w_t the model received this round
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.local import descend
from fedprior.methods._averaging import Averaged, Up
from fedprior.protocol import About, Logs, Weights, register
from fedprior.rng import Keys
from fedprior.tree import Params


@register
@dataclass(frozen=True, kw_only=True)
class Ditto(Averaged[Weights, Weights]):
    """A personal model beside the global one."""

    about = About(
        name="ditto",
        title="Ditto",
        paper="Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML",
        year=2021,
        group="regularised",
        personal="a second network",
        moment="after local training",
        private=("w",),
    )
    types = (Weights, Weights, Weights, Up, Weights)

    mu: Annotated[float, Field(ge=0, description="pull of the personal model to the global one")] = 1.0
    personal_epochs: Annotated[int, Field(ge=0, description="epochs on the personal model per round")] = 5

    def objective(self, w: Params, w_t: Params, batch: Batch) -> Tensor:
        """F_k(w)."""
        return self.task.nll(w, batch)

    def personal_objective(self, v: Params, w_t: Params, batch: Batch) -> Tensor:
        """F_k(v) + μ/2 ‖v - w_t‖²."""
        near = tree.sqdist(self.task.parameters(v), self.task.parameters(w_t))
        return self.task.nll(v, batch) + self.mu / 2 * near

    def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """v = w."""
        return down

    def local_update(self, client: Weights, down: Weights, data: ClientData, keys: Keys) -> tuple[Weights, Up, Logs]:
        """One stream for the server, one for the client."""
        w, loss = descend(self.task, self.train, self.objective, down.w, down.w, data, keys)
        own = self.train.lasting(self.personal_epochs)
        v, personal_loss = descend(
            self.task, own, self.personal_objective, client.w, down.w, data, keys.fold("personal")
        )
        return Weights(v), Up(w, data.n), {"loss": loss, "personal_loss": personal_loss}

    def personalise(self, client: Weights, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """The client's own model."""
        return client

    def predict(self, personal: Weights, x: Tensor, keys: Keys) -> Tensor:
        """The network's own distribution."""
        return self.task.log_probs(personal.w, x)
