"""Methods made of methods: fine-tuning before prediction, a longer step or an optimiser at the server.

`fedavg+ft`, `pfedbred+ft+server_step`: a wrapper changes one function of the protocol and passes the rest through, so
wrappers can be combined with each other and with any suitable method. Options have the wrapper's name in front:
`method.ft.steps=20`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior import tree
from fedprior.calibration import Calibrated
from fedprior.data.client import Batch, ClientData
from fedprior.errors import FedpriorError
from fedprior.guards import Krum, Median, NormBound, Private, Trimmed
from fedprior.protocol import About, AnyMethod, Types, Weights
from fedprior.rng import Key, Keys
from fedprior.training import Train, descend, descend_head
from fedprior.tree import Params
from fedprior.wrapping import Wrapper


@dataclass(frozen=True, kw_only=True)
class FineTuned(Wrapper):
    """FT: each client takes plain gradient steps from its personal model before it predicts; its state does not change.

    pFedBreD's paper names the trick without defining it; the steps here are as many as its local iterations.
    """

    inner: AnyMethod
    steps: Annotated[int, Field(ge=0, description="steps of fine-tuning; 0 changes nothing")] = 20
    lr: Annotated[float, Field(gt=0, description="learning rate of fine-tuning")] = 0.01
    batch_size: Annotated[int, Field(ge=1, description="examples per step")] = 20
    epochs: Annotated[int | None, Field(ge=0, description="passes over the client's data; replaces steps")] = None
    part: Annotated[
        Literal["all", "head"], Field(description="what is fine-tuned: the whole network, or its head behind the base")
    ] = "all"

    def __post_init__(self) -> None:
        if self.inner.types[-1] is not Weights:
            raise FedpriorError(
                f"'{self.inner.about.name}+ft' is not possible: the personal model of {self.inner.about.title} is not "
                "a plain network that could be fine-tuned."
            )

    def describe(self, inner: About) -> About:
        """A fine-tuned copy."""
        return inner._replace(
            name=f"{inner.name}+ft", title=f"{inner.title}+FT", personal=f"{inner.personal}, fine-tuned"
        )

    @property
    def trajectory(self) -> str:
        """The inner method's: training does not see the fine-tuned copies."""
        return self.inner.trajectory

    def objective(self, w: Params, nothing: Params, batch: Batch) -> Tensor:
        """The mean loss of `w` on a `batch`, [C], and `nothing` else."""
        return self.task.nll(w, batch)

    def aggregate(self, server: Any, ups: Any, ids: Tensor) -> Any:
        """The inner method's."""
        return self.inner.aggregate(server, ups, ids)

    def personalise(self, client: Any, down: Any, data: ClientData, keys: Keys) -> Weights:
        """The inner method's personal model, fine-tuned."""
        own: Weights = self.inner.personalise(client, down, data, keys)
        train = Train(lr=self.lr, batch_size=self.batch_size, steps=self.steps).lasting(self.epochs)
        if self.part == "all":
            return Weights(descend(self.task, train, self.objective, own.w, {}, data, keys.fold("ft"))[0])
        base, head = self.task.split(own.w)
        tuned = base | descend_head(self.task, train, head, base, data, keys.fold("ft"))[0]
        return Weights({k: tuned[k] for k in own.w})


@dataclass(frozen=True, kw_only=True)
class Extrapolated(Wrapper):
    """The server's step is `step` times as long as the method's, w ← w + β (w' - w).

    pFedBreD's paper calls it AM; β = 2 in its scripts. Buffers are excluded, since a running variance could fall below
    zero.
    """

    inner: AnyMethod
    step: Annotated[float, Field(gt=0, description="β; 1 changes nothing, above 1 extrapolates, below 1 damps")] = 2.0

    def __post_init__(self) -> None:
        _needs_plain_server(self.inner, "server_step")

    def describe(self, inner: About) -> About:
        """A longer step."""
        return inner._replace(name=f"{inner.name}+server_step", title=f"{inner.title}+server step")

    def aggregate(self, server: Any, ups: Any, ids: Tensor) -> Any:
        """The inner method's step, lengthened; buffers are as the inner method has them."""
        new: Params = self.inner.aggregate(server, ups, ids).w
        further = {k: server.w[k] + self.step * (v - server.w[k]) for k, v in self.task.parameters(new).items()}
        return Weights({k: further.get(k, v) for k, v in new.items()})

    def personalise(self, client: Any, down: Any, data: ClientData, keys: Keys) -> Any:
        """The inner method's."""
        return self.inner.personalise(client, down, data, keys)


DEFAULT_LR = {"momentum": 1.0, "adam": 0.03, "yogi": 0.03, "adagrad": 0.1}
"""η of a server's optimiser, by rule."""


class Moments(NamedTuple):
    """A server with an optimiser: the weights and the moments of their changes."""

    w: Params
    first: Params
    second: Params


