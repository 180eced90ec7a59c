"""FedAMP: the server sends each client a mean of all models, weighted by similarity to its own.

Huang, Chu, Zhou, Wang, Liu, Pei & Zhang, AAAI 2021, Algorithm 1, Eqs. 4-6.

    server    ξ_ij = α A'(‖w_i - w_j‖²) for j ≠ i, A'(x) = e^{-x/σ}/σ;  ξ_ii = 1 - Σ_{j≠i} ξ_ij;  u_i = Σ_j ξ_ij w_j
    client    w_i ≈ argmin f_i(w) + λ/(2α) ‖w - u_i‖², from its own w_i

No single σ suits all networks and rounds: models with thousands of weights soon lie so far apart that every ξ_ij
vanishes and nothing is shared. So, unlike in the paper, the server uses units of the current round: squared distances
relative to their mean over all pairs of different clients, and α in units of 1/N,

    ξ_ij = α/N A'(‖w_i - w_j‖² / D),   D = Σ_{i≠j} ‖w_i - w_j‖² / (N (N-1))

so that the others together have a weight of at most α/σ; where all models are identical u_i = w_i. `scale="absolute"`
is the paper's. Where the others' weights would add up to more than one they are scaled to one.

`attention="cosine"` is HeurFedAMP: softmax of κ·cos(w_i, w_j) over the others, with a fixed weight for oneself. The
server keeps each client's last model, and sends ξ_ii along for the log. (In one public library the penalty has no
gradient, so u_i has no effect.)
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.protocol import About, Hints, Logs, Method, Weights, register
from fedprior.rng import Key, Keys
from fedprior.training import descend
from fedprior.tree import Params


class Server(NamedTuple):
    """The last model of every client."""

    w: Params  # [N, ...]


class Down(NamedTuple):
    """The client's cloud model, and how much of it is its own."""

    u: Params
    own: Tensor  # [C] float64, ξ_ii


@register
class FedAMP(Method[Server, Weights, Down, Weights, Weights]):
    """Attentive message passing."""

    about = About(
        name="fedamp",
        title="FedAMP",
        paper="Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI",
        year=2021,
        group="clustered",
        personal="the whole network",
        moment="after local training",
    )
    hints = Hints(personal_downlink=True)

    attention: Annotated[Literal["distance", "cosine"], Field(description="FedAMP's weights, or HeurFedAMP's")] = (
        "distance"
    )
    strength: Annotated[float, Field(ge=0, description="λ; a client is pulled to its u_i with strength λ/α")] = 0.3
    alpha: Annotated[
        float,
        Field(gt=0, description="α, step of the server; the pull is λ/α, and the others together weigh at most α/σ"),
    ] = 1.0
    sigma: Annotated[float, Field(gt=0, description="σ, squared distance at which the attention fades (distance)")] = (
        1.0
    )
    scale: Annotated[
        Literal["relative", "absolute"],
        Field(description="units of σ and α: the round's mean squared distance and 1/N, or absolute (distance)"),
    ] = "relative"
    self_weight: Annotated[
        float,
        Field(ge=0, le=1, description="ξ_ii (cosine)", json_schema_extra={"alive_with": {"attention": "cosine"}}),
    ] = 0.5
    sharpness: Annotated[
        float,
        Field(
            gt=0, description="κ, of the softmax (cosine)", json_schema_extra={"alive_with": {"attention": "cosine"}}
        ),
    ] = 10.0

    def weights(self, w: Params) -> Tensor:
        """ξ [N, N]; rows sum to one."""
        flat = torch.cat([v.flatten(1) for v in self.task.parameters(w).values()], 1).double()
        others = 1 - torch.eye(len(flat), dtype=torch.float64)
        if self.attention == "cosine":
            unit = flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)
            score = (self.sharpness * unit @ unit.T).masked_fill(others == 0, -torch.inf)
            share = score.softmax(1) if len(flat) > 1 else torch.zeros_like(score)
            xi = (1 - self.self_weight) * share
        else:
            gap, alpha = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square(), self.alpha
            if self.scale == "relative":
                gap, alpha = gap / mean_gap(gap), alpha / len(gap)
            xi = alpha * torch.exp(-gap / self.sigma) / self.sigma * others
            xi = xi / xi.sum(1, keepdim=True).clamp(min=1.0)  # so that ξ_ii ≥ 0 whatever α and N
        return xi + torch.diag(1 - xi.sum(1))

    def objective(self, w: Params, u: Params, batch: Batch) -> Tensor:
        """f_i(w) + λ/(2α) ‖w - u_i‖²."""
        near = tree.sqdist(self.task.parameters(w), self.task.parameters(u))
        return self.task.nll(w, batch) + self.strength / (2 * self.alpha) * near

    def init_server(self, key: Key, clients: int = 1) -> Server:
        """Everyone at the common initial weights."""
        return Server(tree.clone(tree.expand(self.task.init(key.fold("init")), clients)))

    def broadcast(self, server: Server, ids: Tensor) -> Down:
        """u_i and ξ_ii of each client."""
        xi = self.weights(server.w)
        mixed = tree.map(lambda v: (xi @ v.flatten(1).double()).to(v.dtype).view_as(v), server.w)
        return Down(tree.index(mixed, ids), xi.diagonal()[ids])

    def init_client(self, down: Down, data: ClientData, keys: Keys) -> Weights:
        """A client that joins starts at its cloud model."""
        return Weights(down.u)

    def local_update(self, client: Weights, down: Down, data: ClientData, keys: Keys) -> tuple[Weights, Weights, Logs]:
        """From the client's own model."""
        w, loss = descend(self.task, self.train, self.objective, client.w, down.u, data, keys)
        gap = tree.sqdist(self.task.parameters(w), self.task.parameters(down.u)).sqrt()
        return Weights(w), Weights(w), {"loss": loss, "gap": gap, "self_weight": down.own}

    def aggregate(self, server: Server, ups: Weights, ids: Tensor) -> Server:
        """Remember the reporters' models."""
        return Server(tree.map(lambda old, new: old.index_copy(0, ids, new), server.w, ups.w))

    def personalise(self, client: Weights, down: Down, data: ClientData, keys: Keys) -> Weights:
        """The client's own model."""
        return client


def mean_gap(gap: Tensor) -> Tensor:
    """The mean squared distance between different clients; positive even for identical models."""
    n = len(gap)
    return (gap.sum() / max(1, n * (n - 1))).clamp(min=torch.finfo(gap.dtype).tiny)
