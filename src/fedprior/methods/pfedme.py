"""pFedMe: personal models by a Moreau envelope around the local model.

T. Dinh, Tran & Nguyen, NeurIPS 2020: Algorithm 1, Eqs. 2, 5-7.

    personal    θ ≈ argmin f_i(θ) + λ/2 ‖θ - v‖², K gradient steps on one batch
    local       v ← v - η λ (v - θ), η the learning rate of the local training
    server      w ← (1 - β) w + β Σ n_i v_i / Σ n_i

All clients train, a sample reports. Variants in use: θ restarts from v at each batch (`restart="v"`, pFedBreD's code)
or continues from the last θ, taken from w when a round begins (`restart="theta"`, the authors' code); the authors' code
also adds 0.001 θ to the prox step and does not shuffle, which we do not.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from fedprior import tree
from fedprior.data.client import Batch, ClientData, fold
from fedprior.methods import _envelope as envelope
from fedprior.methods._envelope import Client, Envelope, Run, Up
from fedprior.protocol import About, Hints, Logs, Weights, register
from fedprior.rng import Keys
from fedprior.tree import Params


@register
class PFedMe(Envelope):
    """Moreau envelopes."""

    about = About(
        name="pfedme",
        title="pFedMe",
        paper="T. Dinh, Tran & Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS",
        year=2020,
        group="regularised",
        personal="the whole network",
        moment="after local training",
        private=("theta",),
    )
    hints = Hints(everyone_trains=True)

    restart: Annotated[Literal["v", "theta"], Field(description="where the prox solver starts at each batch")] = "v"

    @property
    def memoryless(self) -> bool:
        """θ restarts from w every round."""
        return True

    def run_step(self, run: Run, nothing: Params, batch: Batch, keys: Keys) -> Run:
        """One mini-batch: prox, then a step on the envelope."""
        metric = envelope.euclidean(self.task, run.v)
        start = run.v if self.restart == "v" else run.theta
        theta, value = envelope.prox(
            self.task, start, run.v, metric, batch, strength=self.strength, lr=self.prox_step(), steps=self.prox_steps
        )
        grads = envelope.envelope_gradient(self.task, run.v, theta, metric, self.strength)
        self.train.make().update(run.v, grads, run.state)
        return run._replace(v=envelope.with_buffers(self.task, run.v, theta), theta=theta, total=run.total + value)

    def local_update(self, client: Client, down: Weights, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """From w: a prox and a step per batch  (Alg. 1)."""
        state = self.train.make().init(self.task.parameters(down.w))
        first = envelope.start(Client(down.w, down.w), down.w, state, data, self.task.dtype)
        budget = self.train.budget(self.task)
        done = fold(self.run_step, first, {}, data, keys.fold("descend"), budget)
        steps = torch.tensor([max(1, budget.length(n)) for n in data.size])
        gap = tree.sqdist(self.task.parameters(done.theta), self.task.parameters(done.v)).sqrt()
        return Client(done.theta, done.v), Up(done.v, data.n), {"loss": done.total / steps, "gap": gap}
