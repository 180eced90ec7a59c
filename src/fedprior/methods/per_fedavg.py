"""Per-FedAvg: learn a model that is good after one step of adaptation.

Fallah, Mokhtari & Ozdaglar, NeurIPS 2020, Algorithm 1.

    F_k(x) = f_k(x - α ∇f_k(x))
    FO    x ← x - β ∇f(x - α ∇f(x; B1); B2)
    HF    x ← x - β (g₂ - α h),  h = [∇f(x + δ g₂; B3) - ∇f(x - δ g₂; B3)] / 2δ

β is the learning rate of the local training, and so is α by default (a fixed 0.01 was worse on validation data at all
learning rates tried). An iteration takes two batches (FO) or three (HF). To predict, a client adapts
on *training* data: `adapt="epoch"`, one epoch of SGD with α (pFedVEM's tables), or `"step"`, one batch (pFedBreD's).
Some public code adapts on test batches, which leaks labels. A step size of zero is taken literally.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedprior.data.client import Batch, ClientData, fold
from fedprior.methods._averaging import Averaged, Up
from fedprior.optim import SGD, OptState
from fedprior.protocol import About, Empty, Logs, Weights, register
from fedprior.rng import Keys
from fedprior.training import descend, value_and_grad
from fedprior.tree import Params


class Meta(NamedTuple):
    """What an iteration carries over its batches."""

    x: Params
    state: OptState
    ahead: Params  # x - α ∇f(x; B1)
    second: Params  # ∇f(ahead; B2)
    total: Tensor  # [C]
    batches: Tensor  # [C] int64


@register
class PerFedAvg(Averaged[Empty, Weights]):
    """Model-agnostic meta-learning."""

    about = About(
        name="per_fedavg",
        title="Per-FedAvg",
        paper="Fallah, Mokhtari & Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A "
        "Model-Agnostic Meta-Learning Approach, NeurIPS",
        year=2020,
        group="meta",
        personal="a copy of the global model, adapted before prediction",
        moment="after aggregation",
    )

    order: Annotated[Literal["hf", "fo"], Field(description="Hessian-free second order, or first order")] = "hf"
    alpha: Annotated[
        float | None, Field(ge=0, description="α, step of the adaptation; by default train.lr (0.01 with adam)")
    ] = None
    delta: Annotated[float, Field(gt=0, description="difference of the Hessian-vector product (HF)")] = 1e-3
    adapt: Annotated[Literal["epoch", "step"], Field(description="adaptation before prediction, on training data")] = (
        "epoch"
    )

    @property
    def ahead(self) -> float:
        """α."""
        return self.train.gradient_step if self.alpha is None else self.alpha

    def gradient(self, w: Params, batch: Batch) -> tuple[Tensor, Params]:
        """f and ∇f on a batch."""
        return value_and_grad(lambda w, _, b: self.task.nll(w, b), w, None, batch, self.task.buffers)

    def step(self, meta: Meta, nothing: Any, batch: Batch, keys: Keys) -> Meta:
        """One batch: B1 looks ahead, B2 gives the gradient there, B3 (HF) the curvature term."""
        phase = int(meta.batches[0]) % (3 if self.order == "hf" else 2)
        meta = meta._replace(batches=meta.batches + 1)
        if phase == 0:
            value, g = self.gradient(meta.x, batch)
            return meta._replace(ahead=_moved(meta.x, g, -self.ahead), total=meta.total + value)
        if phase == 1:
            g = self.gradient(meta.ahead, batch)[1]
            if self.order == "hf":
                return meta._replace(second={**meta.second, **g})
        else:
            g = {k: meta.second[k] for k in self.task.parameters(meta.x)}
            up, down = (self.gradient(_moved(meta.x, g, s * self.delta), batch)[1] for s in (1, -1))
            g = {k: g[k] - self.ahead * (up[k] - down[k]) / (2 * self.delta) for k in g}
        self.train.make().update(meta.x, {k: v.clone() for k, v in g.items()}, meta.state)
        return meta

    def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Empty:
        """Clients keep nothing."""
        return Empty()

    def local_update(self, client: Empty, down: Weights, data: ClientData, keys: Keys) -> tuple[Empty, Up, Logs]:
        """Meta-steps from the broadcast model; the budget counts iterations, each of two or three batches."""
        batches = 3 if self.order == "hf" else 2
        budget = self.train.budget(self.task)
        budget = budget._replace(
            epochs=None if budget.epochs is None else batches * budget.epochs,
            steps=None if budget.steps is None else batches * budget.steps,
        )
        zero = torch.zeros(len(data), dtype=self.task.dtype)
        first = Meta(
            down.w,
            self.train.make().init(self.task.parameters(down.w)),
            down.w,
            self.task.parameters(down.w),
            zero,
            torch.zeros(len(data), dtype=torch.int64),
        )
        done = fold(self.step, first, {}, data, keys.fold("descend"), budget)
        iterations = torch.tensor([max(1, budget.length(n) // batches) for n in data.size])
        return client, Up(done.x, data.n), {"loss": done.total / iterations}

    def personalise(self, client: Empty, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """Adapt a copy on training data."""
        if self.ahead == 0:
            return down
        once = replace(self.train, optimizer="sgd", momentum=0.0, weight_decay=0.0, epochs=1, steps=None)
        train = once if self.adapt == "epoch" else replace(once, steps=1)
        return Weights(descend(self.task, train, _plain(self), down.w, {}, data, keys, SGD(self.ahead))[0])


def _plain(method: PerFedAvg) -> Any:
    return lambda w, nothing, batch: method.task.nll(w, batch)


@torch.no_grad()
def _moved(w: Params, direction: Params, size: float) -> Params:
    return {k: v + size * direction[k] if k in direction else v for k, v in w.items()}
