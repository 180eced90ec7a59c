"""FedBABU: only the base is trained, with a fixed random head; clients fine-tune before prediction.

Oh, Kim & Yun, ICLR 2022, Algorithm 1. The original fine-tunes the whole model for five epochs (`ft="all"`); the pFedFDA
paper fine-tunes the head. Here fine-tuning by default lasts as long as a round's local training (`ft_epochs`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from fedprior.data.client import ClientData
from fedprior.methods._split import Client, Shared, Split
from fedprior.protocol import About, Hints, Weights, register
from fedprior.rng import Keys
from fedprior.training import descend
from fedprior.tree import Params


@register
class FedBABU(Split):
    """Body aggregation, body update."""

    about = About(
        name="fedbabu",
        title="FedBABU",
        paper="Oh, Kim & Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR",
        year=2022,
        group="split",
        personal="a head, and optionally a base, fine-tuned before prediction",
        moment="after aggregation",
        private=("own",),
    )
    hints = Hints(fixed_state=True, head_phase=True)

    ft: Annotated[Literal["head", "all"], Field(description="what is fine-tuned before prediction")] = "head"
    ft_epochs: Annotated[
        int | None, Field(ge=0, description="epochs of fine-tuning before prediction; by default as in `train`")
    ] = None

    def shares(self, name: str) -> bool:
        """All but the head."""
        return not name.startswith(f"{self.task.head}.")

    def fit(self, w: Params, data: ClientData, keys: Keys) -> tuple[Params, Tensor]:
        """Only the base: the head keeps its initial weights."""
        return self.train_part(w, self.train, data, keys, head=False)

    def personalise(self, client: Client, down: Shared, data: ClientData, keys: Keys) -> Weights:
        """Fine-tune a copy."""
        w, train = self.joined(client, down), self.train.lasting(self.ft_epochs)
        if self.ft == "head":
            return Weights(self.train_part(w, train, data, keys, head=True)[0])
        return Weights(descend(self.task, train, self.objective, w, {}, data, keys)[0])
