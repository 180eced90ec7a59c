"""SCAFFOLD: control variates that correct the drift of local steps.

Karimireddy, Kale, Mohri, Reddi, Stich & Suresh, ICML 2020, Algorithm 1, Option II, server step 1.

    client    y ← y - η (∇f_k(y) - c_k + c), K_k steps from x;   c_k⁺ = c_k - c + (x - y) / (K_k η)
    server    x ← x + mean_S (y_k - x);   c ← c + (1/N) Σ_S (c_k⁺ - c_k),   N all clients

K_k is each client's true number of steps, since sizes differ. The correction is a linear term in the objective. Plain
SGD only: with momentum, c_k⁺ is no longer the mean of the client's gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.protocol import About, Hints, Logs, Method, Weights, register
from fedprior.rng import Key, Keys
from fedprior.training import descend
from fedprior.tree import Params


class Server(NamedTuple):
    """Model, control variate, and the number of all clients."""

    x: Params
    c: Params
    clients: Tensor  # [] int64


class Down(NamedTuple):
    """Model and control variate."""

    x: Params
    c: Params


class Client(NamedTuple):
    """The client's own control variate."""

    c: Params


class Up(NamedTuple):
    """The change of the model and of the control variate."""

    dx: Params
    dc: Params


@register
class Scaffold(Method[Server, Client, Down, Up, Weights]):
    """Stochastic controlled averaging."""

    about = About(
        name="scaffold",
        title="SCAFFOLD",
        paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML",
        year=2020,
        group="baseline",
        personal="a control variate",
        moment="after aggregation",
    )
    hints = Hints(plain_sgd=True)

    def objective(self, y: Params, drift: Params, batch: Batch) -> Tensor:
        """f_k(y) + ⟨c - c_k, y⟩, whose gradient is the corrected one."""
        nll = self.task.nll(y, batch)
        return nll + torch.stack([(drift[k] * y[k]).flatten(1).sum(1) for k in drift]).sum(0)

    def init_server(self, key: Key, clients: int = 1) -> Server:
        """Common initial weights, no control yet."""
        x = self.task.init(key.fold("init"))
        return Server(x, tree.zeros_like(self.task.parameters(x)), torch.tensor(clients))

    def broadcast(self, server: Server, ids: Tensor) -> Down:
        """Model and control variate."""
        return Down(server.x, server.c)

    def init_client(self, down: Down, data: ClientData, keys: Keys) -> Client:
        """c_k = 0."""
        return Client(tree.zeros_like(tree.clone(down.c)))

    def local_update(self, client: Client, down: Down, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """Corrected steps, then Option II."""
        drift = tree.map(torch.sub, down.c, client.c)
        plain = self.train.plain()
        y, loss = descend(self.task, self.train, self.objective, down.x, drift, data, keys, plain)
        budget = self.train.budget(self.task)
        scale = torch.tensor([1 / (max(1, budget.length(n)) * plain.lr) for n in data.size], dtype=self.task.dtype)
        trained = torch.tensor([budget.length(n) > 0 for n in data.size])  # no steps, no update
        moved = {k: down.x[k] - y[k] for k in drift}
        steps = {k: m * scale.view(-1, *[1] * (m.dim() - 1)) for k, m in moved.items()}
        new = tree.map(lambda own, d, s: s - d, client.c, drift, steps)  # c_k - c + (x - y)/(K η), drift = c - c_k
        new = _where(trained, new, client.c)
        return Client(new), Up(tree.map(torch.sub, y, down.x), tree.map(torch.sub, new, client.c)), {"loss": loss}

    def aggregate(self, server: Server, ups: Up, ids: Tensor) -> Server:
        """Uniform means, over the reporters for x and over all clients for c."""
        each = torch.ones(len(ids), dtype=torch.float64)
        x = tree.map(torch.add, server.x, tree.average(ups.dx, each))
        share = each.sum() / server.clients
        c = tree.map(lambda old, change: old + share.to(old.dtype) * change, server.c, tree.average(ups.dc, each))
        return Server(x, c, server.clients)

    def personalise(self, client: Client, down: Down, data: ClientData, keys: Keys) -> Weights:
        """The global model."""
        return Weights(down.x)

    def predict_global(self, server: Server, x: Tensor) -> Tensor:
        """The global model."""
        return self.task.predictive_shared(server.x, x)


def _where(chosen: Tensor, value: Params, other: Params) -> Params:
    """Each client's value where chosen, otherwise the other."""
    return tree.map(lambda v, o: torch.where(chosen.view(-1, *[1] * (v.dim() - 1)), v, o), value, other)
