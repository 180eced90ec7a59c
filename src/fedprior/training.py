"""Local training: the optimiser and budget that every method shares, and gradient descent on a stack of clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior.data.client import Batch, Budget, ClientData, fold
from fedprior.errors import FedpriorError
from fedprior.models.stack import keep_factors
from fedprior.models.task import Task
from fedprior.optim import SGD, Adam, Factors, Optimizer, OptState
from fedprior.options import STRICT, one_sentence
from fedprior.rng import Keys
from fedprior.tree import Params

Objective = Callable[[Params, Any, Batch], Tensor]
"""(weights, fixed trees, batch) -> what each client minimises, [C]."""


MOST = 10**9
"""Examples of a batch, epochs or steps: more are a slip of the pen, and overflow once they are multiplied."""


@one_sentence("train")
@dataclass(frozen=True, config=STRICT)
class Train:
    """How a client trains in one round. The optimiser starts afresh every round.

    Examples:
        >>> from fedprior import Train
        >>> Train(lr=0.1, epochs=2).lasting(5).epochs
        5
        >>> Train(lr=-1)
        Traceback (most recent call last):
        ...
        fedprior.errors.FedpriorError: train: lr = -1 is not valid: input should be greater than 0.
    """

    optimizer: Annotated[Literal["sgd", "adam"], Field(description="gradient descent or Adam")] = "sgd"
    lr: Annotated[float, Field(gt=0, description="learning rate")] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1, description="momentum of SGD")] = 0.0
    weight_decay: Annotated[float, Field(ge=0, description="added to the gradient, times the weights")] = 0.0
    clip: Annotated[float | None, Field(gt=0, description="largest norm of a client's gradient")] = None
    batch_size: Annotated[int, Field(ge=1, le=MOST, description="examples per step")] = 50
    last_batch: Annotated[
        Literal["keep", "drop"],
        Field(description="an epoch's last batch, if it is short: kept, or dropped unless the client has no other"),
    ] = "keep"
    epochs: Annotated[int, Field(ge=0, le=MOST, description="passes over the client's data per round")] = 5
    steps: Annotated[int | None, Field(ge=0, le=MOST, description="exact steps per round; replaces epochs")] = None

    @model_validator(mode="after")
    def _momentum_is_sgd(self) -> Self:
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("momentum applies to sgd only: leave it at 0 with adam")
        return self

    def make(self) -> Optimizer:
        """The optimiser."""
        if self.optimizer == "adam":
            return Adam(self.lr, self.weight_decay, self.clip)
        return SGD(self.lr, self.momentum, self.weight_decay, self.clip)

    def budget(self, task: Task) -> Budget:
        """The length of a local run on `task`, in epochs or steps, and whether clients train as one stack."""
        if self.batch_size < task.smallest_batch:
            raise FedpriorError("batch normalisation needs batches of two or more examples: raise train.batch_size.")
        epochs, drop = self.epochs if self.steps is None else None, self.last_batch == "drop"
        return Budget(self.batch_size, epochs, self.steps, task.smallest_batch, task.stackable, drop)

    @property
    def moments(self) -> int:
        """How many tensors the optimiser keeps beside each tensor of weights."""
        return 2 if self.optimizer == "adam" else int(self.momentum > 0)

    @property
    def steepest(self) -> float | None:
        """The curvature from which on steps overshoot further each time, where that is known: (2 + 2m) / lr for SGD."""
        return 2 * (1 + self.momentum) / self.lr if self.optimizer == "sgd" and self.clip is None else None

    def plain(self) -> SGD:
        """Gradient descent with this learning rate and decay and nothing else, for methods that need plain SGD."""
        return SGD(self.lr, 0.0, self.weight_decay)

    @property
    def gradient_step(self) -> float:
        """A learning rate for plain gradient descent: this training's own, except with Adam, whose rate is in units of
        weights, not of gradients."""
        return self.lr if self.optimizer == "sgd" else 0.01

    def lasting(self, epochs: int | None) -> Train:
        """The same training with another number of epochs, or unchanged (None)."""
        return self if epochs is None else replace(self, epochs=epochs, steps=None)


AUTO = Train()
"""Placeholder for the federation's recommendation, held by a method without its own `train`."""


