"""FedPer: a shared base, a personal head, trained together.

Arivazhagan, Aggarwal, Singh & Choudhary, arXiv 1912.00818 (2019), Algorithms 1 and 2.
"""

from __future__ import annotations

from torch import Tensor

from fedprior.data.client import ClientData
from fedprior.methods._split import Client, Shared, Split
from fedprior.protocol import About, Weights, register
from fedprior.rng import Keys
from fedprior.training import descend
from fedprior.tree import Params


@register
class FedPer(Split):
    """Personal last layer."""

    about = About(
        name="fedper",
        title="FedPer",
        paper="Arivazhagan et al., Federated Learning with Personalization Layers, arXiv 1912.00818",
        year=2019,
        group="split",
        personal="the head",
        moment="after aggregation",
        private=("own",),
    )

    def shares(self, name: str) -> bool:
        """All but the head."""
        return not name.startswith(f"{self.task.head}.")

    def fit(self, w: Params, data: ClientData, keys: Keys) -> tuple[Params, Tensor]:
        """Base and head together."""
        return descend(self.task, self.train, self.objective, w, {}, data, keys)

    def personalise(self, client: Client, down: Shared, data: ClientData, keys: Keys) -> Weights:
        """The shared base with the client's head."""
        return Weights(self.joined(client, down))
