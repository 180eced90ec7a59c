"""The base of methods that descend a Moreau envelope: pFedMe and its generalisation pFedBreD.

    F_i(v) = min_θ  f_i(θ) + λ D(θ, μ_i(v)),      D a Bregman divergence, here ½ (θ-μ)' A (θ-μ) with A diagonal

Per mini-batch: find the personal θ by K prox steps, then move the local model v along the first-order gradient of the
envelope, λ A (μ - θ). The personal model is the last θ. Every client trains every round, a sample reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.models.task import Task
from fedprior.optim import SGD, Factors, OptState
from fedprior.protocol import Method, Weights
from fedprior.rng import Key, Keys
from fedprior.training import Objective, take_step
from fedprior.tree import Params


class Client(NamedTuple):
    """The personal model, and the local model as the last round left it."""

    theta: Params
    w_last: Params


class Up(NamedTuple):
    """The local model and the example count."""

    v: Params
    n: Tensor  # [C] float64


class Run(NamedTuple):
    """What a local run carries: the local model, its optimiser, the personal model, and sums for the logs."""

    v: Params
    state: Any
    theta: Params
    look_ahead: Params  # a second point that some variants keep from one batch to the next
    total: Tensor  # [C]
    shift: Tensor  # [C]
    batches: Tensor  # [C] int64


@dataclass(frozen=True, kw_only=True)
class Envelope(Method[Weights, Client, Weights, Up, Weights]):
    """What both methods share: everything but how a mini-batch moves v and θ."""

    renamed: ClassVar[Mapping[str, str]] = {"server_step": "beta"}

    strength: Annotated[float, Field(ge=0, description="λ, precision of the prior: the pull to its centre")] = 15.0
    prox_lr: Annotated[
        float | None,
        Field(
            gt=0,
            description="α, step of the prox solver, α λ below 2; by default the smaller of train.lr and 1/2λ",
            json_schema_extra={"others": [0.005]},
        ),
    ] = None
    prox_steps: Annotated[int, Field(ge=1, description="K, steps of the prox solver per batch")] = 5
    beta: Annotated[float, Field(gt=0, description="β of the server's step; 2 is pFedBreD's AM")] = 1.0

    @model_validator(mode="after")
    def _prox_converges(self) -> Self:
        if self.prox_lr is not None and self.prox_lr * self.strength >= 2:
            raise ValueError(
                f"prox_lr · strength = {self.prox_lr * self.strength:.4g} makes the prox solver overshoot further with "
                "every step: keep it below 2, or leave prox_lr out"
            )
        return self

    def prox_step(self, largest: float = 1.0) -> float:
        """α; by default the local step, shortened where α λ A (with the largest A) would exceed a half."""
        if self.prox_lr is not None:
            return self.prox_lr
        curvature = self.strength * largest
        return min(self.train.gradient_step, 0.5 / curvature) if curvature else self.train.gradient_step

    def init_server(self, key: Key, clients: int = 1) -> Weights:
        """Common initial weights."""
        return Weights(self.task.init(key.fold("init")))

    def broadcast(self, server: Weights, ids: Tensor) -> Weights:
        """w, to everyone."""
        return server

    def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Client:
        """θ = w_last = w."""
        return Client(down.w, down.w)

    def aggregate(self, server: Weights, ups: Up, ids: Tensor) -> Weights:
        """A step of size β to the mean."""
        return Weights(mean_step(server.w, ups, self.beta, self.task.buffers))

    def personalise(self, client: Client, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """The last θ."""
        return Weights(client.theta)


class Pulled(NamedTuple):
    """Plain gradient descent on f + λ D(·, μ): θ ← θ - α (∇f(θ) + λ A (θ - μ)), where `pull` is α λ A."""

    lr: float
    pull: Params
    centre: Params

    @property
    def factored(self) -> bool:
        """The loss's part of the step is plain gradient descent."""
        return True

    def init(self, w: Params) -> OptState:
        """Nothing to remember."""
        return SGD(self.lr).init(w)

    @torch.no_grad()
    def update(self, w: Params, grads: Params, state: OptState, factors: dict[str, Factors] | None = None) -> None:
        """One step in place. The prior also acts on tensors that the loss does not use."""
        for k, pull in self.pull.items():
            w[k].lerp_(self.centre[k], pull)
        SGD(self.lr).update(w, grads, state, factors)