def value_and_grad(
    objective: Callable[[Params, Any, Any], Tensor],
    w: Params,
    fixed: Any,
    batch: Any,
    skip: frozenset[str] = frozenset(),
) -> tuple[Tensor, Params]:
    """Each client's `objective(w, fixed, batch)` [C] and its gradient by every entry of `w` that is not in `skip`."""
    value, grads, _ = _backward(objective, w, fixed, batch, skip, factored=False)
    return value, grads


def take_step(
    optimizer: Optimizer,
    objective: Callable[[Params, Any, Any], Tensor],
    w: Params,
    state: OptState,
    fixed: Any,
    batch: Any,
    skip: frozenset[str] = frozenset(),
    at: Params | None = None,
) -> Tensor:
    """One step of `optimizer` on `objective(w, fixed, batch)`, written into `w` and `state`.

    The gradient is that at `w`, or `at` another point. Entries in `skip`, such as buffers, have none. Returns the
    objective before the step, [C].
    """
    point, factored = w if at is None else at, optimizer.factored
    value, grads, factors = _backward(objective, point, fixed, batch, skip, factored=factored)
    optimizer.update(w, grads, state, factors)
    return value


def _backward(
    objective: Callable[[Params, Any, Any], Tensor],
    w: Params,
    fixed: Any,
    batch: Any,
    skip: frozenset[str],
    *,
    factored: bool,
) -> tuple[Tensor, Params, dict[str, Factors]]:
    """Clients share no weights, so the gradient of the sum is every client's own gradient: one pass for all."""
    names = [k for k in w if k not in skip]
    leaves = {k: v if k in skip else v.detach().requires_grad_() for k, v in w.items()}
    kept = {k: keep_factors(leaves[k]) for k in names} if factored else {}
    value = objective(leaves, fixed, batch)
    if not names:
        return value.detach(), {}, {}
    grads = torch.autograd.grad(value.sum(), [leaves[k] for k in names], allow_unused=True)
    dense = {k: g for k, g in zip(names, grads, strict=True) if g is not None}
    return value.detach(), dense, {k: factors for k, factors in kept.items() if factors}


def descend(
    task: Task,
    train: Train,
    objective: Objective,
    w: Params,
    fixed: Any,
    data: ClientData,
    keys: Keys,
    optimizer: Optimizer | None = None,
) -> tuple[Params, Tensor]:
    """Train every client of a stack by gradient descent.

    Args:
        task: The network and its likelihood.
        train: Optimiser and budget.
        objective: (weights, fixed, batch) -> what each client minimises, [C].
        w: Where to start, [C, ...]: all weights, or a part of them.
        fixed: Whatever else the objective needs, [C, ...]; it is not changed.
        data: The clients' examples.
        keys: One per client; they determine the order of examples.
        optimizer: Replaces that of `train`.

    Returns:
        The new weights, and the mean objective over the steps, [C].
    """
    optimizer, budget, buffers = optimizer or train.make(), train.budget(task), task.buffers

    def step(carry: Descent, fixed: Any, batch: Batch, keys: Keys) -> Descent:
        carry.total.add_(take_step(optimizer, objective, carry.w, carry.state, fixed, batch, buffers))
        return carry

    start = Descent(w, optimizer.init(task.parameters(w)), torch.zeros(len(data), dtype=task.dtype))
    done = fold(step, start, fixed, data, keys.fold("descend"), budget)
    steps = torch.tensor([max(1, budget.length(n)) for n in data.size])
    return done.w, done.total / steps


def descend_head(
    task: Task, train: Train, head: Params, base: Params, data: ClientData, keys: Keys
) -> tuple[Params, Tensor]:
    """Train each `head` behind its frozen `base`, as `descend` does with the same `task`, `train`, `data` and `keys`.

    Features are computed once, and then all clients are stacked, whatever layers the base has. Returns the heads
    [C, ...] and the mean loss [C].
    """
    alone = task.head_alone
    return descend(alone, train, lambda w, _, batch: alone.nll(w, batch), head, {}, task.embedded(base, data), keys)


class Descent(NamedTuple):
    """What a local run carries from step to step."""

    w: Params
    state: OptState
    total: Tensor  # [C] sum of the objective over the steps
