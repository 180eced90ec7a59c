"""pFedMe: personal models by a Moreau envelope around the local model.

T. Dinh, Tran & Nguyen, NeurIPS 2020: Algorithm 1, Eqs. 2, 5-7.

    personal    θ ≈ argmin f_i(θ) + λ/2 ‖θ - v‖², K gradient steps on one batch
    local       v ← v - η λ (v - θ), η the learning rate of the local training
    server      w ← (1 - β) w + β Σ n_i v_i / Σ n_i

Everyone trains, a sample reports. Variants in use: θ restarts from v at each batch (`restart="v"`, pFedBreD's code) or
goes on from the last θ, taken from w when a round begins (`restart="theta"`, the authors' code); the authors' code also
adds 0.001 θ to the prox step and does not shuffle, which we do not.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData, fold
from fedprior.methods import _envelope as envelope
from fedprior.methods._envelope import Client, Run, Up
from fedprior.protocol import About, Logs, Method, Weights, register
from fedprior.rng import Key, Keys
from fedprior.tree import Params


@register
@dataclass(frozen=True, kw_only=True)
class PFedMe(Method[Weights, Client, Weights, Up, Weights]):
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
        everyone_trains=True,
    )
    types = (Weights, Client, Weights, Up, Weights)

    strength: Annotated[float, Field(ge=0, description="λ, the pull to the local model")] = 15.0
    prox_lr: Annotated[float, Field(gt=0, description="step of the prox solver; prox_lr · λ must stay below 2")] = 0.01
    prox_steps: Annotated[int, Field(ge=1, description="K, steps of the prox solver per batch")] = 5
    restart: Annotated[Literal["v", "theta"], Field(description="where the prox solver starts at each batch")] = "v"
    server_step: Annotated[float, Field(gt=0, description="β of the server's step")] = 1.0

    def run_step(self, run: Run, nothing: Params, batch: Batch, keys: Keys) -> Run:
        """One mini-batch: prox, then a step on the envelope."""
        metric = envelope.euclidean(self.task, run.v)
        start = run.v if self.restart == "v" else run.theta
        theta, value = envelope.prox(
            self.task, start, run.v, metric, batch, strength=self.strength, lr=self.prox_lr, steps=self.prox_steps
        )
        grads = envelope.envelope_gradient(self.task, run.v, theta, metric, self.strength)
        self.train.make().update(run.v, grads, run.state)
        return run._replace(v=envelope.with_buffers(self.task, run.v, theta), theta=theta, total=run.total + value)

    def init_server(self, key: Key, clients: int = 1) -> Weights:
        """Common initial weights."""
        return Weights(self.task.init(key.fold("init")))

    def broadcast(self, server: Weights, ids: Tensor) -> Weights:
        """w, to everyone."""
        return server

    def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Client:
        """θ = w."""
        return Client(down.w, down.w)

    def local_update(self, client: Client, down: Weights, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """From w: a prox and a step per batch  (Alg. 1)."""
        state = self.train.make().init(self.task.parameters(down.w))
        first = envelope.start(Client(down.w, down.w), down.w, state, data, self.task.dtype)
        budget = self.train.budget(self.task)
        done = fold(self.run_step, first, {}, data, keys.fold("descend"), budget)
        steps = torch.tensor([max(1, budget.length(n)) for n in data.size])
        gap = tree.sqdist(self.task.parameters(done.theta), self.task.parameters(done.v)).sqrt()
        return Client(done.theta, done.v), Up(done.v, data.n), {"loss": done.total / steps, "gap": gap}

    def aggregate(self, server: Weights, ups: Up, ids: Tensor) -> Weights:
        """A step of size β to the mean."""
        return Weights(envelope.mean_step(server.w, ups, self.server_step))

    def personalise(self, client: Client, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """The last θ."""
        return Weights(client.theta)

    def predict(self, personal: Weights, x: Tensor, keys: Keys) -> Tensor:
        """The network's own distribution."""
        return self.task.log_probs(personal.w, x)

    def predict_global(self, server: Weights, x: Tensor) -> Tensor:
        """The shared model."""
        return self.task.log_probs(tree.expand(server.w, 1), x.unsqueeze(0)).squeeze(0)
