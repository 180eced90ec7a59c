"""FedMAP: each client finds a maximum a posteriori estimate under a Gaussian prior that the server learns.

Zhang, Esteve-Yagüe, Dittmer, Schönlieb & Roberts, arXiv 2405.19000 (2024): Algorithm 2, Eqs. 5-9.

    prior       θ_k ~ N(γ, σ² I)                                                     (Eq. 5)
    client      θ_k = argmin L_k(θ) + ‖θ - γ‖² / (2σ²),  L_k the mean loss            (Eq. 7)
    confidence  log ω_k = -L_k(θ_k) - ‖θ_k - γ‖² / (2σ²)                             (Eq. 8, per-example mean)
    server      γ = Σ ω_k θ_k / Σ ω_k                                                (Eq. 9)

An extension that the paper names as future work: `prior="diagonal"` learns a variance for every weight, by empirical
Bayes. A client adds the variance of its Laplace posterior, v_k = 1 / (h_k + 1/σ²), h_k the curvature of its mean loss;
the server matches the moments of the clients' posteriors, σ² = Σ ω_k [v_k + (θ_k - γ)²] / Σ ω_k, with a floor.

Readings: the paper's equations disagree. Eq. 3 weighs by the likelihood alone (`omega="likelihood"`), Eq. 8 by the
posterior of all examples (`omega="sum"`), which gives one client all the weight; ours is Eq. 8 with the mean loss of
Eq. 7. Eq. 6 sums the loss where Eq. 7 takes its mean (`loss="sum"`). ω is a softmax of logs, because the product of
1,400 likelihoods underflows.

Which release did what: the first (May 2024) started a client at γ with its own last first layer
(`start_from="first_layer"`) and weighed by example counts; the branch of the paper's method (October 2024) starts at
the client's own model, computes ω and weighs by example counts all the same (`omega="num_examples"`); the newest
(November 2025), "beyond the Gaussian", starts at γ, weighs by ω = exp(mean log-likelihood - R/n)
(`omega="per_sample"`), and learns an input-convex network for every tensor (`prior="icnn"`, see `bayes.icnn`):

    prior       R(θ; γ) = Σ_j f_j(θ_j, γ_j) + α/2 ‖θ - γ‖² + ε (‖θ‖² + ‖γ‖²)
    server      after γ, plain gradient steps of the f_j that lower Σ ω_k R(θ_k; γ) / Σ ω_k while it is positive

Without a normaliser this is no likelihood of the prior: it makes the energy of the models at hand small and says
nothing of others. That release trains with Adam at 1e-4, a weight decay of 1e-5 and gradients clipped at 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.bayes import icnn
from fedprior.bayes.curvature import diagonal
from fedprior.bayes.gaussian import pooled_variance
from fedprior.data.client import Batch, ClientData
from fedprior.protocol import About, Logs, Method, Space, Weights, register
from fedprior.rng import Key, Keys
from fedprior.training import descend
from fedprior.tree import Params


class Prior(NamedTuple):
    """The prior's mean and what else is learned of it: the server's state and its message."""

    gamma: Params
    variance: Params  # of prior="diagonal"; otherwise empty
    network: Params  # of prior="icnn"; otherwise empty


class Fixed(NamedTuple):
    """What a client's objective needs besides its model."""

    prior: Prior
    n: Tensor  # [C]


class Client(NamedTuple):
    """A client's own model."""

    theta: Params


class Up(NamedTuple):
    """A client's model, the log of its weight and, for a learned variance, that of its posterior."""

    theta: Params
    log_omega: Tensor  # [C] float64
    variance: Params


SHRINKAGE = 1e-4
"""ε of `prior="icnn"`."""