def nll(task: Task) -> Objective:
    """f_i."""
    return lambda w, _, batch: task.nll(w, batch)


def descended(task: Task, w: Params, batch: Batch, size: float, at: Params | None = None) -> Params:
    """w - size · ∇f on a batch, the gradient taken at w or elsewhere."""
    solver, new = SGD(size), tree.clone(w)
    take_step(solver, nll(task), new, solver.init(new), None, batch, task.buffers, at)
    return new


@torch.no_grad()
def step(w: Params, direction: Params, size: float) -> Params:
    """w - size · direction, for the entries that have a direction."""
    return {k: torch.sub(v, direction[k], alpha=size) if k in direction else v for k, v in w.items()}


@torch.no_grad()
def difference(task: Task, a: Params, b: Params) -> Params:
    """a - b over parameters."""
    return {k: a[k] - b[k] for k in task.parameters(a)}


def with_buffers(task: Task, v: Params, theta: Params) -> Params:
    """v with θ's running statistics, since they were updated there and v is sent."""
    return {k: theta[k] if k in task.buffers else x for k, x in v.items()}


def prox(
    task: Task, start: Params, mu: Params, metric: Params, batch: Batch, *, strength: float, lr: float, steps: int
) -> tuple[Params, Tensor]:
    """K plain gradient steps on f(θ) + λ D(θ, μ) with one batch; returns θ and the loss at the start."""
    solver, theta = Pulled(lr, {k: lr * strength * a for k, a in metric.items()}, mu), tree.clone(start)
    state = solver.init(theta)
    values = [take_step(solver, nll(task), theta, state, None, batch, task.buffers) for _ in range(steps)]
    return theta, values[0]


def envelope_gradient(task: Task, mu: Params, theta: Params, metric: Params, strength: float) -> Params:
    """λ A (μ - θ): the envelope's gradient with the Jacobian of μ replaced by the identity."""
    return {k: gap.mul_(strength * metric[k]) for k, gap in difference(task, mu, theta).items()}


def euclidean(task: Task, w: Params) -> Params:
    """A = I."""
    return {k: torch.ones((), dtype=v.dtype) for k, v in task.parameters(w).items()}


def per_tensor_scale(task: Task, w: Params) -> Params:
    """A diagonal Mahalanobis metric that makes tensors of different scale comparable.

    A_j = c / mean square of the tensor that parameter j belongs to, at the common initial weights `w` (no client
    axis); c makes the mean of A over all parameters one, so that λ keeps its meaning. A tensor that starts at zero has
    A = 1.
    """
    parameters = task.parameters(w)
    inverse = {k: 1 / v.square().mean() for k, v in parameters.items() if v.any()}
    count = sum(parameters[k].numel() for k in inverse)
    mean = sum(inverse[k] * parameters[k].numel() for k in inverse) / count
    return {k: inverse[k] / mean if k in inverse else torch.ones((), dtype=v.dtype) for k, v in parameters.items()}


def start(client: Client, v: Params, state: Any, data: ClientData, dtype: torch.dtype) -> Run:
    """The carry of a local run from the broadcast model `v`."""
    zero = torch.zeros(len(data), dtype=dtype)
    return Run(v, state, client.theta, v, zero, zero, torch.zeros(len(data), dtype=torch.int64))


def mean_step(server: Params, ups: Up, size: float, buffers: frozenset[str] = frozenset()) -> Params:
    """w ← (1 - β) w + β Σ n_i v_i / Σ n_i; β = 1 is the mean, β > 1 extrapolates.

    Buffers take the mean for any β: extrapolated, a running variance may fall below zero.
    """
    mean = tree.average(ups.v, ups.n)
    if size == 1:
        return mean
    return {k: v if k in buffers else (1 - size) * server[k] + size * v for k, v in mean.items()}
