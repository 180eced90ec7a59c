"""Per-FedAvg: learn a model that is good after one step of adaptation.

Fallah, Mokhtari & Ozdaglar, NeurIPS 2020, Algorithm 1.

    F_k(x) = f_k(x - α ∇f_k(x))
    FO    x ← x - β ∇f(x - α ∇f(x; B1); B2)
    HF    x ← x - β (g₂ - α h),  h = [∇f(x + δ g₂; B3) - ∇f(x - δ g₂; B3)] / 2δ

β is the learning rate of the local training. An iteration takes two batches (FO) or three (HF). To predict, a client
adapts on *training* data: `adapt="epoch"`, one epoch of SGD with α (pFedVEM's tables), or `"step"`, one batch
(pFedBreD's). Some public code adapts on test batches, which leaks labels. A zero step means zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior.data.client import Batch, ClientData, fold
from fedprior.local import descend, value_and_grad
from fedprior.methods._averaging import Averaged, Up
from fedprior.optim import SGD, OptState
from fedprior.protocol import About, Empty, Logs, Weights, register
from fedprior.rng import Keys
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
@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Averaged[Empty, Weights]):
    """Model-agnostic meta-learning."""

    about = About(
        name="per_fedavg",
        title="Per-FedAvg",
        paper="Fallah, Mokhtari & Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A "
        "Model-Agnostic Meta-Learning Approach, NeurIPS",
        year=2020,
        group="meta",
        personal="an adapted copy of the global model, made when it predicts",
        moment="after aggregation",
    )
    types = (Weights, Empty, Weights, Up, Weights)

    order: Annotated[Literal["hf", "fo"], Field(description="Hessian-free second order, or first order")] = "hf"
    alpha: Annotated[float, Field(ge=0, description="step of the adaptation")] = 0.01
    delta: Annotated[float, Field(gt=0, description="difference of the Hessian-vector product (HF)")] = 1e-3
    adapt: Annotated[Literal["epoch", "step"], Field(description="adaptation before prediction, on training data")] = (
        "epoch"
    )

    def gradient(self, w: Params, batch: Batch) -> tuple[Tensor, Params]:
        """f and ∇f on a batch."""
        return value_and_grad(lambda w, _, b: self.task.nll(w, b), w, None, batch, self.task.buffers)

    def step(self, meta: Meta, nothing: Any, batch: Batch, keys: Keys) -> Meta:
        """One batch: B1 looks ahead, B2 gives the gradient there, B3 (HF) the curvature term."""
        phase = int(meta.batches[0]) % (3 if self.order == "hf" else 2)
        meta = meta._replace(batches=meta.batches + 1)
        if phase == 0:
            value, g = self.gradient(meta.x, batch)
            return meta._replace(ahead=_moved(meta.x, g, -self.alpha), total=meta.total + value)
        if phase == 1:
            g = self.gradient(meta.ahead, batch)[1]
            if self.order == "hf":
                return meta._replace(second={**meta.second, **g})
        else:
            g = {k: meta.second[k] for k in self.task.parameters(meta.x)}
            up, down = (self.gradient(_moved(meta.x, g, s * self.delta), batch)[1] for s in (1, -1))
            g = {k: g[k] - self.alpha * (up[k] - down[k]) / (2 * self.delta) for k in g}
        self.train.make().update(meta.x, {k: v.clone() for k, v in g.items()}, meta.state)
        return meta

    def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Empty:
        """Clients keep nothing."""
        return Empty()

    def local_update(self, client: Empty, down: Weights, data: ClientData, keys: Keys) -> tuple[Empty, Up, Logs]:
        """Meta-steps from the broadcast model; an epoch or step of the budget is one iteration's worth of batches."""
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
        if self.alpha == 0:
            return down
        once = replace(self.train, optimizer="sgd", momentum=0.0, weight_decay=0.0, epochs=1, steps=None)
        train = once if self.adapt == "epoch" else replace(once, steps=1)
        return Weights(descend(self.task, train, _plain(self), down.w, {}, data, keys, SGD(self.alpha))[0])

    def predict(self, personal: Weights, x: Tensor, keys: Keys) -> Tensor:
        """The network's own distribution."""
        return self.task.log_probs(personal.w, x)


def _plain(method: PerFedAvg) -> Any:
    return lambda w, nothing, batch: method.task.nll(w, batch)


@torch.no_grad()
def _moved(w: Params, direction: Params, size: float) -> Params:
    return {k: v + size * direction[k] if k in direction else v for k, v in w.items()}
