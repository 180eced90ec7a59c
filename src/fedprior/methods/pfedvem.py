"""pFedVEM: a Gaussian posterior over each client's head, under a prior whose mean is weighted by confidence.

Zhu, Ma & Blaschko, CVPR 2023: Algorithm 1, Eqs. 6-11.

    prior       head_j ~ N(w, ρ_j² I); the base is shared
    posterior   q_j = N(μ_j, diag σ_j²),  σ = softplus(π), never reset
    M-step      ρ_j² = (Σ σ_j² + ‖μ_j - w‖²) / d,  τ_j = 1/ρ_j², from last round's posterior and the new w   (Eq. 8)
    E-step      min  Σ_i E_q[-log p(y_i | x_i)] + KL(q_j ‖ N(w, ρ_j² I)), full batch                         (Eq. 6)
    base        mini-batches against heads drawn from the new posterior
    server      w = Σ τ_j μ_j / Σ τ_j  (Eq. 9);  base = Σ n_j base_j / Σ n_j

Every client trains every round, a sample reports. Deviations from the authors' code: none in the algorithm; the KL is
exact, as there (the bound of Eq. 10 does not hold); the engine discards a whole update that is not finite, for
every method (their check restores only the head).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from fedprior import tree
from fedprior.bayes.gaussian import deviations, inverse_softplus, kl_to_isotropic
from fedprior.data.client import Batch, ClientData, fold
from fedprior.models.likelihood import Categorical, equal_weights
from fedprior.models.task import EVALUATION_BATCH
from fedprior.optim import SGD
from fedprior.protocol import About, Hints, Logs, Method, register
from fedprior.rng import Key, Keys
from fedprior.training import take_step
from fedprior.tree import Params

SMALLEST = 1e-8  # floor of ρ²


class Prior(NamedTuple):
    """The head's prior mean and the shared base: the server's state and its message."""

    w: Params
    base: Params


class Client(NamedTuple):
    """A head's posterior, and the base as last trained here."""

    mu: Params
    pi: Params
    base: Params


class Up(NamedTuple):
    """Posterior mean, confidence, base and example count. The posterior's width stays at the client."""

    mu: Params
    tau: Tensor  # [C] float64
    base: Params
    n: Tensor  # [C] float64


class Personal(NamedTuple):
    """A base with a distribution over heads."""

    base: Params
    mu: Params
    sigma: Params


