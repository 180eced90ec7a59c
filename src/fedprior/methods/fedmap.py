"""FedMAP: each client finds a maximum a posteriori estimate under a Gaussian prior that the server learns.

Zhang, Esteve-Yagüe, Dittmer, Schönlieb & Roberts, arXiv 2405.19000 (2024): Algorithm 2, Eqs. 5-9.

    prior       θ_k ~ N(γ, σ² I)                                                     (Eq. 5)
    client      θ_k = argmin L_k(θ) + ‖θ - γ‖² / (2σ²),  L_k the mean loss            (Eq. 7)
    confidence  log ω_k = -L_k(θ_k) - ‖θ_k - γ‖² / (2σ²)                             (Eq. 8, per-example mean)
    server      γ = Σ ω_k θ_k / Σ ω_k                                                (Eq. 9)

An extension that the paper names as future work: `prior="diagonal"` learns a variance for every weight, by empirical
Bayes. A client adds the variance of its Laplace posterior, v_k = 1 / (h_k + 1/σ²), h_k the curvature of its mean loss;
the server matches the moments of the clients' posteriors, σ² = Σ ω_k [v_k + (θ_k - γ)²] / Σ ω_k, with a floor.

Deviations from the authors' code: the server weights by ω (their released server uses example counts, our
`omega="num_examples"`); ω is a softmax of logs, because the product of 1,400 likelihoods underflows; the mean loss
replaces the sum of Eq. 8, which gives one client all the weight (`omega="sum"` is the literal equation).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.bayes.curvature import diagonal
from fedprior.bayes.gaussian import pooled_variance
from fedprior.data.client import Batch, ClientData
from fedprior.protocol import About, Logs, Method, Space, Weights, register
from fedprior.rng import Key, Keys
from fedprior.training import descend
from fedprior.tree import Params


class Prior(NamedTuple):
    """The prior's mean and, if it is learned, its variance: the server's state and its message."""

    gamma: Params
    variance: Params  # empty for the isotropic prior, whose variance is a constant


class Client(NamedTuple):
    """A client's own model."""

    theta: Params


class Up(NamedTuple):
    """A client's model, the log of its weight and, for a learned variance, that of its posterior."""

    theta: Params
    log_omega: Tensor  # [C] float64
    variance: Params


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
        Literal["mean", "sum", "per_sample", "num_examples", "uniform"],
        Field(description="how a client's weight in the server's mean is computed"),
    ] = "mean"
    start_from: Annotated[
        Literal["own", "gamma"], Field(description="where local training starts: the client's last model or γ")
    ] = "own"

    prior: Annotated[
        Literal["isotropic", "diagonal"], Field(description="a constant variance, or one learned per weight")
    ] = "isotropic"
    variance_floor: Annotated[
        float,
        Field(
            gt=0,
            description="smallest learned variance, so that the prior does not collapse",
            json_schema_extra={"alive_with": {"prior": "diagonal", "variance_floor": 14.0}},
        ),
    ] = 1e-3

    @property
    def precision(self) -> float:
        """1/σ²."""
        return 1 / self.sigma2 if self.strength is None else self.strength

    @property
    def pull(self) -> float:
        """1/σ²; a learned variance differs from weight to weight, and has no one pull."""
        return 0.0 if self.learned else self.precision

    @property
    def learned(self) -> bool:
        """Whether the variance is learned; without a prior there is none to learn."""
        return self.prior == "diagonal" and self.precision > 0

    def energy(self, theta: Params, prior: Prior) -> Tensor:
        """R(θ; γ) = ½ Σ (θ - γ)² / σ², [C]; buffers are excluded."""
        own, mean = self.task.parameters(theta), self.task.parameters(prior.gamma)
        if not self.learned:
            return self.precision / 2 * tree.sqdist(own, mean)
        scale = tree.map(torch.rsqrt, prior.variance)
        return tree.sqdist(tree.map(torch.mul, own, scale), tree.map(torch.mul, mean, scale)) / 2

    def objective(self, theta: Params, prior: Prior, batch: Batch) -> Tensor:
        """-log posterior per example: the prior counts in full at every step  (Eq. 7)."""
        nll = self.task.nll(theta, batch)
        return nll + self.energy(theta, prior) if self.precision else nll

    def posterior_variance(self, theta: Params, prior: Prior, data: ClientData) -> Params:
        """v_k = 1 / (h_k + 1/σ²): the Laplace approximation of the objective that Eq. 7 minimises."""
        n = data.n.to(self.task.dtype)
        h = diagonal(self.task, theta, data, "ggn")
        mean = {k: leaf / n.view(-1, *[1] * (leaf.dim() - 1)) for k, leaf in h.items()}
        return tree.map(lambda a, s: 1 / (a + 1 / s), mean, prior.variance)

    def log_omega(self, theta: Params, prior: Prior, data: ClientData) -> Tensor:
        """The log of a client's weight, up to a constant that all clients share, [C] float64  (Eq. 8)."""
        if self.omega == "uniform":
            return torch.zeros(len(data), dtype=torch.float64)
        if self.omega == "num_examples":
            return data.n.log()
        nll, energy = self.task.data_nll(theta, data), self.energy(theta, prior).double()
        if self.omega == "sum":
            return -data.n * nll - energy
        return -nll - (energy / data.n if self.omega == "per_sample" else energy)

    def init_server(self, key: Key, clients: int = 1) -> Prior:
        """γ starts at the initial weights, a learned variance at σ²."""
        gamma = self.task.init(key.fold("init"))
        start = {k: torch.full_like(v, 1 / self.precision) for k, v in gamma.items()} if self.learned else {}
        return Prior(gamma, self.task.parameters(start))

    def broadcast(self, server: Prior, ids: Tensor) -> Prior:
        """γ, to everyone."""
        return server

    def init_client(self, down: Prior, data: ClientData, keys: Keys) -> Client:
        """A client that joins starts at the prior's mean."""
        return Client(down.gamma)

    def local_update(self, client: Client, down: Prior, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """Minimise Eq. 7 by stochastic steps, then weigh the result  (Alg. 2)."""
        start = client.theta if self.start_from == "own" else down.gamma
        theta, loss = descend(self.task, self.train, self.objective, start, down, data, keys)
        log_omega = self.log_omega(theta, down, data)
        variance = self.posterior_variance(theta, down, data) if self.learned else {}
        return Client(theta), Up(theta, log_omega, variance), {"loss": loss, "log_omega": log_omega}

    def aggregate(self, server: Prior, ups: Up, ids: Tensor) -> Prior:
        """γ = Σ softmax(log ω)_k θ_k  (Eq. 9), and the moments of the posteriors about it."""
        omega = ups.log_omega.softmax(0)
        gamma = tree.average(ups.theta, omega)
        if not self.learned:
            return Prior(gamma, server.variance)
        own, mean = self.task.parameters(ups.theta), self.task.parameters(gamma)
        return Prior(gamma, pooled_variance(own, ups.variance, mean, omega, self.variance_floor))

    def personalise(self, client: Client, down: Prior, data: ClientData, keys: Keys) -> Weights:
        """The client's own model."""
        return Weights(client.theta)

    def predict_global(self, server: Prior, x: Tensor) -> Tensor:
        """The network at the prior's mean."""
        return self.task.predictive_shared(server.gamma, x)
