"""Where an option belongs that was given without its section."""

from __future__ import annotations

from fedprior.data import datasets
from fedprior.methods import METHODS
from fedprior.models import MODELS
from fedprior.options import names
from fedprior.training import Train


def meant(key: str, *, several: bool) -> str | None:
    """`train.lr` for `lr`; None if no section has such an option. `several`: in a comparison of several methods."""
    homes = {
        "train": names(Train),
        "data": [option for entry in datasets.catalogue() for option in entry["options"]],
        "model": [option for network in MODELS.values() for option in names(network)],
        "methods.NAME" if several else "method": [option for each in METHODS.values() for option in names(each)],
    }
    return next((f"{section}.{key}" for section, known in homes.items() if key in known), None)
