"""FedBPS: the weights with the largest Laplace uncertainty stay personal, element by element.

Luo & Kuruoglu, arXiv 2402.16091 (2024): Algorithm 1, Eqs. 2-5. No code was published.

    client    E epochs from its mixed weights; v_i = 1 / (h_i + λ_i), h_i the curvature's diagonal, λ_i = n_i · decay
    server    w = Σ π_i w_i;   v = Σ π_i [v_i + (w_i - w)²]   the mixture's mean and variance         (Eq. 5)
              mask M = 1 on the share p of all parameters with the largest v                          (Eq. 3)
    client    w_i ← M w_i + (1 - M) w                                                                 (Eq. 4)

Readings of the paper: σ is the inverse of the Hessian (Alg. 1 returns the Hessian itself, which keeps the most certain
weights personal); the between-client term has its square, as in Eq. 5 (as printed in Alg. 1, without it, it sums to
zero). `sigma="hessian"` with `score="within"` is Algorithm 1 as printed; exactly round(p d) elements are chosen, ties
by index. Mixing happens at the client: the message is w and the mask as bits. It contains all of w, since a client that
joins needs it. A client that is not sampled mixes when it is next contacted, with the mask of that time.
`score="random"` is the control for any claim about the mask.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.bayes.curvature import diagonal
from fedprior.data.client import Batch, ClientData
from fedprior.protocol import About, Logs, Method, Weights, register
from fedprior.rng import Key, Keys
from fedprior.training import descend
from fedprior.tree import Params


class Server(NamedTuple):
    """The mean, the mask, and the state of the random mask."""

    w: Params
    mask: Tensor  # [⌈d/8⌉] uint8, one bit per parameter
    round: Tensor  # [] int64
    seed: Tensor  # [] int64
    turnover: Tensor  # [] share of parameters whose status changed
    ties: Tensor  # [] share of parameters that have the score of the last one chosen
    between: Tensor  # [] median of the clients' disagreement (w_i - w)²


class Down(NamedTuple):
    """The mean and the mask."""

    w: Params
    mask: Tensor  # [⌈d/8⌉] uint8


class Up(NamedTuple):
    """A client's weights, their variances, and its example count."""

    w: Params
    v: Params
    n: Tensor  # [C] float64


