"""FedEM: every client's data come from a mixture of M shared components, with its own mixture weights.

Marfoq, Neglia, Bellet, Kameni & Vidal, NeurIPS 2021, Algorithm 1.

    E-step    q_im ∝ π_m p(y_i | x_i, θ_m) for every training example
    M-step    π_m = mean_i q_im;   θ_m by SGD on mean_i q_im · (-log p(y_i | x_i, θ_m))
    server    θ_m = Σ n_k θ_mk / Σ n_k
    predict   Σ_m π_m p(y | x, θ_m): probabilities are mixed, not logits

The objective of θ_m divides by the batch's size, not by Σ_i q_im, as in the authors' code: its gradient, and with plain
SGD its step, is about π_m times that of a network which has the examples to itself, so that M components learn about M
times slower at the same learning rate (Adam is not affected). The components start at different weights, the first at
the common ones. `damped` is the official averaging, in which clients that are not sampled contribute the old model:
from the first round on, those that never reported with the mean count of the reporters, since theirs is not known.
Buffers of batch normalisation follow their component.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.models.task import EVALUATION_BATCH
from fedprior.protocol import About, Logs, Method, register
from fedprior.rng import Key, Keys
from fedprior.training import descend
from fedprior.tree import Params


class Server(NamedTuple):
    """The M components, and the examples of all clients that ever reported."""

    theta: Params  # [M, ...]
    known: Tensor  # [N] float64, example counts, 0 until a client reports


class Down(NamedTuple):
    """The M components."""

    theta: Params  # [M, ...]


class Client(NamedTuple):
    """Mixture weights."""

    pi: Tensor  # [C, M] float64


class Up(NamedTuple):
    """The M components as trained here, and the example count."""

    theta: Params  # [C, M, ...]
    n: Tensor  # [C] float64


class Personal(NamedTuple):
    """A mixture of networks."""

    theta: Params  # [C, M, ...]
    pi: Tensor  # [C, M] float64


@register
class FedEM(Method[Server, Client, Down, Up, Personal]):
    """Expectation-maximisation over a mixture of components."""

    about = About(
        name="fedem",
        title="FedEM",
        paper="Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS",
        year=2021,
        group="mixture",
        personal="mixture weights",
        moment="after aggregation",
        private=("pi",),
    )

    components: Annotated[int, Field(ge=1, description="M, number of components")] = 3
    damped: Annotated[bool, Field(description="clients that do not report contribute the old components")] = False

    def component(self, theta: Params, m: int) -> Params:
        """Component m of a stack [C, M, ...]."""
        return {k: v[:, m] for k, v in theta.items()}

    @torch.no_grad()
    def responsibilities(self, theta: Params, pi: Tensor, data: ClientData) -> Tensor:
        """q [C, N, M] over all training examples in order, in evaluation mode; rows sum to one, padding has zeros."""
        parts = []
        for batch in data.batches(EVALUATION_BATCH):
            losses = [self.task.losses(self.component(theta, m), batch, train=False) for m in range(self.components)]
            q = (pi.log().unsqueeze(1) - torch.stack(losses, 2).double()).softmax(2)
            parts.append(q * (batch.weight > 0).unsqueeze(2))
        return torch.cat(parts, 1)

    def init_server(self, key: Key, clients: int = 1) -> Server:
        """Components with different initial weights."""
        models = [self.task.init(key.fold("init") if m == 0 else key.fold("init", m)) for m in range(self.components)]
        theta = {k: torch.stack([model[k] for model in models]) for k in models[0]}
        return Server(theta, torch.zeros(clients, dtype=torch.float64))

    def broadcast(self, server: Server, ids: Tensor) -> Down:
        """All components."""
        return Down(server.theta)

    def init_client(self, down: Down, data: ClientData, keys: Keys) -> Client:
        """Equal weights."""
        return Client(torch.full((len(data), self.components), 1 / self.components, dtype=torch.float64))

    def local_update(self, client: Client, down: Down, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """One E-step, one M-step."""
        q = self.responsibilities(down.theta, client.pi, data)
        pi = q.sum(1) / data.n[:, None]
        trained, total = [], torch.zeros(len(data), dtype=self.task.dtype)
        for m in range(self.components):
            share = q[:, :, m].to(self.task.dtype)

            def objective(w: Params, share: Tensor, batch: Batch) -> Tensor:
                weight = share.gather(1, batch.place) * batch.weight
                return (self.task.losses(w, batch) * weight).sum(1)

            w, loss = descend(self.task, self.train, objective, self.component(down.theta, m), share, data, keys)
            trained.append(w)
            total += loss
        theta = {k: torch.stack([w[k] for w in trained], 1) for k in trained[0]}
        logs: dict[str, Any] = {"loss": total, "largest_weight": pi.max(1).values}
        return Client(pi), Up(theta, data.n), logs

    def aggregate(self, server: Server, ups: Up, ids: Tensor) -> Server:
        """Component by component, weighted by example counts."""
        mean, known = tree.average(ups.theta, ups.n), server.known.index_copy(0, ids, ups.n)
        if self.damped:
            counted = torch.where(known > 0, known, ups.n.mean())
            share = float(ups.n.sum() / counted.sum())
            mean = tree.map(lambda old, new: old + share * (new - old), server.theta, mean)
        return Server(mean, known)

    def personalise(self, client: Client, down: Down, data: ClientData, keys: Keys) -> Personal:
        """The newest components, with weights fitted to them on the training data."""
        q = self.responsibilities(down.theta, client.pi, data)
        return Personal(down.theta, q.sum(1) / data.n[:, None])

    def predict(self, personal: Personal, x: Tensor, keys: Keys) -> Tensor:
        """The mixture's distribution."""
        each = [self.task.predictive(self.component(personal.theta, m), x) for m in range(self.components)]
        log_pi = personal.pi.log().to(each[0].dtype)  # [C, M]
        return self.task.likelihood.mix(torch.stack(each), log_pi.T.unsqueeze(2))

    def predict_global(self, server: Server, x: Tensor) -> Tensor:
        """Equal weights of all components."""
        pi = torch.full((1, self.components), 1 / self.components, dtype=torch.float64)
        personal = Personal(tree.expand(server.theta, 1), pi)
        return self.predict(personal, x.unsqueeze(0), Keys.of(Key(0), ["global"])).squeeze(0)
