"""FedRep: a shared base and a personal head, trained one after the other.

Collins, Hassani, Mokhtari & Shakkottai, ICML 2021, Algorithm 1: first the head with the base frozen, then the base with
the head frozen. By default both phases last as long as `train` specifies (`head_epochs`: ten, with five for the base,
in the paper). The authors' code tunes every client's head once more after the last round; here it does not, so a
personal model combines the newest base with a head that was fitted to an earlier one.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from fedprior.data.client import ClientData
from fedprior.methods._split import Client, Shared, Split
from fedprior.protocol import About, Hints, Weights, register
from fedprior.rng import Keys
from fedprior.tree import Params


@register
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
    )
    hints = Hints(head_phase=True)

    head_epochs: Annotated[
        int | None,
        Field(ge=0, description="epochs on the head; by default as in `train`, which also applies to the base"),
    ] = None

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
