"""FedRep: a shared base and a personal head, trained one after the other.

Collins, Hassani, Mokhtari & Shakkottai, ICML 2021, Algorithm 1: first the head with the base frozen, then the base with
the head frozen.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior.data.client import ClientData
from fedprior.methods._split import Client, Shared, Split, Up
from fedprior.protocol import About, Weights, register
from fedprior.rng import Keys
from fedprior.tree import Params


@register
@dataclass(frozen=True, kw_only=True)
class FedRep(Split):
    """Alternating representation and head."""

    about = About(
        name="fedrep",
        title="FedRep",
        paper="Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML",
        year=2021,
        group="split",
        personal="the head",
        moment="after aggregation",
        private=("own",),
        head_phase=True,
    )
    types = (Shared, Client, Shared, Up, Weights)

    head_epochs: Annotated[int, Field(ge=0, description="epochs on the head; those on the base are train.epochs")] = 5

    def shares(self, name: str) -> bool:
        """All but the head."""
        return not name.startswith(f"{self.task.head}.")

    def fit(self, w: Params, data: ClientData, keys: Keys) -> tuple[Params, Tensor]:
        """Head, then base."""
        w, _ = self.train_part(w, self.train.lasting(self.head_epochs), data, keys.fold("head"), head=True)
        return self.train_part(w, self.train, data, keys.fold("base"), head=False)

    def personalise(self, client: Client, down: Shared, data: ClientData, keys: Keys) -> Weights:
        """The shared base with the client's head."""
        return Weights(self.joined(client, down))
