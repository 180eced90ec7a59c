"""pFedBreD: a prior centred at a personal point, and its Bregman envelope.

Shi, Zhou, Wang et al. ("PRIOR: Personalized Prior for Reactivating the Information Overlooked in Federated Learning"),
NeurIPS 2023: Algorithm 1, Eqs. 12-14.

    envelope    F_i(v) = min_θ f_i(θ) + λ D(θ, μ_i(v))                   (Eq. 12)
    lg          μ = v - η_a ∇f(v)                                        a step along the local gradient
    meg         μ = v - η (w_last - θ)                                   a step along a remembered envelope gradient
    mh          μ = v - η_a ∇f(v) - η (w_last - θ)                       both  (Eq. 14)
    mh_code     v itself first takes a first-order meta step (two batches), then as meg: the released code
    local       v ← v - α_m λ A (μ - θ): first order, the Jacobian of μ dropped

w_last is the client's own local model at the end of its last round, θ the personal model before this batch. All clients
train, a sample reports. With η = η_a = 0 it is pFedMe. Deviations from the authors' code: a step size of zero is taken
literally (theirs falls back to the learning rate); `lg` uses η_a as the paper says (their lg uses η: set
meta_gradient=0.05); batches are reshuffled each round (their iterator persists).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from fedprior import tree
from fedprior.data.client import Batch, Budget, ClientData, fold
from fedprior.methods import _envelope as envelope
from fedprior.methods._envelope import Client, Envelope, Run, Up
from fedprior.protocol import About, Hints, Logs, Weights, register
from fedprior.rng import Keys
from fedprior.tree import Params

Fixed = dict[str, Params]


@register
class PFedBreD(Envelope):
    """Personalised priors."""

    about = About(
        name="pfedbred",
        title="pFedBreD",
        paper="Shi et al., PRIOR: Personalized Prior for Reactivating the Information Overlooked in Federated "
        "Learning, NeurIPS",
        year=2023,
        group="Bayesian prior",
        personal="the whole network; its last local model",
        moment="after local training",
        private=("theta",),
    )
    hints = Hints(everyone_trains=True)

    variant: Annotated[
        Literal["lg", "meg", "mh", "mh_code"], Field(description="how the prior's centre μ is computed")
    ] = "mh"
    meta_gradient: Annotated[float, Field(ge=0, description="η_a, step along the local gradient (lg, mh, mh_code)")] = (
        0.01
    )
    meta_memory: Annotated[
        float, Field(ge=0, description="η, step along the remembered envelope (meg, mh, mh_code)")
    ] = 0.05
    prox_start: Annotated[
        Literal["auto", "v", "mu", "theta"],
        Field(
            description="where the solver starts; auto: μ for lg, v otherwise",
            json_schema_extra={"others": ["mu", "theta"]},
        ),
    ] = "auto"
    generator: Annotated[
        Literal["euclidean", "scaled"],
        Field(description="D: half the squared distance, or a diagonal Mahalanobis metric by tensor scale"),
    ] = "euclidean"

    @property
    def memoryless(self) -> bool:
        """lg keeps no state unless its solver starts at the last θ."""
        return self.variant == "lg" and self.prox_start != "theta"

    def centre(self, v: Params, client: Client, batch: Batch) -> Params:
        """μ_i(v)  (Eq. 14 and its parts)."""
        mu = envelope.descended(self.task, v, batch, self.meta_gradient) if self.variant in ("lg", "mh") else v
        if self.variant != "lg":
            mu = envelope.step(mu, envelope.difference(self.task, client.w_last, client.theta), self.meta_memory)
        return mu

    def solve(self, run: Run, fixed: Fixed, batch: Batch) -> Run:
        """μ, then θ by the prox solver, then a step of v on the envelope."""
        mu = self.centre(run.v, Client(run.theta, fixed["w_last"]), batch)
        begin = {"lg": "mu"}.get(self.variant, "v") if self.prox_start == "auto" else self.prox_start
        start = {"v": run.v, "mu": mu, "theta": run.theta}[begin]
        metric = fixed["metric"]
        lr = self.prox_step(max(float(a.max()) for a in metric.values()) if self.generator == "scaled" else 1.0)
        theta, value = envelope.prox(
            self.task, start, mu, metric, batch, strength=self.strength, lr=lr, steps=self.prox_steps
        )
        grads = envelope.envelope_gradient(self.task, mu, theta, metric, self.strength)
        shift = tree.sqdist(self.task.parameters(mu), self.task.parameters(run.v)).sqrt()
        self.train.make().update(run.v, grads, run.state)
        v = envelope.with_buffers(self.task, run.v, theta)
        return run._replace(v=v, theta=theta, total=run.total + value, shift=run.shift + shift)

    def run_step(self, run: Run, fixed: Fixed, batch: Batch, keys: Keys) -> Run:
        """One mini-batch; an iteration of `mh_code` takes two."""
        if self.variant != "mh_code":
            return self.solve(run, fixed, batch)
        first = int(run.batches[0]) % 2 == 0
        run = run._replace(batches=run.batches + 1)
        if first:  # B1: look ahead
            return run._replace(look_ahead=envelope.descended(self.task, run.v, batch, self.meta_gradient))
        v = envelope.descended(self.task, run.v, batch, self.meta_gradient, at=run.look_ahead)  # B2 moves v itself
        return self.solve(run._replace(v=v), fixed, batch)

    def budget(self) -> Budget:
        """`mh_code` consumes two batches per iteration."""
        budget = self.train.budget(self.task)
        if self.variant != "mh_code":
            return budget
        return budget._replace(
            epochs=None if budget.epochs is None else 2 * budget.epochs,
            steps=None if budget.steps is None else 2 * budget.steps,
        )

    def metric(self, keys: Keys) -> Params:
        """A, one number per tensor; from the common initial weights, which every client knows."""
        w = self.task.init(keys.root.fold("init"))
        chosen = envelope.per_tensor_scale if self.generator == "scaled" else envelope.euclidean
        return chosen(self.task, w)

    def local_update(self, client: Client, down: Weights, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """From w, with the personal model and the memory of the last round  (Alg. 1)."""
        state = self.train.make().init(self.task.parameters(down.w))
        first = envelope.start(client, down.w, state, data, self.task.dtype)
        metric = {
            k: a.view([1] * down.w[k].dim()).expand(len(data), *[1] * (down.w[k].dim() - 1))
            for k, a in self.metric(keys).items()
        }
        budget = self.budget()
        done = fold(
            self.run_step, first, {"w_last": client.w_last, "metric": metric}, data, keys.fold("descend"), budget
        )
        steps = torch.tensor([max(1, budget.length(n)) for n in data.size]) / (2 if self.variant == "mh_code" else 1)
        logs = {"loss": done.total / steps, "centre_shift": done.shift / steps}
        return Client(done.theta, done.v), Up(done.v, data.n), logs
