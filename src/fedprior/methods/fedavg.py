"""FedAvg: one global model by averaging local ones.

McMahan, Moore, Ramage, Hampson & Agüera y Arcas, AISTATS 2017, Algorithm 1.
"""

from __future__ import annotations

from torch import Tensor

from fedprior.data.client import Batch, ClientData
from fedprior.methods._averaging import Averaging
from fedprior.protocol import About, Empty, Weights, register
from fedprior.rng import Keys
from fedprior.tree import Params


@register
class FedAvg(Averaging):
    """Average the clients' models; everyone predicts with the average."""

    about = About(
        name="fedavg",
        title="FedAvg",
        paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS",
        year=2017,
        group="baseline",
        personal="nothing",
        moment="after aggregation",
    )

    def objective(self, w: Params, w_t: Params, batch: Batch) -> Tensor:
        """F_k(w)."""
        return self.task.nll(w, batch)

    def personalise(self, client: Empty, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """The global model."""
        return down
