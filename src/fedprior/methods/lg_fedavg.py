"""LG-FedAvg: the reverse of FedPer. The representation is personal, the head is shared.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov & Morency, arXiv 2001.01523 (2020), Algorithm 1.

The authors' CIFAR script lists its layers so that the convolutions end up shared, starts from a FedAvg model and picks
each user's best test round; we follow the description, from scratch. `shared_layers` counts linear layers from the end.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fedprior.data.client import ClientData
from fedprior.local import descend
from fedprior.methods._split import Client, Shared, Split, Up
from fedprior.protocol import About, Weights, register
from fedprior.rng import Keys
from fedprior.tree import Params


@register
@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Split):
    """Personal representation."""

    about = About(
        name="lg_fedavg",
        title="LG-FedAvg",
        paper="Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, "
        "arXiv 2001.01523",
        year=2020,
        group="split",
        personal="everything but the last layers",
        moment="after aggregation",
        private=("own",),
    )
    types = (Shared, Client, Shared, Up, Weights)

    shared_layers: Annotated[int, Field(ge=1, description="linear layers that are shared, from the end")] = 1

    def shares(self, name: str) -> bool:
        """The last linear layers."""
        linear = [n for n, m in self.task.module.named_modules() if isinstance(m, nn.Linear)]
        return name.rpartition(".")[0] in linear[-self.shared_layers :]

    def fit(self, w: Params, data: ClientData, keys: Keys) -> tuple[Params, Tensor]:
        """Everything together."""
        return descend(self.task, self.train, self.objective, w, {}, data, keys)

    def personalise(self, client: Client, down: Shared, data: ClientData, keys: Keys) -> Weights:
        """The client's representation with the shared head."""
        return Weights(self.joined(client, down))
