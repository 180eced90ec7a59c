"""IFCA: several global models; each client trains the one that fits its data best.

Ghosh, Chung, Yin & Ramchandran, NeurIPS 2020, Algorithm 1 (model averaging).

    client    m = argmin_m f_i(x_m) on its training data; trains x_m; sends it with m
    server    x_m = mean of its clients' models, weighted by example counts; a model that nobody chose is kept

The models must differ at the start: independent initial weights, the first being the common ones. In the first
`warm_up` rounds clients are assigned to the models at random, again in every round (the authors' FEMNIST code splits
the clients once). `share_base` averages all but the head over everyone, the authors' recipe where clusters are
ambiguous.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.protocol import About, Logs, Method, Weights, register
from fedprior.rng import Key, Keys
from fedprior.training import descend
from fedprior.tree import Params


class Server(NamedTuple):
    """The k models, and the number of rounds so far."""

    x: Params  # [k, ...]
    round: Tensor  # [] int64


class Client(NamedTuple):
    """The chosen model."""

    choice: Tensor  # [C] int64


class Up(NamedTuple):
    """A trained model, which one it is, and the example count."""

    x: Params
    choice: Tensor  # [C] int64
    n: Tensor  # [C] float64


@register
class IFCA(Method[Server, Client, Server, Up, Weights]):
    """Iterative clustering."""

    about = About(
        name="ifca",
        title="IFCA",
        paper="Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS",
        year=2020,
        group="clustered",
        personal="the choice of a cluster",
        moment="after aggregation",
    )

    clusters: Annotated[int, Field(ge=1, description="k, number of models")] = 2
    warm_up: Annotated[
        int,
        Field(ge=0, description="number of first rounds with a random assignment", json_schema_extra={"others": [0]}),
    ] = 5
    share_base: Annotated[bool, Field(description="one base for all, a head per cluster")] = False

    def best(self, down: Server, data: ClientData) -> Tensor:
        """The model with the smallest training loss, [C]."""
        losses = [self.task.data_nll(tree.map(lambda v, m=m: v[:, m], down.x), data) for m in range(self.clusters)]
        return torch.stack(losses).nan_to_num(nan=torch.inf).argmin(0)  # a diverged model is never chosen

    def pick(self, down: Server, choice: Tensor) -> Params:
        """Each client's model out of the k, [C, ...]."""
        rows = torch.arange(len(choice))
        return tree.map(lambda v: v[rows, choice], down.x)

    def objective(self, w: Params, nothing: Params, batch: Batch) -> Tensor:
        """f_i(w)."""
        return self.task.nll(w, batch)

    def init_server(self, key: Key, clients: int = 1) -> Server:
        """Independent initial weights; the first model has the common ones."""
        models = [self.task.init(key.fold("init") if m == 0 else key.fold("init", m)) for m in range(self.clusters)]
        x = {k: torch.stack([model[k] for model in models]) for k in models[0]}
        if self.share_base:
            base, _ = self.task.split(x)
            x = {k: v[:1].expand_as(v).clone() if k in base else v for k, v in x.items()}
        return Server(x, torch.tensor(0))

    def broadcast(self, server: Server, ids: Tensor) -> Server:
        """All k models."""
        return server

    def init_client(self, down: Server, data: ClientData, keys: Keys) -> Client:
        """The best model for its data."""
        return Client(self.best(down, data))

    def local_update(self, client: Client, down: Server, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """Choose, then train the chosen one."""
        choice = self.best(down, data)
        dealt = torch.tensor([key.fold("cluster").word % self.clusters for key in keys.fold("warm up")])
        choice = torch.where(down.round < self.warm_up, dealt, choice)
        x, loss = descend(self.task, self.train, self.objective, self.pick(down, choice), {}, data, keys)
        return Client(choice), Up(x, choice, data.n), {"loss": loss, "cluster": choice}

    def aggregate(self, server: Server, ups: Up, ids: Tensor) -> Server:
        """A mean per cluster; an empty cluster keeps its model."""
        means = []
        for m in range(self.clusters):
            mine = ups.choice == m
            chosen = bool(mine.any())
            means.append(tree.average(tree.index(ups.x, mine), ups.n[mine]) if chosen else tree.index(server.x, m))
        x = {k: torch.stack([mean[k] for mean in means]) for k in means[0]}
        if self.share_base:
            base, _ = self.task.split(tree.average(ups.x, ups.n))
            x |= {k: v.expand(self.clusters, *v.shape).clone() for k, v in base.items()}
        return Server({k: x[k] for k in sorted(x)}, server.round + 1)

    def personalise(self, client: Client, down: Server, data: ClientData, keys: Keys) -> Weights:
        """The model that fits the client's training data best now."""
        return Weights(self.pick(down, self.best(down, data)))
