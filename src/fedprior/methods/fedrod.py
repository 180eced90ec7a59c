"""FedRoD: a generic head for everyone's classes, and a personal head on top of it.

Chen & Chao, ICLR 2022, Algorithm 1, the version with linear heads.

    shared      base and generic head by balanced softmax: cross-entropy of logits + log n_c, n_c the client's counts
    personal    h_p by cross-entropy of stop(h_g(z)) + h_p(stop(z)): its gradient reaches nothing else
    prediction  h_g(z) + h_p(z)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData, fold
from fedprior.methods._averaging import Averaged, Up
from fedprior.models.likelihood import categories
from fedprior.protocol import About, Logs, Weights, register
from fedprior.rng import Keys
from fedprior.training import take_step
from fedprior.tree import Params


class Client(NamedTuple):
    """The personal head."""

    head: Params


class Personal(NamedTuple):
    """The shared network and the head that is added to it."""

    w: Params
    head: Params


@register
class FedRoD(Averaged[Client, Personal]):
    """Robust decoupling."""

    about = About(
        name="fedrod",
        title="FedRoD",
        paper="Chen & Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR",
        year=2022,
        group="split",
        personal="a second head",
        moment="after aggregation",
        private=("head",),
        needs_classes=True,
    )

    def logits(self, head: Params, z: Tensor) -> Tensor:
        """Features [C, B, d] -> logits [C, B, K]."""
        return categories(self.task).logits(self.task.head_outputs(head, z))

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy of a batch, [C]."""
        return (categories(self.task).losses(logits, batch.y) * batch.weight).sum(1)

    def log_counts(self, data: ClientData) -> Tensor:
        """log n_c; a class that the client lacks gets log 1e-9, [C, K]."""
        counts = [data.client(c)[1].bincount(minlength=self.task.likelihood.parameters) for c in range(len(data))]
        return torch.stack(counts).to(self.task.dtype).clamp(min=1e-9).log()

    def step(self, carry: dict[str, Any], log_counts: Tensor, batch: Batch, keys: Keys) -> dict[str, Any]:
        """One batch: the shared network, then the personal head."""
        optimizer, skip = self.train.make(), self.task.buffers
        seen: list[Tensor] = []

        def balanced(w: Params, nothing: Any, b: Batch) -> Tensor:
            z = self.task.features(w, b.x, b.weight)
            logits = self.logits(w, z)
            seen.extend([z.detach(), logits.detach()])
            return self.loss(logits + log_counts.unsqueeze(1), b)

        carry["total"].add_(take_step(optimizer, balanced, carry["w"], carry["w_state"], None, batch, skip))
        z, generic = seen

        def personal(head: Params, nothing: Any, b: Batch) -> Tensor:
            return self.loss(generic + self.logits(head, z), b)

        take_step(optimizer, personal, carry["head"], carry["head_state"], None, batch)
        return carry

    def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Client:
        """The personal head starts at zero, so that at first only the generic one counts."""
        return Client(tree.zeros_like(tree.clone(self.task.split(down.w)[1])))

    def local_update(self, client: Client, down: Weights, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """Both side by side."""
        optimizer, budget = self.train.make(), self.train.budget(self.task)
        carry: dict[str, Any] = {
            "w": down.w,
            "head": client.head,
            "w_state": optimizer.init(self.task.parameters(down.w)),
            "head_state": optimizer.init(client.head),
            "total": torch.zeros(len(data), dtype=self.task.dtype),
        }
        done = fold(self.step, carry, self.log_counts(data), data, keys.fold("descend"), budget)
        steps = torch.tensor([max(1, budget.length(n)) for n in data.size])
        return Client(done["head"]), Up(done["w"], data.n), {"loss": done["total"] / steps}

    def personalise(self, client: Client, down: Weights, data: ClientData, keys: Keys) -> Personal:
        """The newest shared network with the client's head."""
        return Personal(down.w, client.head)

    @torch.no_grad()
    def predict(self, personal: Personal, x: Tensor, keys: Keys) -> Tensor:
        """The sum of both heads."""
        z = self.task.features(personal.w, x)
        return (self.logits(personal.w, z) + self.logits(personal.head, z)).log_softmax(-1)
