"""pFedVEM: a Gaussian posterior over each client's head, under a prior whose mean is weighted by confidence.

Zhu, Ma & Blaschko, CVPR 2023: Algorithm 1, Eqs. 6-12.

    prior       head_j ~ N(w, ρ_j² I); the base is shared
    posterior   q_j = N(μ_j, diag σ_j²),  σ = softplus(π), never reset
    M-step      ρ_j² = (Σ σ_j² + ‖μ_j - w‖²) / d,  τ_j = 1/ρ_j², from last round's posterior and the new w
    E-step      min  Σ_i E_q[-log p(y_i | x_i)] + KL(q_j ‖ N(w, ρ_j² I)), full batch
    base        mini-batches against heads drawn from the new posterior
    server      w = Σ τ_j μ_j / Σ τ_j;  base = Σ n_j base_j / Σ n_j

Every client trains every round, a sample reports. Deviations from the authors' code: none in the algorithm; the KL is
exact, as there (the bound of Eq. 10 does not hold); a client whose head or base becomes non-finite is put back to where
the round began and left out of the means (their guard restores the head only).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior import tree
from fedprior.bayes.gaussian import deviations, inverse_softplus, kl_to_isotropic
from fedprior.data.client import Batch, ClientData, fold
from fedprior.local import take_step
from fedprior.models.task import EVALUATION_BATCH, two_classes
from fedprior.optim import SGD
from fedprior.protocol import About, Logs, Method, register
from fedprior.rng import Key, Keys
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
    """Posterior mean, confidence, base and example count. The posterior's width stays home."""

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
@dataclass(frozen=True, kw_only=True)
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
        everyone_trains=True,
        head_phase=True,
    )
    types = (Prior, Client, Prior, Up, Personal)

    head_lr: Annotated[float, Field(gt=0, description="step on the head's posterior; its data term is a sum")] = 0.001
    head_momentum: Annotated[float, Field(ge=0, lt=1, description="momentum of the head's steps")] = 0.9
    head_steps: Annotated[int, Field(ge=0, description="full-batch steps on the head per round")] = 10
    draws: Annotated[int, Field(ge=1, description="Monte-Carlo heads per step, K")] = 5
    scale: Annotated[float, Field(gt=0, description="initial standard deviation of the posterior")] = 1.0
    head_init: Annotated[
        Literal["normal", "default"], Field(description="w⁰: standard normal, as the authors', or the layer's own")
    ] = "normal"
    confidence: Annotated[
        Literal["both", "uncertainty_only", "deviation_only"],
        Field(description="what τ, a client's weight at the server, is made of (ablations; the prior stays)"),
    ] = "both"
    base_head: Annotated[
        Literal["sampled", "mean"], Field(description="the heads that the base is trained against")
    ] = "sampled"
    prediction: Annotated[
        Literal["mean", "bma"], Field(description="posterior mean, or Bayesian model averaging over drawn heads")
    ] = "mean"
    prediction_draws: Annotated[
        int, Field(ge=1, description="heads averaged by bma", json_schema_extra={"alive_with": {"prediction": "bma"}})
    ] = 20

    # The model

    def variances(self, mu: Params, pi: Params, w: Params) -> tuple[Tensor, Tensor]:
        """ρ_j² of the prior, one number for the whole head, and 1/τ_j, the same unless ablated, [C] each  (Eq. 12)."""
        d = sum(leaf[0].numel() for leaf in mu.values())
        spread = torch.stack([F.softplus(p).square().flatten(1).sum(1) for p in pi.values()]).sum(0)
        gap = tree.sqdist(mu, w)
        weighed = {
            "both": spread + gap,
            "uncertainty_only": spread,
            "deviation_only": torch.where(gap > 0, gap, spread),  # in the first round μ = w: all clients alike
        }
        rho2, doubt = ((v / d).clamp(min=SMALLEST) for v in (spread + gap, weighed[self.confidence]))
        return rho2, doubt

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
        logits = two_classes(out.view(C, -1, K, o))  # [C, N, K, classes]
        target = y.unsqueeze(2).expand(-1, -1, K)
        losses = F.cross_entropy(logits.flatten(0, 2), target.flatten(), reduction="none")
        return losses.view(C, -1, K).mean(2)

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
        """Mini-batch training of the base against heads of the posterior, drawn anew for every batch."""
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
        if self.head_init == "normal":
            gen = key.fold("head").generator()
            head = {k: torch.randn(v.shape, generator=gen, dtype=v.dtype) for k, v in head.items()}
        return Prior(head, base)

    def broadcast(self, server: Prior, ids: Tensor) -> Prior:
        """w and the base, to everyone."""
        return server

    def init_client(self, down: Prior, data: ClientData, keys: Keys) -> Client:
        """μ = w, σ = scale."""
        pi = tree.map(lambda leaf: torch.full_like(leaf, inverse_softplus(self.scale)), down.w)
        return Client(down.w, pi, down.base)

    def local_update(self, client: Client, down: Prior, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """τ from the old posterior and the new w; then the head; then the base  (Alg. 1)."""
        rho2, doubt = self.variances(client.mu, client.pi, down.w)
        mu, pi, loss = self.fit_head(client, down, rho2, data, keys)
        base = self.fit_base(down.base, mu, pi, data, keys)
        fine = torch.stack([torch.isfinite(v).flatten(1).all(1) for v in tree.leaves({"m": mu, "p": pi, "b": base})])
        ok = fine.all(0)
        mu, pi = _restore(ok, mu, client.mu), _restore(ok, pi, client.pi)
        base = _restore(ok, base, down.base)
        tau = ok.double() / doubt.double()
        logs = {
            "loss": loss / data.n,
            "tau": tau,
            "rho": rho2.sqrt(),
            "deviation": tree.sqdist(mu, down.w).sqrt(),
            "restored": (~ok).double(),
        }
        return Client(mu, pi, base), Up(mu, tau, base, data.n * ok), logs

    def aggregate(self, server: Prior, ups: Up, ids: Tensor) -> Prior:
        """Heads by confidence, bases by example counts; clients that were put back count for nothing."""
        if not bool(ups.tau.sum() > 0):
            return server
        return Prior(tree.average(ups.mu, ups.tau), tree.average(ups.base, ups.n))

    def personalise(self, client: Client, down: Prior, data: ClientData, keys: Keys) -> Personal:
        """The client's own base, as it trained it, and its posterior."""
        return Personal(client.base, client.mu, deviations(client.pi))

    def predict(self, personal: Personal, x: Tensor, keys: Keys) -> Tensor:
        """With the posterior mean (paper), or averaging the probabilities of drawn heads."""
        if self.prediction == "mean":
            return self.task.log_probs({**personal.base, **personal.mu}, x)
        with torch.no_grad():
            z = self.task.features(personal.base, x)
            heads = self.heads(personal.mu, personal.sigma, keys.fold("bma"), self.prediction_draws)
            each = [
                self.task.head_logits(tree.map(lambda h, k=k: h[:, k], heads), z) for k in range(self.prediction_draws)
            ]
            log_p = torch.stack(each).log_softmax(-1)
            return log_p.logsumexp(0) - torch.tensor(float(self.prediction_draws), dtype=z.dtype).log()

    def predict_global(self, server: Prior, x: Tensor) -> Tensor:
        """The shared base with the prior's mean as head."""
        whole = tree.expand({**server.base, **server.w}, 1)
        return self.task.log_probs(whole, x.unsqueeze(0)).squeeze(0)


def _part(q: Params, name: str) -> Params:
    prefix = f"{name}/"
    return {k.removeprefix(prefix): v for k, v in q.items() if k.startswith(prefix)}


def _restore(ok: Tensor, new: Params, old: Params) -> Params:
    """Clients that are fine keep what is new."""
    return tree.map(lambda a, b: torch.where(ok.view(-1, *[1] * (a.dim() - 1)), a, b), new, old)
