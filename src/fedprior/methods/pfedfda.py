"""pFedFDA: a shared feature extractor under a generative head, which each client adapts in closed form.

McLaughlin & Su, NeurIPS 2024: Algorithm 1, Eqs. 3-9.

    features    z = φ(x);   z | y = c ~ N(μ_c, Σ);   head H(μ, Σ, π) = the Bayes classifier
    client      φ by gradient against the frozen head H(μ_g, Σ_g, π_i); then its own statistics (μ̂, Σ̂)
                β_i = argmin over [0, 1] of the cross-validated loss of H(β μ̂ + (1-β) μ_g, β Σ̂ + (1-β) Σ_g, π_i)
                (Eq. 9)
    server      means of φ_i and of the interpolated μ_i, Σ_i, weighted by n_i
    prediction  the newest φ_g, statistics of the client's training features, β_i, head: no gradient

Deviations from the authors' code: all training examples are used (theirs drops the last short batch, which
`train.last_batch="drop"` does in training, but not in evaluation, where theirs does too); the ridge is a multiple of
the identity (theirs also adds 1e-4 to every entry); β by grid and golden section, not by L-BFGS on a clipped argument;
by default only the features of the last local epoch are kept, since copies of an example in both folds inflate β
(`feature_cache="all_epochs"` with `folds_by="copy"` is theirs); covariances are sent as triangles; the class prior
never leaves the client. `ridge=1` is their value, not the paper's "small ε".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.bayes import adapt, lda
from fedprior.bayes.lda import Sample, Statistics
from fedprior.data.client import Batch, ClientData, fold
from fedprior.models.task import EVALUATION_BATCH
from fedprior.protocol import About, Hints, Logs, Method, register
from fedprior.rng import Key, Keys
from fedprior.training import take_step
from fedprior.tree import Params


class Shared(NamedTuple):
    """Feature extractor and global statistics: the server's state and its message."""

    phi: Params
    mean: Tensor  # [K, d]
    covariance: Tensor  # [d(d+1)/2], upper triangle


class Client(NamedTuple):
    """The last β, for means and covariance."""

    beta: Tensor  # [C, 2] float64


class Up(NamedTuple):
    """Extractor, interpolated statistics and example count."""

    phi: Params
    mean: Tensor  # [C, K, d]
    covariance: Tensor  # [C, d(d+1)/2]
    n: Tensor  # [C] float64


class Personal(NamedTuple):
    """An extractor with a linear head."""

    phi: Params
    weight: Tensor  # [C, K, d]
    bias: Tensor  # [C, K]


