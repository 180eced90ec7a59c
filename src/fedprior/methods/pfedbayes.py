"""pFedBayes: a Gaussian over the whole network for each client, tied to a global Gaussian.

Zhang, Li, Li, Guo & Shi, ICML 2022, Algorithm 1, Eqs. 4-7.

    client    personal q_k and a local copy p_k of the global distribution, each N(μ, softplus(ρ)²) per weight
    per batch q ← step on n · NLL(batch mean, drawn weights) + ζ KL(q ‖ p);   p ← step on ζ KL(q ‖ p)
    server    mean of the p_k's parameters

No official code: one unofficial public version draws noise a thousand times too small and divides the KL by the
number of steps. Here noise is standard, and the objective is divided by n so that learning rates are those of
other methods: NLL + ζ KL / n. A step draws one network (the paper averages several), and the server takes the mean
without the paper's step β. Personal q is never reset. Prediction at the mean, or by model averaging. A step on the KL
multiplies the distance of the means by 1 - lr ζ / (n σ²), so that SGD would diverge at clients with few examples: there
the KL's weight ζ / n is bounded.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.bayes.gaussian import inverse_softplus
from fedprior.data.client import Batch, ClientData, fold
from fedprior.errors import FedpriorWarning
from fedprior.models.likelihood import equal_weights
from fedprior.optim import Optimizer
from fedprior.protocol import About, Hints, Logs, Method, register
from fedprior.rng import Key, Keys
from fedprior.training import take_step
from fedprior.tree import Params

BOUNDED = (
    "pFedBayes bounds the weight of the KL at clients with few examples, where steps of SGD would diverge: raise "
    "method.scale, lower train.lr, or use train.optimizer=adam."
)


class Gaussian(NamedTuple):
    """A distribution over networks: server state, message and personal model. Buffers are among the means."""

    mu: Params
    rho: Params


class Up(NamedTuple):
    """The local copy of the global distribution, and the example count."""

    mu: Params
    rho: Params
    n: Tensor  # [C] float64


class Run(NamedTuple):
    """What a local run carries."""

    q: Params  # mu/… and rho/…
    p: Params
    q_state: Any
    p_state: Any
    total: Tensor


@register
class PFedBayes(Method[Gaussian, Gaussian, Gaussian, Up, Gaussian]):
    """Variational inference of whole networks."""

    about = About(
        name="pfedbayes",
        title="pFedBayes",
        paper="Zhang et al., Personalized Federated Learning via Variational Bayesian Inference, ICML",
        year=2022,
        group="Bayesian prior",
        personal="a Gaussian over the whole network",
        moment="after local training",
        private=("mu", "rho"),
    )
    hints = Hints(everyone_trains=True)

    zeta: Annotated[float, Field(ge=0, description="ζ, weight of the KL")] = 0.5
    scale: Annotated[
        float,
        Field(
            gt=0,
            description="initial standard deviation σ₀ of every weight; ζ / n is at most σ₀² / lr with SGD",
        ),
    ] = 0.1
    prediction: Annotated[Literal["mean", "bma"], Field(description="posterior mean, or model averaging")] = "mean"
    prediction_draws: Annotated[
        int,
        Field(ge=1, description="networks averaged by bma", json_schema_extra={"alive_with": {"prediction": "bma"}}),
    ] = 10

    def kl(self, q: Params, p: Params) -> Tensor:
        """KL(q ‖ p) of each client, [C]."""
        total: Tensor = torch.zeros(())
        for name in (k.removeprefix("rho/") for k in q if k.startswith("rho/")):
            s, t = F.softplus(q[f"rho/{name}"]), F.softplus(p[f"rho/{name}"])
            gap = q[f"mu/{name}"] - p[f"mu/{name}"]
            each = (t / s).log() + (s.square() + gap.square()) / (2 * t.square()) - 0.5
            total = total + each.flatten(1).sum(1)
        return total

    def drawn(self, q: Params, keys: Keys) -> Params:
        """One network per client, μ + σ ε; buffers as they are."""
        means = {k.removeprefix("mu/"): v for k, v in q.items() if k.startswith("mu/")}
        w = {}
        for name, mu in means.items():
            rho = q.get(f"rho/{name}")
            noise = None if rho is None else keys.fold(name).normal(*mu.shape[1:], dtype=mu.dtype)
            w[name] = mu if rho is None or noise is None else mu + F.softplus(rho) * noise
        return w

    def kl_weight(self, n: Tensor) -> Tensor:
        """ζ / n, but with SGD at most half of what makes the means overshoot further with every step, [C]."""
        steepest = self.train.steepest
        return self.zeta / n if steepest is None else (self.zeta / n).clamp(max=self.scale**2 * steepest / 2)

    def optimizer(self) -> Optimizer:
        """Without weight decay, which applies only to the personal means, as a term of their objective."""
        return replace(self.train, weight_decay=0.0).make()

    def step(self, run: Run, weight: Tensor, batch: Batch, keys: Keys) -> Run:
        """One batch: the personal distribution, then the local copy of the global one."""
        optimizer, skip = self.optimizer(), frozenset(f"mu/{k}" for k in self.task.buffers)
        decay = self.train.weight_decay

        def personal(q: Params, p: Params, b: Batch) -> Tensor:
            value = self.task.nll(self.drawn(q, keys), b) + weight * self.kl(q, p)
            means = [q[f"mu/{k.removeprefix('rho/')}"] for k in q if k.startswith("rho/")]
            return value + decay / 2 * sum(m.square().flatten(1).sum(1) for m in means) if decay else value

        def shared(p: Params, q: Params, b: Batch) -> Tensor:
            return weight * self.kl(q, p)

        value = take_step(optimizer, personal, run.q, run.q_state, run.p, batch, skip)
        take_step(optimizer, shared, run.p, run.p_state, run.q, batch, skip)
        return run._replace(total=run.total + value)

    def init_server(self, key: Key, clients: int = 1) -> Gaussian:
        """Around the common initial weights."""
        mu = self.task.init(key.fold("init"))
        start = inverse_softplus(self.scale)
        return Gaussian(mu, {k: torch.full_like(v, start) for k, v in self.task.parameters(mu).items()})

    def broadcast(self, server: Gaussian, ids: Tensor) -> Gaussian:
        """The global distribution."""
        return server

    def init_client(self, down: Gaussian, data: ClientData, keys: Keys) -> Gaussian:
        """q = p."""
        return down

    def local_update(self, client: Gaussian, down: Gaussian, data: ClientData, keys: Keys) -> tuple[Gaussian, Up, Logs]:
        """q continues, p starts from the received distribution."""
        optimizer, budget = self.optimizer(), self.train.budget(self.task)
        q, p = _flat(client), _flat(down)
        trained = {k: v for k, v in q.items() if k.removeprefix("mu/") not in self.task.buffers}
        state, zero = optimizer.init(trained), torch.zeros(len(data), dtype=self.task.dtype)
        weight = self.kl_weight(data.n.to(self.task.dtype))
        if bool((weight * data.n < 0.99 * self.zeta).any()):
            warnings.warn(BOUNDED, FedpriorWarning, stacklevel=2)
        done = fold(self.step, Run(q, p, state, state, zero), weight, data, keys.fold("descend"), budget)
        steps = torch.tensor([max(1, budget.length(m)) for m in data.size])
        own, shared = _gaussian(done.q), _gaussian(done.p)
        statistics = {k: v for k, v in own.mu.items() if k in self.task.buffers}  # they are trained with q only
        shared = shared._replace(mu={k: statistics.get(k, v) for k, v in shared.mu.items()})
        logs = {"loss": done.total / steps, "kl": self.kl(done.q, done.p).detach()}
        return own, Up(shared.mu, shared.rho, data.n), logs

    def aggregate(self, server: Gaussian, ups: Up, ids: Tensor) -> Gaussian:
        """The mean of the parameters μ and ρ, by example counts."""
        return Gaussian(tree.average(ups.mu, ups.n), tree.average(ups.rho, ups.n))

    def personalise(self, client: Gaussian, down: Gaussian, data: ClientData, keys: Keys) -> Gaussian:
        """The client's own distribution."""
        return client

    @torch.no_grad()
    def predict(self, personal: Gaussian, x: Tensor, keys: Keys) -> Tensor:
        """At the mean, or averaging the probabilities of drawn networks."""
        if self.prediction == "mean":
            return self.task.predictive(personal.mu, x)
        flat = _flat(personal)
        each = [self.task.predictive(self.drawn(flat, keys.fold("bma", k)), x) for k in range(self.prediction_draws)]
        return self.task.likelihood.mix(torch.stack(each), equal_weights(len(each), x.dtype))

    def predict_global(self, server: Gaussian, x: Tensor) -> Tensor:
        """The mean of the global distribution."""
        return self.task.predictive_shared(server.mu, x)


def _flat(g: Gaussian) -> Params:
    return {f"mu/{k}": v for k, v in g.mu.items()} | {f"rho/{k}": v for k, v in g.rho.items()}


def _gaussian(flat: Params) -> Gaussian:
    parts = ({k.removeprefix(f"{p}/"): v for k, v in flat.items() if k.startswith(f"{p}/")} for p in ("mu", "rho"))
    return Gaussian(*parts)
