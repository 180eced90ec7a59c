"""Optimisers on stacked trees: `init` makes a state, `update` writes one step into weights and state.

They write in place because `fold` gives each step its own carry: on a stack of small models every extra pass over
the weights counts, and the fused kernels of `torch.optim` need only one.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedprior.tree import Params

Product = tuple[Tensor, Tensor]
"""(g [C, B, out], x [C, B, in]): a term gᵀ x of a stacked matrix's gradient, not multiplied out."""

Pull = tuple[Tensor, Tensor]
"""(s [C], d [C, ...]): a term s · d of a gradient, not multiplied out."""


class Factors(NamedTuple):
    """The terms of one tensor's gradient that are not multiplied out."""

    products: list[Product]
    pulls: list[Pull]

    def __bool__(self) -> bool:
        return bool(self.products or self.pulls)


class OptState(NamedTuple):
    """Moments of the gradient; empty dicts where an optimiser keeps none."""

    first: Params
    second: Params
    steps: Tensor  # [C] int64


class Optimizer(Protocol):
    """How gradients become steps."""

    @property
    def factored(self) -> bool:
        """Whether it can use factors as they are; otherwise dense gradients cost less."""

    def init(self, w: Params) -> OptState:
        """A fresh state for a local run."""

    def update(self, w: Params, grads: Params, state: OptState, factors: dict[str, Factors] | None = None) -> None:
        """One step, written into `w` and `state`; `grads` may be overwritten. `factors` are part of the gradient."""


def _fresh(w: Params, *, first: bool, second: bool) -> OptState:
    def zeros() -> Params:
        return {k: torch.zeros_like(v) for k, v in w.items()}

    clients = len(next(iter(w.values()))) if w else 0
    return OptState(zeros() if first else {}, zeros() if second else {}, torch.zeros(clients, dtype=torch.int64))


def _aligned(w: Params, grads: Params) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and gradients for the fused kernels, which pair them by memory position."""
    aligned = [g if g.stride() == w[k].stride() else torch.empty_like(w[k]).copy_(g) for k, g in grads.items()]
    return [w[k] for k in grads], aligned


@torch.no_grad()
def clipped(grads: Params, norm: float) -> Params:
    """Each client's gradient, over all its tensors together, clipped to the norm `norm`."""
    if not grads:  # a network without a base, whose base is trained
        return grads
    flat = [g.reshape(len(g), -1) for g in grads.values()]
    length = torch.stack([torch.linalg.vecdot(g, g) for g in flat]).sum(0).sqrt()
    scale = (norm / length.clamp(min=norm)).view(-1)
    return {k: g * scale.view(-1, *[1] * (g.dim() - 1)) for k, g in grads.items()}


def multiplied(grads: Params, factors: dict[str, Factors]) -> Params:
    """The gradients with their factors multiplied out."""
    for name, (products, pulls) in factors.items():
        shares = [g.transpose(1, 2) @ x for g, x in products] + [_wide(s, d) * d for s, d in pulls]
        total = grads[name] + shares.pop(0) if name in grads else shares.pop(0)
        for share in shares:
            total += share
        grads[name] = total
    return grads


def _wide(scale: Tensor, like: Tensor) -> Tensor:
    """[C] -> [C, 1, ...]."""
    return scale.view(-1, *[1] * (like.dim() - 1))


class SGD(NamedTuple):
    """v ← m v + g + wd w;  w ← w - lr v. With `clip`, g is first clipped to that norm."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None

    @property
    def factored(self) -> bool:
        """Not with clipping, which needs the whole gradient."""
        return self.clip is None

    def init(self, w: Params) -> OptState:
        """Momentum starts at zero."""
        return _fresh(w, first=self.momentum > 0, second=False)

    @torch.no_grad()
    def update(self, w: Params, grads: Params, state: OptState, factors: dict[str, Factors] | None = None) -> None:
        """One step in place."""
        factors = factors or {}
        if self.clip is not None:
            grads, factors = clipped(multiplied(grads, factors), self.clip), {}
        dense = {k: g for k, g in grads.items() if not self.momentum or k not in factors}
        if dense:
            weights, gradients = _aligned(w, dense)
            torch._fused_sgd_(
                weights,
                gradients,
                [state.first[k] for k in dense] if self.momentum else [],
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                lr=self.lr,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )
        for name, terms in factors.items():
            if self.momentum:
                self._with_momentum(w[name], state.first[name], grads.get(name), terms)
            else:  # multiply the factors into the weights: no tensor for the gradient at all
                keep = 1.0 if name in grads else 1 - self.lr * self.weight_decay
                _add_factors(w[name], terms, keep, -self.lr)

    def _with_momentum(self, w: Tensor, velocity: Tensor, dense: Tensor | None, terms: Factors) -> None:
        """The same with the factors multiplied into the momentum."""
        _add_factors(velocity, terms, self.momentum, 1.0)
        if dense is not None:
            velocity.add_(dense)
        if self.weight_decay:
            velocity.add_(w, alpha=self.weight_decay)
        w.add_(velocity, alpha=-self.lr)


def _add_factors(target: Tensor, terms: Factors, keep: float, scale: float) -> None:
    """target ← keep · target + scale · (the sum of the terms), in place."""
    for g, x in terms.products:
        target.baddbmm_(g.transpose(1, 2), x, beta=keep, alpha=scale)
        keep = 1.0
    if keep != 1:
        target.mul_(keep)
    for s, d in terms.pulls:
        target.addcmul_(d, _wide(s, d), value=scale)


class Adam(NamedTuple):
    """Kingma & Ba 2015, with weight decay inside the gradient (not decoupled)."""

    lr: float
    weight_decay: float = 0.0
    clip: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    @property
    def factored(self) -> bool:
        """It squares the gradient."""
        return False

    def init(self, w: Params) -> OptState:
        """Both moments start at zero."""
        return _fresh(w, first=True, second=True)

    @torch.no_grad()
    def update(self, w: Params, grads: Params, state: OptState, factors: dict[str, Factors] | None = None) -> None:
        """One step in place."""
        grads = multiplied(grads, factors or {})
        if not grads:
            return
        weights, gradients = _aligned(w, grads if self.clip is None else clipped(grads, self.clip))
        steps = state.steps.add_(1)[0].float()  # the clients of a stack start together, so they share the count
        torch._fused_adam_(
            weights,
            gradients,
            [state.first[k] for k in grads],
            [state.second[k] for k in grads],
            [],
            [steps] * len(weights),
            lr=self.lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )
