"""FedMAP: each client finds a maximum a posteriori estimate under a Gaussian prior whose mean the server learns.

Zhang, Esteve-Yagüe, Dittmer, Schönlieb & Roberts, arXiv 2405.19000 (2024): Algorithm 2, Eqs. 5-9.

    prior       θ_k ~ N(γ, σ² I)                                                     (Eq. 5)
    client      θ_k = argmin L_k(θ) + ‖θ - γ‖² / (2σ²),  L_k the mean loss            (Eq. 7)
    confidence  log ω_k = -L_k(θ_k) - ‖θ_k - γ‖² / (2σ²)                             (Eq. 8, per-example mean)
    server      γ = Σ ω_k θ_k / Σ ω_k                                                (Eq. 9)

Deviations from the authors' code: the server really weighs by ω (their released server uses example counts, our
`omega="num_examples"`); ω is a softmax of logs, because the product of 1,400 likelihoods underflows; the mean loss
replaces the sum of Eq. 8, which gives one client all the weight (`omega="sum"` is the literal equation).
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


class Prior(NamedTuple):
    """The prior's mean: the server's state and its message."""

    gamma: Params


class Client(NamedTuple):
    """A client's own model."""

    theta: Params


class Up(NamedTuple):
    """A client's model and the log of its weight."""

    theta: Params
    log_omega: Tensor  # [C] float64


@register
@dataclass(frozen=True, kw_only=True)
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
    types = (Prior, Client, Prior, Up, Weights)

    sigma2: Annotated[float, Field(gt=0, description="variance σ² of the prior")] = 15.0
    prior_strength: Annotated[
        float | None, Field(ge=0, description="1/σ², replaces sigma2 when given; 0 means no prior")
    ] = None
    omega: Annotated[
        Literal["mean", "sum", "per_sample", "num_examples", "uniform"],
        Field(description="what a client's weight in the server's mean is made of"),
    ] = "mean"
    start_from: Annotated[
        Literal["own", "gamma"], Field(description="where local training starts: the client's last model or γ")
    ] = "own"

    @property
    def strength(self) -> float:
        """1/σ²."""
        return 1 / self.sigma2 if self.prior_strength is None else self.prior_strength

    def energy(self, theta: Params, gamma: Params) -> Tensor:
        """R(θ; γ) = ‖θ - γ‖² / (2σ²), [C]; buffers are no part of it."""
        parameters = self.task.parameters
        return self.strength / 2 * tree.sqdist(parameters(theta), parameters(gamma))

    def objective(self, theta: Params, gamma: Params, batch: Batch) -> Tensor:
        """-log posterior per example: the prior counts in full at every step  (Eq. 7)."""
        nll = self.task.nll(theta, batch)
        return nll + self.energy(theta, gamma) if self.strength else nll

    def log_omega(self, theta: Params, gamma: Params, data: ClientData) -> Tensor:
        """The log of a client's weight, up to a constant that all clients share, [C] float64  (Eq. 8)."""
        if self.omega == "uniform":
            return torch.zeros(len(data), dtype=torch.float64)
        if self.omega == "num_examples":
            return data.n.log()
        nll, energy = self.task.data_nll(theta, data), self.energy(theta, gamma).double()
        if self.omega == "sum":
            return -data.n * nll - energy
        return -nll - (energy / data.n if self.omega == "per_sample" else energy)

    def init_server(self, key: Key) -> Prior:
        """γ starts at the initial weights."""
        return Prior(self.task.init(key.fold("init")))

    def broadcast(self, server: Prior, ids: Tensor) -> Prior:
        """γ, to everyone."""
        return server

    def init_client(self, down: Prior, data: ClientData, keys: Keys) -> Client:
        """A client that joins starts at the prior's mean."""
        return Client(down.gamma)

    def local_update(self, client: Client, down: Prior, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """Minimise Eq. 7 by stochastic steps, then weigh the result  (Alg. 2)."""
        start = client.theta if self.start_from == "own" else down.gamma
        theta, loss = descend(self.task, self.train, self.objective, start, down.gamma, data, keys)
        log_omega = self.log_omega(theta, down.gamma, data)
        return Client(theta), Up(theta, log_omega), {"loss": loss, "log_omega": log_omega}

    def aggregate(self, server: Prior, ups: Up, ids: Tensor) -> Prior:
        """γ = Σ softmax(log ω)_k θ_k  (Eq. 9)."""
        return Prior(tree.average(ups.theta, ups.log_omega.softmax(0)))

    def personalise(self, client: Client, down: Prior, data: ClientData, keys: Keys) -> Weights:
        """The client's own model."""
        return Weights(client.theta)

    def predict(self, personal: Weights, x: Tensor, keys: Keys) -> Tensor:
        """The network's own distribution at the MAP estimate."""
        return self.task.log_probs(personal.w, x)

    def predict_global(self, server: Prior, x: Tensor) -> Tensor:
        """The network at the prior's mean."""
        return self.task.log_probs(tree.expand(server.gamma, 1), x.unsqueeze(0)).squeeze(0)
