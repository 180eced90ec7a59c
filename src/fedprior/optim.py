"""Optimisers on stacked trees: `init` makes a state, `update` writes one step into weights and state.

They write in place because `fold` hands a step a carry of its own: on a stack of small models every extra pass over
the weights counts. The formulas are those of `torch.optim`, which the tests use as an oracle.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedprior.tree import Params


class OptState(NamedTuple):
    """Moments of the gradient; empty dicts where an optimiser keeps none."""

    first: Params
    second: Params
    steps: Tensor  # [C] int64


class Optimizer(Protocol):
    """How gradients become steps."""

    def init(self, w: Params) -> OptState:
        """A fresh state for a local run."""

    def update(self, w: Params, grads: Params, state: OptState) -> None:
        """One step, written into `w` and `state`; `grads` may be overwritten."""


def _fresh(w: Params, *, first: bool, second: bool) -> OptState:
    def zeros() -> Params:
        return {k: torch.zeros_like(v) for k, v in w.items()}

    clients = len(next(iter(w.values()))) if w else 0
    return OptState(zeros() if first else {}, zeros() if second else {}, torch.zeros(clients, dtype=torch.int64))


class SGD(NamedTuple):
    """v ← m v + g + wd w;  w ← w - lr v."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def init(self, w: Params) -> OptState:
        """Momentum starts at zero."""
        return _fresh(w, first=self.momentum > 0, second=False)

    @torch.no_grad()
    def update(self, w: Params, grads: Params, state: OptState) -> None:
        """One step in place."""
        names = list(grads)
        weights, steps = [w[k] for k in names], [grads[k] for k in names]
        if self.weight_decay:
            torch._foreach_add_(steps, weights, alpha=self.weight_decay)
        if self.momentum:
            velocity = [state.first[k] for k in names]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, steps)
            steps = velocity
        torch._foreach_add_(weights, steps, alpha=-self.lr)


class Adam(NamedTuple):
    """Kingma & Ba 2015, with weight decay inside the gradient (not decoupled)."""

    lr: float
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def init(self, w: Params) -> OptState:
        """Both moments start at zero."""
        return _fresh(w, first=True, second=True)

    @torch.no_grad()
    def update(self, w: Params, grads: Params, state: OptState) -> None:
        """One step in place."""
        names = list(grads)
        weights, gradient = [w[k] for k in names], [grads[k] for k in names]
        m, v = [state.first[k] for k in names], [state.second[k] for k in names]
        if self.weight_decay:
            torch._foreach_add_(gradient, weights, alpha=self.weight_decay)
        t = int(state.steps.add_(1)[0])  # the clients of a stack start together, so they share the count
        torch._foreach_lerp_(m, gradient, 1 - self.beta1)
        torch._foreach_mul_(v, self.beta2)
        torch._foreach_addcmul_(v, gradient, gradient, 1 - self.beta2)
        scale = torch._foreach_sqrt(v)
        torch._foreach_div_(scale, (1 - self.beta2**t) ** 0.5)
        torch._foreach_add_(scale, self.eps)
        torch._foreach_addcdiv_(weights, m, scale, -self.lr / (1 - self.beta1**t))
