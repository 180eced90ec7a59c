"""FedProx: FedAvg with local models held near the global one.

Li, Sahu, Zaheer, Sanjabi, Talwalkar & Smith, MLSys 2020, Algorithm 2, Eq. 2. The norm is squared.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.methods._averaging import Averaging, Up
from fedprior.protocol import About, Empty, Weights, register
from fedprior.rng import Keys
from fedprior.tree import Params


@register
@dataclass(frozen=True, kw_only=True)
class FedProx(Averaging):
    """FedAvg with a proximal term."""

    about = About(
        name="fedprox",
        title="FedProx",
        paper="Li et al., Federated Optimization in Heterogeneous Networks, MLSys",
        year=2020,
        group="regularised",
        personal="nothing",
        moment="after aggregation",
    )
    types = (Weights, Empty, Weights, Up, Weights)

    mu: Annotated[float, Field(ge=0, description="strength of the pull to the global model; 0 is FedAvg")] = 0.01

    def objective(self, w: Params, w_t: Params, batch: Batch) -> Tensor:
        """F_k(w) + μ/2 ‖w - w_t‖²  (Eq. 2)."""
        return self.task.nll(w, batch) + self.mu / 2 * tree.sqdist(self.task.parameters(w), self.task.parameters(w_t))

    def personalise(self, client: Empty, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """The global model."""
        return down
