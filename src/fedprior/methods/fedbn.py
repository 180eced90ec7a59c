"""FedBN: FedAvg in which batch normalisation, weights and running statistics, never leaves the client.

Li, Jiang, Zhang, Kamp & Dou, ICLR 2021, Algorithm 1. Layers are found by their type: a name such as "bn" misses those
in an unnamed Sequential. On a network without batch normalisation it equals FedAvg, and warns.
"""

from __future__ import annotations

import warnings

from torch import Tensor, nn

from fedprior.data.client import ClientData
from fedprior.errors import FedpriorWarning
from fedprior.methods._split import Client, Shared, Split
from fedprior.protocol import About, Weights, register
from fedprior.rng import Keys
from fedprior.training import descend
from fedprior.tree import Params


@register
class FedBN(Split):
    """Personal batch normalisation."""

    about = About(
        name="fedbn",
        title="FedBN",
        paper="Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR",
        year=2021,
        group="split",
        personal="batch normalisation",
        moment="after aggregation",
        private=("own",),
    )

    def shares(self, name: str) -> bool:
        """All but the layers of batch normalisation."""
        owner = self.task.module.get_submodule(name.rpartition(".")[0])
        return not isinstance(owner, nn.modules.batchnorm._BatchNorm)

    def fit(self, w: Params, data: ClientData, keys: Keys) -> tuple[Params, Tensor]:
        """Everything together."""
        return descend(self.task, self.train, self.objective, w, {}, data, keys)

    def personalise(self, client: Client, down: Shared, data: ClientData, keys: Keys) -> Weights:
        """The shared weights with the client's norms."""
        if not client.own:
            warnings.warn(
                "FedBN has nothing to keep personal: the network has no batch normalisation, so this is FedAvg "
                "(try model.norm_layer=batch)",
                FedpriorWarning,
                stacklevel=2,
            )
        return Weights(self.joined(client, down))