@dataclass(frozen=True, kw_only=True)
class Optimised(Wrapper):
    """OPT: an optimiser at the server uses the method's change as its gradient.

    Hsu et al. 2019 (momentum), Reddi et al., ICLR 2021, Algorithm 2 (FedAdagrad, FedAdam, FedYogi): with Δ = w' - w,

        m ← β₁ m + (1-β₁) Δ;   v ← v + Δ² | β₂ v + (1-β₂) Δ² | v - (1-β₂) Δ² sign(v - Δ²);   w ← w + η m / (√v + τ)

    and for momentum m ← β₁ m + Δ, w ← w + η m. The adaptive rules move every weight by up to η per round, however small
    Δ is, so η = 1, which suits momentum, is far too large for them: `lr` has a default for each rule (`DEFAULT_LR`).
    They were chosen on validation data among 0.003 to 0.3: the best mean accuracy of those whose NLL is no worse than
    without the wrapper (docs/methods/index.md).
    """

    inner: AnyMethod
    rule: Annotated[Literal["momentum", "adam", "yogi", "adagrad"], Field(description="the server's optimiser")] = (
        "momentum"
    )
    lr: Annotated[
        float | None,
        Field(gt=0, description="η of the server; by default 1 (momentum), 0.03 (adam, yogi) or 0.1 (adagrad)"),
    ] = None
    beta1: Annotated[float, Field(ge=0, lt=1, description="β₁")] = 0.9
    beta2: Annotated[
        float, Field(ge=0, lt=1, description="β₂ (adam, yogi)", json_schema_extra={"alive_with": {"rule": "adam"}})
    ] = 0.99
    tau: Annotated[
        float,
        Field(gt=0, description="τ (adam, yogi, adagrad)", json_schema_extra={"alive_with": {"rule": "adam"}}),
    ] = 1e-3

    def __post_init__(self) -> None:
        _needs_plain_server(self.inner, "opt")

    @property
    def step(self) -> float:
        """η."""
        return DEFAULT_LR[self.rule] if self.lr is None else self.lr

    def describe(self, inner: About) -> About:
        """An optimiser at the server."""
        return inner._replace(name=f"{inner.name}+opt", title=f"{inner.title}+{self.rule}")

    @property
    def types(self) -> Types:
        """The inner method's, with moments at the server."""
        return (Moments, *self.inner.types[1:])

    def init_server(self, key: Key, clients: int = 1) -> Moments:
        """No moments yet."""
        w = self.inner.init_server(key, clients).w
        parameters = self.task.parameters(w)
        second = tree.zeros_like(parameters) if self.rule != "momentum" else {}
        return Moments(w, tree.zeros_like(parameters), second)

    def broadcast(self, server: Moments, ids: Tensor) -> Any:
        """The inner method's message."""
        return self.inner.broadcast(Weights(server.w), ids)

    def aggregate(self, server: Moments, ups: Any, ids: Tensor) -> Moments:
        """A step of the optimiser; buffers are as the inner method has them."""
        new: Params = self.inner.aggregate(Weights(server.w), ups, ids).w
        w, first, second = dict(new), {}, {}
        for k, m in server.first.items():
            change = new[k] - server.w[k]
            if self.rule == "momentum":
                first[k] = self.beta1 * m + change
                w[k] = server.w[k] + self.step * first[k]
                continue
            first[k], square, v = self.beta1 * m + (1 - self.beta1) * change, change.square(), server.second[k]
            second[k] = {
                "adagrad": v + square,
                "adam": self.beta2 * v + (1 - self.beta2) * square,
                "yogi": v - (1 - self.beta2) * square * torch.sign(v - square),
            }[self.rule]
            w[k] = server.w[k] + self.step * first[k] / (second[k].sqrt() + self.tau)
        return Moments(w, first, second)

    def personalise(self, client: Any, down: Any, data: ClientData, keys: Keys) -> Any:
        """The inner method's."""
        return self.inner.personalise(client, down, data, keys)

    def predict_global(self, server: Moments, x: Tensor) -> Tensor | None:
        """The inner method's, at the server's weights."""
        return self.inner.predict_global(Weights(server.w), x)


def _needs_plain_server(inner: AnyMethod, name: str) -> None:
    if inner.types[0] is not Weights:
        raise FedpriorError(
            f"'{inner.about.name}+{name}' is not possible: the server of {inner.about.title} holds more than the "
            "weights of a network."
        )


WRAPPERS: dict[str, type[Any]] = {
    "cal": Calibrated,
    "dp": Private,
    "ft": FineTuned,
    "krum": Krum,
    "median": Median,
    "normbound": NormBound,
    "server_step": Extrapolated,
    "opt": Optimised,
    "trimmed": Trimmed,
}
"""Wrappers by the name after the `+`."""

ALIASES = {"am": "server_step"}
"""Former names of wrappers: old -> new."""
