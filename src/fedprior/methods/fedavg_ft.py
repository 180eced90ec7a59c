"""FedAvg-FT: FedAvg, then every client fine-tunes the global model on its own data before it predicts.

As in the pFedFDA paper (NeurIPS 2024) and many before it: all weights, five epochs, a fresh optimiser with the
settings of training. The tuned model is never sent and never trained further.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior.data.client import Batch, ClientData
from fedprior.local import descend
from fedprior.methods._averaging import Averaging, Up
from fedprior.protocol import About, Empty, Weights, register
from fedprior.rng import Keys
from fedprior.tree import Params


@register
@dataclass(frozen=True, kw_only=True)
class FedAvgFT(Averaging):
    """FedAvg with fine-tuned copies for prediction."""

    about = About(
        name="fedavg_ft",
        title="FedAvg-FT",
        paper="McMahan et al., AISTATS 2017; fine-tuning as in McLaughlin & Su, Personalized Federated Learning via "
        "Feature Distribution Adaptation, NeurIPS",
        year=2024,
        group="baseline",
        personal="a fine-tuned copy of the global model, made when it predicts",
        moment="after aggregation",
    )
    types = (Weights, Empty, Weights, Up, Weights)

    ft_epochs: Annotated[int, Field(ge=0, description="epochs of fine-tuning before prediction; 0 is FedAvg")] = 5

    def objective(self, w: Params, w_t: Params, batch: Batch) -> Tensor:
        """F_k(w)."""
        return self.task.nll(w, batch)

    def personalise(self, client: Empty, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """Fine-tune all of the global model."""
        train = self.train.lasting(self.ft_epochs)
        return Weights(descend(self.task, train, self.objective, down.w, down.w, data, keys)[0])