@register
class FedBPS(Method[Server, Weights, Down, Up, Weights]):
    """Element-wise personalisation by Laplace uncertainty."""

    about = About(
        name="fedbps",
        title="FedBPS",
        paper="Luo & Kuruoglu, Bayesian Neural Network For Personalized Federated Learning Parameter Selection, "
        "arXiv 2402.16091",
        year=2024,
        group="Bayesian prior",
        personal="the share p of the weights, chosen again each round",
        moment="after aggregation",
    )

    p: Annotated[float, Field(ge=0, le=1, description="share of personal weights; 0: FedAvg, 1: Local")] = 0.7
    score: Annotated[
        Literal["total", "within", "between", "random"],
        Field(
            description="variance that selects weights: Eq. 5, either of its terms, or a random mask (the control)",
            json_schema_extra={"alive_with": {"decay": 1.0}},  # otherwise the between-client term is negligible
        ),
    ] = "total"
    sigma: Annotated[
        Literal["variance", "hessian"],
        Field(description="what is large where a weight is personal: 1 / (h + λ) (Eq. 2), or h, as Alg. 1 is printed"),
    ] = "variance"
    curvature: Annotated[Literal["fisher", "ggn"], Field(description="estimate of the Hessian's diagonal")] = "fisher"
    decay: Annotated[
        float,
        Field(gt=0, description="prior precision per example: λ_i = n_i · decay", json_schema_extra={"others": [1.0]}),
    ] = 5e-4

    # Clients

    def objective(self, w: Params, nothing: Params, batch: Batch) -> Tensor:
        """F_i(w)."""
        return self.task.nll(w, batch)

    def mixed(self, own: Params, down: Down) -> Params:
        """M w_i + (1 - M) w; buffers stay the client's own."""
        names = sorted(self.task.parameters(own))
        mask = _bits(down.mask, sum(own[k][0].numel() for k in names))
        pieces = mask.split([own[k][0].numel() for k in names], dim=1)  # type: ignore[no-untyped-call]
        where = {k: piece.view_as(own[k]) for k, piece in zip(names, pieces, strict=True)}
        return {k: torch.where(where[k], v, down.w[k]) if k in where else v for k, v in own.items()}

    def variances(self, w: Params, data: ClientData) -> Params:
        """v_i = 1 / (h_i + λ_i) over the client's training data  (Eq. 2), or h_i itself  (Alg. 1 as printed)."""
        if self.score in ("between", "random"):
            return tree.zeros_like(self.task.parameters(w))
        h = diagonal(self.task, w, data, self.curvature)
        if self.sigma == "hessian":
            return h
        strength = (data.n * self.decay).to(self.task.dtype)
        return tree.map(lambda leaf: 1 / (leaf + strength.view(-1, *[1] * (leaf.dim() - 1))), h)

    # Server

    def scores(self, server: Server, ups: Up, w: Params) -> Tensor:
        """The score that selects each parameter, [d] float64  (Eq. 5)."""
        if self.score == "random":
            key = Key(int(server.seed)).fold("mask", int(server.round))
            return torch.rand(_flat(self.task.parameters(w)).shape, generator=key.generator(), dtype=torch.float64)
        within = _flat(tree.average(tree.map(Tensor.double, ups.v), ups.n))
        between = self.disagreement(ups, w)
        return {"total": within + between, "within": within, "between": between}[self.score]

    def disagreement(self, ups: Up, w: Params) -> Tensor:
        """Σ π_i (w_i - w)², [d] float64."""
        gaps = {k: (ups.w[k].double() - w[k].double()).square() for k in self.task.parameters(w)}
        return _flat(tree.average(gaps, ups.n))

    def choose(self, scores: Tensor) -> Tensor:
        """The mask [d]: exactly round(p d) parameters with the largest scores, ties by index."""
        mask = torch.zeros(len(scores), dtype=torch.bool)
        mask[torch.argsort(scores, descending=True, stable=True)[: round(self.p * len(scores))]] = True
        return mask

    # The protocol

    def init_server(self, key: Key, clients: int = 1) -> Server:
        """Common initial weights, and an empty mask."""
        w = self.task.init(key.fold("init"))
        d = sum(v.numel() for v in self.task.parameters(w).values())
        zero = torch.zeros((), dtype=torch.float64)
        seed = torch.tensor(key.fold("fedbps").word >> 1)
        return Server(w, pack_bits(torch.zeros(d, dtype=torch.bool)), torch.tensor(0), seed, zero, zero, zero)

    def broadcast(self, server: Server, ids: Tensor) -> Down:
        """The mean and the mask, to everyone."""
        return Down(server.w, server.mask)

    def init_client(self, down: Down, data: ClientData, keys: Keys) -> Weights:
        """A client that joins starts at the mean."""
        return Weights(down.w)

    def local_update(self, client: Weights, down: Down, data: ClientData, keys: Keys) -> tuple[Weights, Up, Logs]:
        """Mix, train, and estimate the variance of each weight."""
        start = self.mixed(client.w, down)
        w, loss = descend(self.task, self.train, self.objective, start, {}, data, keys)
        v = self.variances(w, data)
        personal = _bits(down.mask, sum(x[0].numel() for x in v.values())).double().mean(1)
        logs = {
            "loss": loss,
            "mask_share": personal,
            "within": torch.cat([x.flatten(1) for x in v.values()], 1).median(1).values,
        }
        return Weights(w), Up(w, v, data.n), logs

    def aggregate(self, server: Server, ups: Up, ids: Tensor) -> Server:
        """The mixture's mean, its variance, and the mask."""
        w = tree.average(ups.w, ups.n)
        scores = self.scores(server, ups, w)
        mask = self.choose(scores)
        before = _bits(server.mask[None], len(mask))[0]
        last = scores[mask].min() if mask.any() else torch.inf
        ties = (
            (scores == last).double().mean() if mask.any() and not mask.all() else torch.zeros((), dtype=torch.float64)
        )
        turnover = (mask != before).double().mean()
        between = self.disagreement(ups, w).median()
        return Server(w, pack_bits(mask), server.round + 1, server.seed, turnover, ties, between)

    def personalise(self, client: Weights, down: Down, data: ClientData, keys: Keys) -> Weights:
        """The client's weights, mixed by the newest mask: Algorithm 1's output."""
        return Weights(self.mixed(client.w, down))

    def predict_global(self, server: Server, x: Tensor) -> Tensor:
        """The mean."""
        return self.task.predictive_shared(server.w, x)


def _flat(w: Params) -> Tensor:
    return torch.cat([w[k].flatten() for k in sorted(w)])


def pack_bits(mask: Tensor) -> Tensor:
    """Bools [d] as bits [⌈d/8⌉] uint8."""
    padded = torch.nn.functional.pad(mask.to(torch.uint8), (0, -len(mask) % 8)).view(-1, 8)
    return (padded << torch.arange(8, dtype=torch.uint8)).sum(1).to(torch.uint8)


def _bits(packed: Tensor, d: int) -> Tensor:
    """The inverse of `pack_bits` for a stack: [C, ⌈d/8⌉] -> [C, d] bool."""
    bits = (packed.unsqueeze(2) >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.flatten(1)[:, :d].bool()
