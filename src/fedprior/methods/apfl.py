"""APFL: each client mixes a personal network with the global one.

Deng, Kamani & Mahdavi, arXiv 2003.13461 (2020), Algorithm 1.

    per batch    w ← w - η ∇f(w);   v ← v - η ∇_v f(α v + (1-α) w)
    prediction   α v + (1-α) w, w the newest global model
    adaptive α   once per round, α ← α - η_α ⟨v - w, ∇f(α v + (1-α) w)⟩, kept in [0, 1]  (Eq. 10)

v's gradient uses the w that this batch has just updated, as in the authors' code (FedTorch); but that mixes the
networks' outputs, where Algorithm 1, and we, mix their weights. v itself is kept separate from the mixture (one public
library merges them at the end of each round).
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedprior.data.client import Batch, ClientData, fold
from fedprior.methods._averaging import Averaged, Up
from fedprior.protocol import About, Logs, Weights, register
from fedprior.rng import Keys
from fedprior.training import take_step, value_and_grad
from fedprior.tree import Params


class Client(NamedTuple):
    """The personal network and its share."""

    v: Params
    alpha: Tensor  # [C]


@register
class APFL(Averaged[Client, Weights]):
    """Adaptive mixture of a personal and a global network."""

    about = About(
        name="apfl",
        title="APFL",
        paper="Deng, Kamani & Mahdavi, Adaptive Personalized Federated Learning, arXiv 2003.13461",
        year=2020,
        group="mixture",
        personal="a second network and its share",
        moment="after aggregation",
        private=("v", "alpha"),
    )

    alpha: Annotated[float, Field(ge=0, le=1, description="share of the personal network (at first, if adaptive)")] = (
        0.25
    )
    alpha_lr: Annotated[float, Field(ge=0, description="step of the adaptive share; 0 keeps it fixed")] = 0.0

    def mixture(self, v: Params, w: Params, alpha: Tensor) -> Params:
        """α v + (1-α) w."""
        return {k: w[k] + alpha.view(-1, *[1] * (a.dim() - 1)) * (a - w[k]) for k, a in v.items()}

    def training_mixture(self, v: Params, w: Params, alpha: Tensor) -> Params:
        """The same with v's running statistics, which train as the mixture does."""
        mixed = self.mixture(self.task.parameters(v), w, alpha)
        return {k: mixed.get(k, own) for k, own in v.items()}

    def step(self, carry: dict[str, Any], alpha: Tensor, batch: Batch, keys: Keys) -> dict[str, Any]:
        """One batch: the global copy, then the personal network."""
        optimizer, skip = self.train.make(), self.task.buffers

        def shared(w: Params, nothing: Any, b: Batch) -> Tensor:
            return self.task.nll(w, b)

        def mixed(v: Params, w: Params, b: Batch) -> Tensor:
            return self.task.nll(self.training_mixture(v, w, alpha), b)

        carry["total"].add_(take_step(optimizer, shared, carry["w"], carry["w_state"], None, batch, skip))
        take_step(optimizer, mixed, carry["v"], carry["v_state"], carry["w"], batch, skip)
        return carry

    def adapted(self, v: Params, w: Params, alpha: Tensor, data: ClientData) -> Tensor:
        """α after a gradient step on the client's training loss."""
        if self.alpha_lr == 0:
            return alpha
        slope = torch.zeros_like(alpha)
        for batch in data.batches(500):
            real = (batch.weight > 0).to(alpha.dtype)

            def loss(share: Params, nothing: Any, b: Batch, real: Tensor = real) -> Tensor:
                return (self.task.losses(self.training_mixture(v, w, share["a"]), b, train=False) * real).sum(1)

            slope += value_and_grad(loss, {"a": alpha}, None, batch)[1]["a"]
        return (alpha - self.alpha_lr * slope / data.n.to(alpha.dtype)).clamp(0, 1)

    def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Client:
        """v = w."""
        return Client(down.w, torch.full((len(data),), self.alpha, dtype=self.task.dtype))

    def local_update(self, client: Client, down: Weights, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """Both networks side by side."""
        state, budget = self.train.make().init(self.task.parameters(down.w)), self.train.budget(self.task)
        start = {"w": down.w, "v": client.v, "w_state": state, "v_state": state}
        carry: dict[str, Any] = {**start, "total": torch.zeros(len(data), dtype=self.task.dtype)}
        done = fold(self.step, carry, client.alpha, data, keys.fold("descend"), budget)
        alpha = self.adapted(done["v"], done["w"], client.alpha, data)
        steps = torch.tensor([max(1, budget.length(n)) for n in data.size])
        return Client(done["v"], alpha), Up(done["w"], data.n), {"loss": done["total"] / steps, "alpha": alpha}

    def personalise(self, client: Client, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """The mixture with the newest global model."""
        return Weights(self.mixture(client.v, down.w, client.alpha))
