"""FedBABU: only the base is trained, against a head that stays at its random start; clients fine-tune to predict.

Oh, Kim & Yun, ICLR 2022, Algorithm 1. The original fine-tunes the whole model for five epochs (`ft="all"`); the pFedFDA
paper fine-tunes the head.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior.data.client import ClientData
from fedprior.local import descend
from fedprior.methods._split import Client, Shared, Split, Up
from fedprior.protocol import About, Weights, register
from fedprior.rng import Keys
from fedprior.tree import Params


@register
@dataclass(frozen=True, kw_only=True)
class FedBABU(Split):
    """Body aggregation, body update."""

    about = About(
        name="fedbabu",
        title="FedBABU",
        paper="Oh, Kim & Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR",
        year=2022,
        group="split",
        personal="a head, and perhaps a base, fine-tuned when it predicts",
        moment="after aggregation",
        private=("own",),
        fixed_state=True,
        head_phase=True,
    )
    types = (Shared, Client, Shared, Up, Weights)

    ft: Annotated[Literal["head", "all"], Field(description="what is fine-tuned before prediction")] = "head"
    ft_epochs: Annotated[int, Field(ge=0, description="epochs of fine-tuning before prediction")] = 5

    def shares(self, name: str) -> bool:
        """All but the head."""
        return not name.startswith(f"{self.task.head}.")

    def fit(self, w: Params, data: ClientData, keys: Keys) -> tuple[Params, Tensor]:
        """The base alone: the head keeps its start for ever."""
        return self.train_part(w, self.train, data, keys, head=False)

    def personalise(self, client: Client, down: Shared, data: ClientData, keys: Keys) -> Weights:
        """Fine-tune a copy."""
        w, train = self.joined(client, down), self.train.lasting(self.ft_epochs)
        if self.ft == "head":
            return Weights(self.train_part(w, train, data, keys, head=True)[0])
        return Weights(descend(self.task, train, self.objective, w, {}, data, keys)[0])
