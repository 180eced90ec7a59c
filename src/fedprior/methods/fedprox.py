"""FedProx: FedAvg with local models held near the global one.

Li, Sahu, Zaheer, Sanjabi, Talwalkar & Smith, MLSys 2020, Algorithm 2, Eq. 2. The norm is squared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from fedprior import tree
from fedprior.data.client import Batch, ClientData
from fedprior.methods._averaging import Averaging
from fedprior.protocol import About, Empty, Space, Weights, register
from fedprior.rng import Keys
from fedprior.tree import Params


@register
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

    renamed: ClassVar[Mapping[str, str]] = {"mu": "strength"}

    space: ClassVar[Mapping[str, Space]] = {"strength": (0.001, 10.0)}

    strength: Annotated[float, Field(ge=0, description="μ, pull towards the global model; 0 is FedAvg")] = 0.01

    @property
    def pull(self) -> float:
        """μ."""
        return self.strength

    def objective(self, w: Params, w_t: Params, batch: Batch) -> Tensor:
        """F_k(w) + μ/2 ‖w - w_t‖²  (Eq. 2)."""
        return self.task.nll(w, batch) + self.strength / 2 * tree.sqdist(
            self.task.parameters(w), self.task.parameters(w_t)
        )

    def personalise(self, client: Empty, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """The global model."""
        return down
