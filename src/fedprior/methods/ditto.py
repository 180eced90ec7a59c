"""Ditto: FedAvg, plus a personal model held near the global one.

Li, Hu, Beirami & Smith, ICML 2021, Algorithm 1.

    global      FedAvg, untouched by the rest
    personal    v_k by local training on F_k(v) + μ/2 ‖v - w_t‖², w_t the model received this round

v_k starts at the w of the client's first round and is never reset. It trains for as long as the global model, or for
`personal_epochs` (five in pFedFDA's comparison).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

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
class Ditto(Averaged[Weights, Weights]):
    """A personal model in addition to the global one."""

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

    renamed: ClassVar[Mapping[str, str]] = {"mu": "strength"}

    space: ClassVar[Mapping[str, Space]] = {"strength": (0.001, 10.0)}

    strength: Annotated[float, Field(ge=0, description="μ, pull of the personal model to the global one")] = 1.0
    personal_epochs: Annotated[
        int | None, Field(ge=0, description="epochs on the personal model per round; by default as in `train`")
    ] = None

    @property
    def pull(self) -> float:
        """μ."""
        return self.strength

    def objective(self, w: Params, w_t: Params, batch: Batch) -> Tensor:
        """F_k(w)."""
        return self.task.nll(w, batch)

    def personal_objective(self, v: Params, w_t: Params, batch: Batch) -> Tensor:
        """F_k(v) + μ/2 ‖v - w_t‖²."""
        near = tree.sqdist(self.task.parameters(v), self.task.parameters(w_t))
        return self.task.nll(v, batch) + self.strength / 2 * near

    def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """v = w."""
        return down

    def local_update(self, client: Weights, down: Weights, data: ClientData, keys: Keys) -> tuple[Weights, Up, Logs]:
        """One model for the server, one for the client."""
        w, loss = descend(self.task, self.train, self.objective, down.w, down.w, data, keys)
        own = self.train.lasting(self.personal_epochs)
        v, personal_loss = descend(
            self.task, own, self.personal_objective, client.w, down.w, data, keys.fold("personal")
        )
        return Weights(v), Up(w, data.n), {"loss": loss, "personal_loss": personal_loss}

    def personalise(self, client: Weights, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """The client's own model."""
        return client