@register
class PFedVEM(Method[Prior, Client, Prior, Up, Personal]):
    """Variational expectation-maximisation with confidence-weighted aggregation."""

    about = About(
        name="pfedvem",
        title="pFedVEM",
        paper="Zhu, Ma & Blaschko, Confidence-Aware Personalized Federated Learning via Variational Expectation "
        "Maximization, CVPR",
        year=2023,
        group="Bayesian prior",
        personal="a Gaussian over the head",
        moment="after local training",
        private=("pi",),
    )
    hints = Hints(everyone_trains=True, head_phase=True)

    head_lr: Annotated[
        float, Field(gt=0, description="learning rate of the head's posterior; its data term is a sum")
    ] = 0.001
    head_momentum: Annotated[float, Field(ge=0, lt=1, description="momentum of the head's steps")] = 0.9
    head_steps: Annotated[int, Field(ge=0, description="full-batch steps on the head per round")] = 10
    draws: Annotated[int, Field(ge=1, description="Monte-Carlo heads per step, K")] = 5
    scale: Annotated[
        float | None,
        Field(gt=0, description="initial standard deviation of the posterior; by default 1, or 0.1 for a number"),
    ] = None
    head_init: Annotated[
        Literal["auto", "normal", "default"],
        Field(
            description="w⁰: standard normal, as the authors', or the layer's own; auto: the latter for a number",
            json_schema_extra={"others": ["default"]},
        ),
    ] = "auto"
    confidence: Annotated[
        Literal["both", "uncertainty_only", "deviation_only"],
        Field(description="how τ, a client's weight at the server, is computed (ablations)"),
    ] = "both"
    ablated: Annotated[
        Literal["server", "everywhere"],
        Field(
            description="what an ablated confidence replaces: the weight at the server, or the prior's precision too",
            json_schema_extra={"alive_with": {"confidence": "uncertainty_only"}},
        ),
    ] = "server"
    base_head: Annotated[
        Literal["sampled", "mean"], Field(description="the heads that the base is trained against")
    ] = "sampled"
    prediction: Annotated[
        Literal["mean", "bma"], Field(description="posterior mean, or Bayesian model averaging over drawn heads")
    ] = "mean"
    prediction_draws: Annotated[
        int, Field(ge=1, description="heads averaged by bma", json_schema_extra={"alive_with": {"prediction": "bma"}})
    ] = 20

    @model_validator(mode="after")
    def _the_prior_does_not_collapse(self) -> Self:
        if self.confidence == "deviation_only" and self.ablated == "everywhere":
            raise ValueError(
                "with the deviation alone in the prior, ρ² collapses and training diverges in the second round: use "
                'ablated="server"'
            )
        return self

    @property
    def published(self) -> bool:
        """Whether the paper's start suits: for a number, a drawn log-variance of ±1 is a factor of e in the loss."""
        return isinstance(self.task.likelihood, Categorical)

    @property
    def width(self) -> float:
        """The posterior's initial standard deviation."""
        return self.scale or (1.0 if self.published else 0.1)

    # The model

    def variances(self, mu: Params, pi: Params, w: Params) -> tuple[Tensor, Tensor]:
        """ρ_j² of the prior, one number for the whole head, and 1/τ_j, [C] each; equal unless ablated  (Eq. 8)."""
        d = sum(leaf[0].numel() for leaf in mu.values())
        spread = torch.stack([F.softplus(p).square().flatten(1).sum(1) for p in pi.values()]).sum(0)
        gap = tree.sqdist(mu, w)
        weighed = {
            "both": spread + gap,
            "uncertainty_only": spread,
            "deviation_only": torch.where(gap > 0, gap, spread),  # in the first round μ = w: all clients are equal
        }
        rho2, doubt = ((v / d).clamp(min=SMALLEST) for v in (spread + gap, weighed[self.confidence]))
        return (doubt if self.ablated == "everywhere" else rho2), doubt

    def heads(self, mu: Params, sigma: Params, keys: Keys, draws: int) -> Params:
        """Draws μ + σ ε, [C, K, ...], the same for all examples."""
        names = sorted(mu)
        eps = {k: keys.fold(k).normal(draws, *mu[k].shape[1:], dtype=mu[k].dtype) for k in names}
        return {k: mu[k].unsqueeze(1) + sigma[k].unsqueeze(1) * eps[k] for k in names}

    def head_losses(self, heads: Params, z: Tensor, y: Tensor) -> Tensor:
        """-log p(y | z, head) averaged over the K heads: z [C, N, f], y [C, N] -> [C, N]."""
        weight = heads[f"{self.task.head}.weight"]  # [C, K, o, f]
        bias = heads.get(f"{self.task.head}.bias", weight.new_zeros(weight.shape[:3]))
        C, K, o, _ = weight.shape
        out = torch.baddbmm(bias.flatten(1).unsqueeze(1), z, weight.flatten(1, 2).transpose(1, 2))
        return self.task.likelihood.losses(out.view(C, -1, K, o), y.unsqueeze(2).expand(-1, -1, K)).mean(2)

    # E-step and base

    def fit_head(
        self, client: Client, down: Prior, rho2: Tensor, data: ClientData, keys: Keys
    ) -> tuple[Params, Params, Tensor]:
        """Full-batch steps on (μ, π) with the base frozen: its features are computed once."""
        z, y, real = self.features(down.base, data)
        optimizer = SGD(self.head_lr, self.head_momentum)
        q = tree.clone({f"mu/{k}": v for k, v in client.mu.items()} | {f"pi/{k}": v for k, v in client.pi.items()})
        state, loss = optimizer.init(q), torch.zeros(len(data), dtype=z.dtype)
        for step in range(self.head_steps):

            def objective(q: Params, nothing: Any, batch: Any, step: int = step) -> Tensor:
                mu, sigma = _part(q, "mu"), deviations(_part(q, "pi"))
                heads = self.heads(mu, sigma, keys.fold("head", step), self.draws)
                nll = (self.head_losses(heads, z, y) * real).sum(1)  # a sum over the client's examples
                return nll + kl_to_isotropic(mu, sigma, down.w, rho2)

            loss = take_step(optimizer, objective, q, state, None, None)
        return _part(q, "mu"), _part(q, "pi"), loss

    @torch.no_grad()
    def features(self, base: Params, data: ClientData) -> tuple[Tensor, Tensor, Tensor]:
        """Every example's features [C, N, f], label [C, N] and whether it is real [C, N]."""
        parts = [(self.task.features(base, b.x), b.y, b.weight > 0) for b in data.batches(EVALUATION_BATCH)]
        z, y, real = (torch.cat(list(part), 1) for part in zip(*parts, strict=True))
        return z, y, real.to(z.dtype)

    def fit_base(self, base: Params, mu: Params, pi: Params, data: ClientData, keys: Keys) -> Params:
        """Mini-batch training of the base against heads of the posterior, redrawn for every batch."""
        optimizer, buffers = self.train.make(), self.task.buffers
        posterior = {f"mu/{k}": v for k, v in mu.items()} | {f"sigma/{k}": v for k, v in deviations(pi).items()}

        def step(carry: Any, q: Params, batch: Batch, keys: Keys) -> Any:
            mean, sigma = _part(q, "mu"), _part(q, "sigma")
            if self.base_head == "sampled":
                heads = self.heads(mean, sigma, keys, self.draws)
            else:
                heads = {k: v.unsqueeze(1) for k, v in mean.items()}

            def objective(base: Params, nothing: Any, batch: Batch) -> Tensor:
                z = self.task.features(base, batch.x, batch.weight)
                return (self.head_losses(heads, z, batch.y) * batch.weight).sum(1)

            take_step(optimizer, objective, carry["base"], carry["state"], None, batch, buffers)
            return carry

        carry: dict[str, Any] = {"base": base, "state": optimizer.init(self.task.parameters(base))}
        done: Params = fold(step, carry, posterior, data, keys.fold("base"), self.train.budget(self.task))["base"]
        return done

    # The protocol

    def init_server(self, key: Key, clients: int = 1) -> Prior:
        """The common initial base; a standard normal head (or the layer's own initialisation)."""
        base, head = self.task.split(self.task.init(key.fold("init")))
        if self.head_init == "normal" or (self.head_init == "auto" and self.published):
            gen = key.fold("head").generator()
            head = {k: torch.randn(v.shape, generator=gen, dtype=v.dtype) for k, v in head.items()}
        return Prior(head, base)

    def broadcast(self, server: Prior, ids: Tensor) -> Prior:
        """w and the base, to everyone."""
        return server

    def init_client(self, down: Prior, data: ClientData, keys: Keys) -> Client:
        """μ = w, σ = scale."""
        pi = tree.map(lambda leaf: torch.full_like(leaf, inverse_softplus(self.width)), down.w)
        return Client(down.w, pi, down.base)

    def local_update(self, client: Client, down: Prior, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """τ from the old posterior and the new w; then the head; then the base  (Alg. 1)."""
        rho2, doubt = self.variances(client.mu, client.pi, down.w)
        mu, pi, loss = self.fit_head(client, down, rho2, data, keys)
        base = self.fit_base(down.base, mu, pi, data, keys)
        tau = 1 / doubt.double()
        logs = {
            "loss": loss / data.n,
            "tau": tau,
            "rho": rho2.sqrt(),
            "deviation": tree.sqdist(mu, down.w).sqrt(),
            "uncertainty": tree.sqdist(deviations(pi), tree.zeros_like(pi)).sqrt(),  # √Tr Σ, beside ‖μ - w‖
        }
        return Client(mu, pi, base), Up(mu, tau, base, data.n), logs

    def aggregate(self, server: Prior, ups: Up, ids: Tensor) -> Prior:
        """Heads by confidence, bases by example counts."""
        return Prior(tree.average(ups.mu, ups.tau), tree.average(ups.base, ups.n))

    def personalise(self, client: Client, down: Prior, data: ClientData, keys: Keys) -> Personal:
        """The client's own base, as it trained it, and its posterior."""
        return Personal(client.base, client.mu, deviations(client.pi))

    def predict(self, personal: Personal, x: Tensor, keys: Keys) -> Tensor:
        """With the posterior mean (paper), or averaging the probabilities of drawn heads."""
        if self.prediction == "mean":
            return self.task.predictive({**personal.base, **personal.mu}, x)
        with torch.no_grad():
            z = self.task.features(personal.base, x)
            heads = self.heads(personal.mu, personal.sigma, keys.fold("bma"), self.prediction_draws)
            draws = range(self.prediction_draws)
            each = [self.task.head_outputs(tree.map(lambda h, k=k: h[:, k], heads), z) for k in draws]
            likelihood = self.task.likelihood
            return likelihood.mix(likelihood.predictive(torch.stack(each)), equal_weights(len(each), z.dtype))

    def predict_global(self, server: Prior, x: Tensor) -> Tensor:
        """The shared base with the prior's mean as head."""
        return self.task.predictive_shared({**server.base, **server.w}, x)


def _part(q: Params, name: str) -> Params:
    prefix = f"{name}/"
    return {k.removeprefix(prefix): v for k, v in q.items() if k.startswith(prefix)}
