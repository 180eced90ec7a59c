"""FedPAC: features aligned to global class means, and heads combined from similar clients.

Xu, Tong & Huang, ICLR 2023, Algorithm 1, Eqs. 5-9.

    before      statistics of the received base: h_c = π_c · mean of class c, and V, the variance of such means
    train       the head for `head_epochs` (own learning rate), then the base on CE + λ · MSE(z, mean of its class)
    server      base by example counts; global class means by class counts; the head of client i is Σ_j a_j head_j with
                a = argmin over the simplex of a'Pa,  P_jk = V_j [j = k] + Σ_c (h_ic - h_jc)·(h_ic - h_kc)

MSE is the mean over examples and features; it starts in the second round, when global means exist. Examples of a class
that nobody has reported yet have no target and only their CE counts; a class that no reporter of a round has keeps its
last mean. Weights below 1e-3 are dropped. The quadratic programme is solved exactly, by non-negative least squares.
A client that does not report keeps its head, which is stale when few report; `absent_heads="mean"` gives it the mean of
the round's heads by example counts, which is not in the paper.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.bayes.simplex import minimise_quadratic
from fedprior.data.client import Batch, ClientData
from fedprior.models.likelihood import categories
from fedprior.models.task import EVALUATION_BATCH
from fedprior.protocol import About, Hints, Logs, Method, Moment, Weights, register
from fedprior.rng import Key, Keys
from fedprior.training import descend, descend_head
from fedprior.tree import Params


class Server(NamedTuple):
    """Shared base, a head for every client, and the global class means with their example counts."""

    base: Params
    heads: Params  # [N, ...]
    means: Tensor  # [K, d]
    seen: Tensor  # [K] float64


class Down(NamedTuple):
    """The base, the client's combined head, and the global class means."""

    base: Params
    head: Params
    means: Tensor
    seen: Tensor


class Up(NamedTuple):
    """Base, head, counts, and the statistics used to combine heads."""

    base: Params
    head: Params
    n: Tensor  # [C] float64
    counts: Tensor  # [C, K] float64
    means: Tensor  # [C, K, d], after training
    scaled: Tensor  # [C, K, d], π_c · mean of class c, before training
    variance: Tensor  # [C] float64


