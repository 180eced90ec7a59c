"""FedAMP: the server sends each client a mean of all models, weighted by how like its own they are.

Huang, Chu, Zhou, Wang, Liu, Pei & Zhang, AAAI 2021, Algorithm 1, Eqs. 4-6.

    server    ξ_ij = α A'(‖w_i - w_j‖²) for j ≠ i, A'(x) = e^{-x/σ}/σ;  ξ_ii = 1 - Σ_{j≠i} ξ_ij;  u_i = Σ_j ξ_ij w_j
    client    w_i ≈ argmin f_i(w) + λ/(2α) ‖w - u_i‖², from its own w_i

`attention="cosine"` is HeurFedAMP: softmax of κ·cos(w_i, w_j) over the others, with a fixed weight for oneself. The
server keeps each client's last model. (In one public library the penalty has no gradient, and u_i no effect.)
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.local import descend
from fedprior.protocol import About, Logs, Method, Weights, register
from fedprior.rng import Key, Keys
from fedprior.tree import Params


class Server(NamedTuple):
    """The last model of every client."""

    w: Params  # [N, ...]


@register
@dataclass(frozen=True, kw_only=True)
class FedAMP(Method[Server, Weights, Weights, Weights, Weights]):
    """Attentive message passing."""

    about = About(
        name="fedamp",
        title="FedAMP",
        paper="Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI",
        year=2021,
        group="clustered",
        personal="the whole network",
        moment="after local training",
        personal_downlink=True,
    )
    types = (Server, Weights, Weights, Weights, Weights)

    attention: Annotated[Literal["distance", "cosine"], Field(description="FedAMP's weights, or HeurFedAMP's")] = (
        "distance"
    )
    strength: Annotated[float, Field(ge=0, description="λ; a client is pulled to its u_i with strength λ/α")] = 0.02
    alpha: Annotated[
        float, Field(gt=0, description="α, step of the server; the pull is λ/α, others weigh at most α/σ each")
    ] = 0.02
    sigma: Annotated[float, Field(gt=0, description="σ, distance at which the attention fades (distance)")] = 1.0
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
            gap = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
            xi = self.alpha * torch.exp(-gap / self.sigma) / self.sigma * others
            xi = xi / xi.sum(1, keepdim=True).clamp(min=1.0)  # so that ξ_ii ≥ 0 whatever α and N
        return xi + torch.diag(1 - xi.sum(1))

    def objective(self, w: Params, u: Params, batch: Batch) -> Tensor:
        """f_i(w) + λ/(2α) ‖w - u_i‖²."""
        near = tree.sqdist(self.task.parameters(w), self.task.parameters(u))
        return self.task.nll(w, batch) + self.strength / (2 * self.alpha) * near

    def init_server(self, key: Key, clients: int = 1) -> Server:
        """Everyone at the common initial weights."""
        return Server(tree.clone(tree.expand(self.task.init(key.fold("init")), clients)))

    def broadcast(self, server: Server, ids: Tensor) -> Weights:
        """u_i of each client."""
        xi = self.weights(server.w)
        mixed = tree.map(lambda v: (xi @ v.flatten(1).double()).to(v.dtype).view_as(v), server.w)
        return Weights(tree.index(mixed, ids))

    def init_client(self, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """A client that joins starts at its cloud model."""
        return down

    def local_update(
        self, client: Weights, down: Weights, data: ClientData, keys: Keys
    ) -> tuple[Weights, Weights, Logs]:
        """From the client's own model."""
        w, loss = descend(self.task, self.train, self.objective, client.w, down.w, data, keys)
        gap = tree.sqdist(self.task.parameters(w), self.task.parameters(down.w)).sqrt()
        return Weights(w), Weights(w), {"loss": loss, "gap": gap}

    def aggregate(self, server: Server, ups: Weights, ids: Tensor) -> Server:
        """Remember the reporters' models."""
        return Server(tree.map(lambda old, new: old.index_copy(0, ids, new), server.w, ups.w))

    def personalise(self, client: Weights, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """The client's own model."""
        return client

    def predict(self, personal: Weights, x: Tensor, keys: Keys) -> Tensor:
        """The network's own distribution."""
        return self.task.log_probs(personal.w, x)

    def predict_global(self, server: Server, x: Tensor) -> None:
        """There is no global model."""
        return
