"""LG-FedAvg: the reverse of FedPer. The representation is personal, the head is shared.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov & Morency, arXiv 2001.01523 (2020), Algorithm 1.

The authors' CIFAR script lists its layers so that the convolutions end up shared, starts from a FedAvg model and picks
each user's best test round; we follow the description, from scratch. `shared_layers` counts from the task's head
backwards: the head, then the linear layers that are registered before it.
"""

from __future__ import annotations

import itertools
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from fedprior.data.client import ClientData
from fedprior.methods._split import Client, Shared, Split
from fedprior.protocol import About, Weights, register
from fedprior.rng import Keys
from fedprior.training import descend
from fedprior.tree import Params


@register
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

    shared_layers: Annotated[int, Field(ge=1, description="linear layers that are shared, from the head backwards")] = 1

    def shares(self, name: str) -> bool:
        """The head and the linear layers before it."""
        modules = dict(self.task.module.named_modules())
        before = itertools.takewhile(lambda layer: layer != self.task.head, modules)
        layers = [*(layer for layer in before if isinstance(modules[layer], nn.Linear)), self.task.head]
        return name.rpartition(".")[0] in layers[-self.shared_layers :]

    def fit(self, w: Params, data: ClientData, keys: Keys) -> tuple[Params, Tensor]:
        """Everything together."""
        return descend(self.task, self.train, self.objective, w, {}, data, keys)

    def personalise(self, client: Client, down: Shared, data: ClientData, keys: Keys) -> Weights:
        """The client's representation with the shared head."""
        return Weights(self.joined(client, down))
