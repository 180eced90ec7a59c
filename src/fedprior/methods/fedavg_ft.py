"""FedAvg-FT: FedAvg, then every client fine-tunes the global model on its own data before it predicts.

As in the pFedFDA paper (NeurIPS 2024) and many before it: all weights, a fresh optimiser with the settings of training.
It lasts as long as a round's local training, or `ft_epochs` (five in that paper). The tuned model is never sent and
never trained further.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedprior.data.client import Batch, ClientData
from fedprior.methods._averaging import Averaging
from fedprior.protocol import About, Empty, Weights, register
from fedprior.rng import Keys
from fedprior.training import descend
from fedprior.tree import Params


@register
class FedAvgFT(Averaging):
    """FedAvg with fine-tuned copies for prediction."""

    about = About(
        name="fedavg_ft",
        title="FedAvg-FT",
        paper="McMahan et al., AISTATS 2017; fine-tuning as in McLaughlin & Su, Personalized Federated Learning via "
        "Feature Distribution Adaptation, NeurIPS",
        year=2024,
        group="baseline",
        personal="a copy of the global model, fine-tuned before prediction",
        moment="after aggregation",
    )

    ft_epochs: Annotated[
        int | None,
        Field(ge=0, description="epochs of fine-tuning before prediction; by default as in `train`; 0 is FedAvg"),
    ] = None

    @property
    def trajectory(self) -> str:
        """FedAvg's: training does not see the fine-tuned copies."""
        return "fedavg {}"

    def objective(self, w: Params, w_t: Params, batch: Batch) -> Tensor:
        """F_k(w)."""
        return self.task.nll(w, batch)

    def personalise(self, client: Empty, down: Weights, data: ClientData, keys: Keys) -> Weights:
        """Fine-tune all of the global model."""
        train = self.train.lasting(self.ft_epochs)
        return Weights(descend(self.task, train, self.objective, down.w, down.w, data, keys)[0])