@register
class PFedFDA(Method[Shared, Client, Shared, Up, Personal]):
    """Feature-distribution adaptation."""

    about = About(
        name="pfedfda",
        title="pFedFDA",
        paper="McLaughlin & Su, Personalized Federated Learning via Feature Distribution Adaptation, NeurIPS",
        year=2024,
        group="Bayesian prior",
        personal="a linear head in closed form; class prior",
        moment="after aggregation",
        private=("beta",),
        needs_classes=True,
        class_means=True,
    )
    hints = Hints(head_phase=True)

    beta: Annotated[
        Literal["single", "double", "local", "global"],
        Field(description="one β (SB), one each for means and covariance (MB), fixed at 1 (NB), or fixed at 0"),
    ] = "single"
    folds: Annotated[int, Field(ge=2, description="folds of the cross-validation of β")] = 2
    ridge: Annotated[float, Field(ge=0, description="added to the diagonal of Σ̂; 1 as published")] = 1.0
    shrinkage: Annotated[float, Field(ge=0, lt=1, description="ε: shrinkage of the head's covariance to a sphere")] = (
        1e-4
    )
    prior_smoothing: Annotated[float, Field(gt=0, description="added to every class frequency")] = 1e-4
    min_class_samples: Annotated[
        int,
        Field(
            ge=1,
            description="smallest number of examples for a class to have its own mean, in evaluation",
            json_schema_extra={"others": [12]},
        ),
    ] = 3
    feature_cache: Annotated[
        Literal["last_epoch", "all_epochs"], Field(description="features used for statistics in training")
    ] = "last_epoch"
    folds_by: Annotated[
        Literal["example", "copy"],
        Field(
            description="what is assigned to folds: examples with all their copies, or single copies as published",
            json_schema_extra={"alive_with": {"feature_cache": "all_epochs"}},
        ),
    ] = "example"

    # The generative model

    def log_prior(self, data: ClientData) -> Tensor:
        """log π_i from the client's training labels, [C, K] float64."""
        K = self.task.likelihood.parameters
        counts = torch.stack([data.client(c)[1].bincount(minlength=K) for c in range(len(data))])
        share = counts.double() / data.n[:, None]
        return ((share + self.prior_smoothing) / (1 + K * self.prior_smoothing)).log()

    def statistics(self, down: Shared) -> Statistics:
        """The message's statistics in float64."""
        return Statistics(down.mean.double(), lda.unpack(down.covariance.double(), self.task.features_width))

    def solve_beta(self, sample: Sample, group: Tensor, prior: Statistics, log_prior: Tensor, keys: Keys) -> Tensor:
        """β of each client for means and covariance, [C, 2]; 0 where the data are too few to be split  (Eq. 9)."""
        if self.beta in ("local", "global"):
            value = torch.full((len(sample.y), 2), float(self.beta == "local"), dtype=torch.float64)
            examples = torch.tensor([g[real].unique().numel() for g, real in zip(group, sample.real, strict=True)])
            return value.masked_fill((examples < 2)[:, None], 0.0)
        if self.folds_by == "copy":
            group = torch.arange(group.shape[1]).expand_as(group)
        folds = adapt.deal(sample, group, self.task.likelihood.parameters, self.folds, keys.fold("folds"))
        loss = adapt.validation_loss(sample, folds, self.folds, prior, log_prior, self.ridge, self.shrinkage)
        return adapt.best_beta(loss, len(sample.y), separate=self.beta == "double") * folds.usable.any(1, keepdim=True)

    # Local training

    def fit(
        self, down: Shared, head: tuple[Tensor, Tensor], data: ClientData, keys: Keys
    ) -> tuple[Params, Tensor, Tensor]:
        """Train φ against the frozen head; returns φ, the features seen on the way [C, copies, N+1, d], the loss."""
        optimizer, buffers, budget = self.train.make(), self.task.buffers, self.train.budget(self.task)
        n, d = max(data.size), self.task.features_width
        epochs = max(-(-budget.length(m) // max(1, budget.per_epoch(m))) for m in data.size)
        copies = max(1, epochs) if self.feature_cache == "all_epochs" else 1
        per_epoch = torch.tensor([max(1, budget.per_epoch(m)) for m in data.size])
        fixed = {"weight": head[0].to(self.task.dtype), "bias": head[1].to(self.task.dtype), "per_epoch": per_epoch}

        def step(carry: dict[str, Any], fixed: Params, batch: Batch, keys: Keys) -> dict[str, Any]:
            seen: list[Tensor] = []

            def objective(phi: Params, nothing: Any, batch: Batch) -> Tensor:
                z = self.task.features(phi, batch.x, batch.weight)
                seen.append(z.detach())
                logits = torch.baddbmm(fixed["bias"].unsqueeze(1), z, fixed["weight"].transpose(1, 2))
                return (self.task.likelihood.losses(logits, batch.y) * batch.weight).sum(1)

            carry["total"].add_(take_step(optimizer, objective, carry["phi"], carry["state"], None, batch, buffers))
            epoch = (carry["steps"] // fixed["per_epoch"]) % copies
            slot = epoch[:, None] * (n + 1) + torch.where(batch.weight > 0, batch.place, n)  # padding has its own row
            carry["cache"].scatter_(1, slot.unsqueeze(2).expand(-1, -1, d), seen[0])
            carry["steps"].add_(1)
            return carry

        start: dict[str, Any] = {
            "phi": down.phi,
            "state": optimizer.init(self.task.parameters(down.phi)),
            "cache": torch.full((len(data), copies * (n + 1), d), torch.nan, dtype=self.task.dtype),
            "steps": torch.zeros(len(data), dtype=torch.int64),
            "total": torch.zeros(len(data), dtype=self.task.dtype),
        }
        done = fold(step, start, fixed, data, keys.fold("descend"), budget)
        return done["phi"], done["cache"].view(len(data), copies, n + 1, d), done["total"] / done["steps"].clamp(min=1)

    def cached(self, cache: Tensor, data: ClientData) -> tuple[Sample, Tensor]:
        """The cache as a sample, and which example each row is a copy of."""
        C, copies, slots, _ = cache.shape
        y = torch.zeros(C, slots, dtype=torch.int64)
        for c, n in enumerate(data.size):
            y[c, :n] = data.client(c)[1]
        place = torch.arange(slots).expand(C, copies, slots)
        real = ~cache[..., 0].isnan() & (place < torch.tensor(data.size)[:, None, None])
        z = cache.double().nan_to_num()
        labels = y.unsqueeze(1).expand(C, copies, slots)
        return Sample(z.flatten(1, 2), labels.flatten(1), real.flatten(1)), place.flatten(1)

    @torch.no_grad()
    def observe(self, phi: Params, data: ClientData) -> tuple[Sample, Tensor]:
        """One pass over the training data in evaluation mode."""
        parts = [(self.task.features(phi, b.x).double(), b.y, b.weight > 0) for b in data.batches(EVALUATION_BATCH)]
        z, y, real = (torch.cat(list(part), 1) for part in zip(*parts, strict=True))
        return Sample(z, y, real), torch.arange(y.shape[1]).expand_as(y)

    # The protocol

    def init_server(self, key: Key, clients: int = 1) -> Shared:
        """The common initial extractor; means uniform on [0, 1); unit covariance."""
        phi, _ = self.task.split(self.task.init(key.fold("init")))
        d, dtype = self.task.features_width, self.task.dtype
        mean = torch.rand(self.task.likelihood.parameters, d, generator=key.fold("means").generator(), dtype=dtype)
        return Shared(phi, mean, lda.pack(torch.eye(d, dtype=dtype)))

    def broadcast(self, server: Shared, ids: Tensor) -> Shared:
        """The extractor and the statistics, to everyone."""
        return server

    def init_client(self, down: Shared, data: ClientData, keys: Keys) -> Client:
        """A client starts with the global statistics: β = 0."""
        return Client(torch.zeros(len(data), 2, dtype=torch.float64))

    def local_update(self, client: Client, down: Shared, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """Train φ, then interpolate the statistics  (Alg. 1, lines 5-12)."""
        prior, log_prior = self.statistics(down), self.log_prior(data)
        phi, cache, loss = self.fit(down, lda.head(prior, log_prior, self.shrinkage), data, keys)
        sample, group = self.cached(cache, data)
        beta = self.solve_beta(sample, group, prior, log_prior, keys)
        mixed = lda.interpolate(lda.statistics(sample, prior, self.ridge), prior, beta)
        dtype = self.task.dtype
        up = Up(phi, mixed.mean.to(dtype), lda.pack(mixed.covariance).to(dtype), data.n)
        return Client(beta), up, {"loss": loss, "beta": beta[:, 0], "beta_covariance": beta[:, 1]}

    def aggregate(self, server: Shared, ups: Up, ids: Tensor) -> Shared:
        """Everything by example counts."""
        sent = {"phi": ups.phi, "mean": ups.mean, "covariance": ups.covariance}
        mean: Any = tree.average(sent, ups.n)
        return Shared(mean["phi"], mean["mean"], mean["covariance"])

    def personalise(self, client: Client, down: Shared, data: ClientData, keys: Keys) -> Personal:
        """The head for the newest extractor, from this client's features  (Alg. 1, lines 8-11)."""
        prior, log_prior = self.statistics(down), self.log_prior(data)
        sample, group = self.observe(down.phi, data)
        beta = self.solve_beta(sample, group, prior, log_prior, keys)
        own = lda.statistics(sample, prior, self.ridge, self.min_class_samples)
        weight, bias = lda.head(lda.interpolate(own, prior, beta), log_prior, self.shrinkage)
        return Personal(down.phi, weight.to(self.task.dtype), bias.to(self.task.dtype))

    @torch.no_grad()
    def predict(self, personal: Personal, x: Tensor, keys: Keys) -> Tensor:
        """The class posterior of the generative model."""
        z = self.task.features(personal.phi, x)
        return torch.baddbmm(personal.bias.unsqueeze(1), z, personal.weight.transpose(1, 2)).log_softmax(-1)

    def predict_global(self, server: Shared, x: Tensor) -> Tensor:
        """The global statistics with a uniform class prior."""
        one = tree.expand(server, 1)
        uniform = torch.zeros(1, self.task.likelihood.parameters, dtype=torch.float64)
        weight, bias = lda.head(self.statistics(one), uniform, self.shrinkage)
        personal = Personal(one.phi, weight.to(self.task.dtype), bias.to(self.task.dtype))
        return self.predict(personal, x.unsqueeze(0), Keys.of(Key(0), ["global"])).squeeze(0)