@register
class FedMAP(Method[Prior, Client, Prior, Up, Weights]):
    """MAP estimation under a learned Gaussian prior."""

    about = About(
        name="fedmap",
        title="FedMAP",
        paper="Zhang et al., FedMAP: Unlocking Potential in Personalized Federated Learning through Bi-Level MAP "
        "Optimization, arXiv 2405.19000",
        year=2024,
        group="Bayesian prior",
        personal="the whole network",
        moment="after local training",
    )

    renamed: ClassVar[Mapping[str, str]] = {"prior_strength": "strength"}
    space: ClassVar[Mapping[str, Space]] = {"sigma2": (0.05, 50.0)}

    sigma2: Annotated[float, Field(gt=0, description="variance σ² of the prior")] = 15.0
    strength: Annotated[float | None, Field(ge=0, description="1/σ², replaces sigma2 if given; 0 means no prior")] = (
        None
    )
    omega: Annotated[
        Literal["mean", "sum", "per_sample", "likelihood", "num_examples", "uniform"],
        Field(
            description="a client's weight at the server: exp(-L - R) with the mean loss L, exp(-nL - R) (Eq. 8), "
            "exp(-L - R/n), the likelihood alone (Eq. 3, of `loss`), its example count, or equal weights"
        ),
    ] = "mean"
    loss: Annotated[
        Literal["mean", "sum"],
        Field(
            description="Eq. 7's mean over the client's examples, or Eq. 6's sum (divided by n, with the prior: the "
            "same minimiser)"
        ),
    ] = "mean"
    start_from: Annotated[
        Literal["own", "gamma", "first_layer"],
        Field(
            description="where local training starts: the client's last model, γ, or γ with the client's first layer"
        ),
    ] = "own"

    prior: Annotated[
        Literal["isotropic", "diagonal", "icnn"],
        Field(description="a constant variance, one learned per weight, or a learned input-convex network"),
    ] = "isotropic"
    variance_floor: Annotated[
        float,
        Field(
            gt=0,
            description="smallest learned variance, so that the prior does not collapse",
            json_schema_extra={"alive_with": {"prior": "diagonal", "variance_floor": 14.0}},
        ),
    ] = 1e-3
    icnn_pull: Annotated[
        float, Field(ge=0, description="α beside the network", json_schema_extra={"alive_with": {"prior": "icnn"}})
    ] = 0.01
    icnn_lr: Annotated[
        float,
        Field(
            gt=0, description="step of the server on the network", json_schema_extra={"alive_with": {"prior": "icnn"}}
        ),
    ] = 1e-3
    icnn_steps: Annotated[
        int,
        Field(ge=0, description="its steps in a round", json_schema_extra={"alive_with": {"prior": "icnn"}}),
    ] = 2

    @property
    def precision(self) -> float:
        """1/σ²."""
        return 1 / self.sigma2 if self.strength is None else self.strength

    @property
    def pull(self) -> float:
        """1/σ²; a learned variance differs from weight to weight, and has no one pull."""
        return 0.0 if self.learned or self.convex else self.precision

    @property
    def learned(self) -> bool:
        """Whether the variance is learned; without a prior there is none to learn."""
        return self.prior == "diagonal" and self.precision > 0

    @property
    def convex(self) -> bool:
        """Whether an input-convex network is learned."""
        return self.prior == "icnn" and self.precision > 0

    def energy(self, theta: Params, prior: Prior) -> Tensor:
        """R(θ; γ) = ½ Σ (θ - γ)² / σ², or the network's, [C]; buffers are excluded."""
        own, mean = self.task.parameters(theta), self.task.parameters(prior.gamma)
        if self.convex:
            ball = SHRINKAGE * (_norm2(own) + _norm2(mean))
            return icnn.energy(prior.network, own, mean) + self.icnn_pull / 2 * tree.sqdist(own, mean) + ball
        if not self.learned:
            return self.precision / 2 * tree.sqdist(own, mean)
        scale = tree.map(torch.rsqrt, prior.variance)
        return tree.sqdist(tree.map(torch.mul, own, scale), tree.map(torch.mul, mean, scale)) / 2

    def objective(self, theta: Params, fixed: Fixed, batch: Batch) -> Tensor:
        """The mean loss and the prior, which counts in full at every step  (Eq. 7), or as one of n terms  (Eq. 6)."""
        nll = self.task.nll(theta, batch)
        if not self.precision:
            return nll
        energy = self.energy(theta, fixed.prior)
        return nll + (energy if self.loss == "mean" else energy / fixed.n)

    def posterior_variance(self, theta: Params, prior: Prior, data: ClientData) -> Params:
        """v_k = 1 / (h_k + 1/σ²): the Laplace approximation of the objective, h_k of the mean loss or of the sum."""
        n = data.n.to(self.task.dtype) if self.loss == "mean" else torch.ones(len(data), dtype=self.task.dtype)
        h = diagonal(self.task, theta, data, "ggn")
        mean = {k: leaf / n.view(-1, *[1] * (leaf.dim() - 1)) for k, leaf in h.items()}
        return tree.map(lambda a, s: 1 / (a + 1 / s), mean, prior.variance)

    def log_omega(self, theta: Params, prior: Prior, data: ClientData) -> Tensor:
        """The log of a client's weight, up to a constant that all clients share, [C] float64  (Eq. 8)."""
        if self.omega == "uniform":
            return torch.zeros(len(data), dtype=torch.float64)
        if self.omega == "num_examples":
            return data.n.log()
        nll = self.task.data_nll(theta, data)
        if self.omega == "likelihood":
            return -nll if self.loss == "mean" else -data.n * nll
        energy = self.energy(theta, prior).double()
        if self.omega == "sum":
            return -data.n * nll - energy
        return -nll - (energy / data.n if self.omega == "per_sample" else energy)

    def init_server(self, key: Key, clients: int = 1) -> Prior:
        """γ starts at the initial weights, a learned variance at σ², a network at random."""
        gamma = self.task.init(key.fold("init"))
        start = {k: torch.full_like(v, 1 / self.precision) for k, v in gamma.items()} if self.learned else {}
        network = icnn.init(self.task.parameters(gamma), key.fold("icnn")) if self.convex else {}
        return Prior(gamma, self.task.parameters(start), network)

    def broadcast(self, server: Prior, ids: Tensor) -> Prior:
        """The prior, to everyone."""
        return server

    def init_client(self, down: Prior, data: ClientData, keys: Keys) -> Client:
        """A client that joins starts at the prior's mean."""
        return Client(down.gamma)

    def start(self, client: Client, down: Prior) -> Params:
        """Where local training starts."""
        if self.start_from == "own":
            return client.theta
        first = next(name for name, _ in self.task.module.named_parameters()).rpartition(".")[0]
        kept = client.theta if self.start_from == "first_layer" else {}
        return down.gamma | {k: v for k, v in kept.items() if k.startswith(f"{first}.")}

    def local_update(self, client: Client, down: Prior, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """Minimise Eq. 7 by stochastic steps, then weigh the result  (Alg. 2)."""
        fixed = Fixed(down, data.n.to(self.task.dtype))
        theta, loss = descend(self.task, self.train, self.objective, self.start(client, down), fixed, data, keys)
        log_omega = self.log_omega(theta, down, data)
        variance = self.posterior_variance(theta, down, data) if self.learned else {}
        return Client(theta), Up(theta, log_omega, variance), {"loss": loss, "log_omega": log_omega}

    def aggregate(self, server: Prior, ups: Up, ids: Tensor) -> Prior:
        """γ = Σ softmax(log ω)_k θ_k  (Eq. 9), and the moments of the posteriors about it."""
        omega = ups.log_omega.softmax(0)
        gamma = tree.average(ups.theta, omega)
        own, mean = self.task.parameters(ups.theta), self.task.parameters(gamma)
        if self.learned:
            return Prior(gamma, pooled_variance(own, ups.variance, mean, omega, self.variance_floor), {})
        return Prior(gamma, {}, self.fitted(server.network, ups.theta, gamma, omega) if self.convex else {})

    def fitted(self, network: Params, theta: Params, gamma: Params, omega: Tensor) -> Params:
        """The networks after this round's steps, given the clients' models [R, ...], the new γ and weights [R]."""

        def mean_energy(leaves: Params) -> Tensor:
            prior: Prior = tree.expand(Prior(gamma, {}, leaves), len(omega))
            return (omega * self.energy(theta, prior).double()).sum()

        return icnn.lowered(network, mean_energy, self.icnn_lr, self.icnn_steps)

    def personalise(self, client: Client, down: Prior, data: ClientData, keys: Keys) -> Weights:
        """The client's own model."""
        return Weights(client.theta)

    def predict_global(self, server: Prior, x: Tensor) -> Tensor:
        """The network at the prior's mean."""
        return self.task.predictive_shared(server.gamma, x)


def _norm2(w: Params) -> Tensor:
    return torch.stack([leaf.square().flatten(1).sum(1) for leaf in w.values()]).sum(0)