@register
class FedPAC(Method[Server, Weights, Down, Up, Weights]):
    """Feature alignment and classifier collaboration."""

    about = About(
        name="fedpac",
        title="FedPAC",
        paper="Xu, Tong & Huang, Personalized Federated Learning with Feature Alignment and Classifier Collaboration, "
        "ICLR",
        year=2023,
        group="split",
        personal="a head combined from similar clients'",
        moment="after local training",
        needs_classes=True,
        class_means=True,
    )
    hints = Hints(personal_downlink=True, head_phase=True)

    alignment: Annotated[float, Field(ge=0, description="λ, pull of features to the global mean of their class")] = 1.0
    head_epochs: Annotated[int, Field(ge=0, description="epochs on the head before the base")] = 1
    head_lr: Annotated[float, Field(gt=0, description="learning rate of the head")] = 0.1
    predict_with: Annotated[
        Literal["trained", "aggregated"],
        Field(description="the network as last trained by the client, or the newest base with the combined head"),
    ] = "trained"
    absent_heads: Annotated[
        Literal["keep", "mean"],
        Field(description="head of a client that does not report: its last one, or the mean of the round's heads"),
    ] = "keep"

    @property
    def moment(self) -> Moment:
        """Depends on which network is the personal one."""
        return "after aggregation" if self.predict_with == "aggregated" else "after local training"

    @torch.no_grad()
    def statistics(self, base: Params, data: ClientData) -> tuple[Tensor, Tensor, Tensor]:
        """Class counts [C, K], class means [C, K, d] (zero where absent) and mean squared norms [C, K], float64."""
        K = self.task.likelihood.parameters
        counts = torch.zeros(len(data), K, dtype=torch.float64)
        sums, squares = torch.zeros(()), torch.zeros_like(counts)
        for batch in data.batches(EVALUATION_BATCH):
            z = self.task.features(base, batch.x).double()
            member = torch.nn.functional.one_hot(batch.y, K).double() * (batch.weight > 0).unsqueeze(2)
            counts += member.sum(1)
            sums = sums + member.transpose(1, 2) @ z
            squares += (member * z.square().sum(2, keepdim=True)).sum(1)
        per = counts.clamp(min=1)
        return counts, sums / per.unsqueeze(2), squares / per

    def base_objective(self, base: Params, fixed: dict[str, Params], batch: Batch) -> Tensor:
        """CE + λ · MSE(z, global mean of its class), [C]."""
        z = self.task.features(base, batch.x, batch.weight)
        losses = categories(self.task).losses(self.task.head_outputs(fixed["head"], z), batch.y)
        means, seen = fixed["global"]["means"], fixed["global"]["seen"]
        target = means.gather(1, batch.y.unsqueeze(2).expand(-1, -1, means.shape[2]))
        apart = (z - target).square().mean(2) * (seen.gather(1, batch.y) > 0)
        return ((losses + self.alignment * apart) * batch.weight).sum(1)

    def combine(self, scaled: Tensor, variance: Tensor) -> Tensor:
        """The weights with which each reporter combines the reporters' heads, [R, R]; rows sum to one."""
        rows = []
        for own in scaled:
            gap = (own - scaled).flatten(1)
            rows.append(minimise_quadratic(torch.diag(variance) + gap @ gap.T))
        weights = torch.stack(rows)
        weights = weights * (weights >= 1e-3)
        return weights / weights.sum(1, keepdim=True)

    def init_server(self, key: Key, clients: int = 1) -> Server:
        """The common initial weights; no means yet."""
        base, head = self.task.split(self.task.init(key.fold("init")))
        d = self.task.features_width
        means = torch.zeros(self.task.likelihood.parameters, d, dtype=self.task.dtype)
        seen = torch.zeros(self.task.likelihood.parameters, dtype=torch.float64)
        return Server(base, tree.clone(tree.expand(head, clients)), means, seen)

    def broadcast(self, server: Server, ids: Tensor) -> Down:
        """Everything shared, with each client's own head."""
        shared = tree.expand({"base": server.base, "means": server.means, "seen": server.seen}, len(ids))
        base: Params = shared["base"]  # type: ignore[assignment]
        return Down(base, tree.index(server.heads, ids), shared["means"], shared["seen"])  # type: ignore[arg-type]

    def init_client(self, down: Down, data: ClientData, keys: Keys) -> Weights:
        """The personal network as received."""
        return Weights(joined(down))

    def local_update(self, client: Weights, down: Down, data: ClientData, keys: Keys) -> tuple[Weights, Up, Logs]:
        """Statistics, then the head, then the base."""
        counts, means, squares = self.statistics(down.base, data)
        share = counts / data.n[:, None]
        scaled = share.unsqueeze(2) * means
        variance = ((share * squares).sum(1) - scaled.square().sum((1, 2))) / data.n
        train = replace(self.train.lasting(self.head_epochs), lr=self.head_lr)
        head, _ = descend_head(self.task, train, down.head, down.base, data, keys.fold("head"))
        fixed = {"head": head, "global": {"means": down.means, "seen": down.seen}}
        base, loss = descend(self.task, self.train, self.base_objective, down.base, fixed, data, keys.fold("base"))
        after = self.statistics(base, data)[1].to(self.task.dtype)
        up = Up(base, head, data.n, counts, after, scaled.to(self.task.dtype), variance)
        return Weights(_sorted({**base, **head})), up, {"loss": loss, "variance": variance}

    def aggregate(self, server: Server, ups: Up, ids: Tensor) -> Server:
        """Means of base and class means; a combined head for every reporter; for the others, see `absent_heads`."""
        weights = self.combine(ups.scaled.double(), ups.variance)
        heads = tree.map(lambda v: (weights @ v.flatten(1).double()).to(v.dtype).view_as(v), ups.head)
        total = ups.counts.sum(0)
        pooled = torch.einsum("rk,rkd->kd", ups.counts, ups.means.double()) / total.clamp(min=1).unsqueeze(1)
        means = torch.where((total > 0).unsqueeze(1), pooled.to(server.means.dtype), server.means)
        others = server.heads
        if self.absent_heads == "mean":
            others = tree.map(torch.Tensor.expand_as, tree.average(ups.head, ups.n), others)
        kept = tree.map(lambda old, new: old.index_copy(0, ids, new), others, heads)
        return Server(tree.average(ups.base, ups.n), kept, means, torch.maximum(server.seen, total))

    def personalise(self, client: Weights, down: Down, data: ClientData, keys: Keys) -> Weights:
        """The client's network as trained, or as last received."""
        return client if self.predict_with == "trained" else Weights(joined(down))


def joined(down: Down) -> Params:
    """The network as received."""
    return _sorted({**down.base, **down.head})


def _sorted(w: Params) -> Params:
    return {k: w[k] for k in sorted(w)}
