"""The federations of the suite, each with the kind of difference between its sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from fedprior.data import datasets, store
from fedprior.data.federation import Federation, from_arrays

Kind = Literal["alike", "labels", "inputs", "sizes", "tables"]
Suite = Literal["quick", "embedded", "all"]

QUICK = ("digits 3 labels", "breast cancer Dirichlet 0.5", "synthetic feature skew")


class Place(NamedTuple):
    """A federation: how its sites differ, its data section, and the network if it is not the recipe's."""

    kind: Kind
    data: Mapping[str, Any]
    model: Mapping[str, Any] | None = None
    rounds: int = 50

    @property
    def stored(self) -> bool:
        """Whether the data are on this machine, or need not be fetched."""
        name = str(self.data["name"])
        return name not in store.RECORDS or store.status(name).state == "stored"

    def load(self, seed: int) -> Federation:
        """The federation of a seed."""
        options = dict(self.data)
        name = options.pop("name")
        return generated(seed, **options) if name == "generated" else datasets.load(name, seed=seed, **options)


def _digits(kind: Kind, **partition: Any) -> Place:
    return Place(kind, {"name": "digits", "clients": 20, **partition})


PLACES: dict[str, Place] = {
    "breast cancer iid": Place("tables", {"name": "breast_cancer", "partition": "iid", "clients": 10}),
    "breast cancer Dirichlet 0.5": Place(
        "tables", {"name": "breast_cancer", "partition": "dirichlet", "alpha": 0.5, "clients": 10}
    ),
    "generated, slopes 0": Place("tables", {"name": "generated", "slopes": 0.0}, {"name": "softmax"}),
    "generated, slopes 0.8": Place("tables", {"name": "generated", "slopes": 0.8}, {"name": "softmax"}),
    "digits iid": _digits("alike", partition="iid"),
    "digits Dirichlet 1": _digits("labels", partition="dirichlet", alpha=1.0),
    "digits Dirichlet 0.3": _digits("labels", partition="dirichlet", alpha=0.3),
    "digits Dirichlet 0.1": _digits("labels", partition="dirichlet", alpha=0.1),
    "digits 5 labels": _digits("labels", partition="labels", labels=5),
    "digits 3 labels": _digits("labels", partition="labels", labels=3),
    "digits 2 labels": _digits("labels", partition="labels", labels=2),
    "synthetic label skew": Place("labels", {"name": "synthetic", "skew": "label"}),
    "synthetic feature skew": Place("inputs", {"name": "synthetic", "skew": "feature"}),
    "synthetic quantity skew": Place("sizes", {"name": "synthetic", "skew": "quantity"}),
    "heart disease": Place("tables", {"name": "heart_disease"}),
    "Office-Caltech SURF": Place("inputs", {"name": "office_caltech_surf"}),
    "Fashion-MNIST Dirichlet 0.3": Place(
        "labels",
        {"name": "fashion_mnist", "partition": "dirichlet", "alpha": 0.3, "clients": 20},
        {"name": "mlp", "hidden": [100]},
    ),
    "FEMNIST writers": Place("inputs", {"name": "femnist"}),
}
"""The embedded ones first, then those whose data must be fetched."""

SUITES: dict[Suite, list[str]] = {
    "quick": list(QUICK),
    "embedded": [name for name, place in PLACES.items() if place.data["name"] not in store.RECORDS],
    "all": list(PLACES),
}


def places(suite: Suite) -> tuple[list[str], list[str]]:
    """The federations of a suite that can be run here, and those whose data are missing."""
    wanted = SUITES[suite]
    return [n for n in wanted if PLACES[n].stored], [n for n in wanted if not PLACES[n].stored]


def generated(seed: int, slopes: float, sites: int = 30, columns: int = 8) -> Federation:
    """Sites of 30 to 200 rows; y ~ Bernoulli(σ(b_k + x (γ + u_k))), b of deviation 1, u of deviation `slopes`."""
    rng = np.random.default_rng((seed, int(100 * slopes)))
    gamma, clients = rng.normal(size=columns) / 2, {}
    for k in range(sites):
        x = rng.normal(size=(int(rng.integers(30, 201)), columns))
        logits = rng.normal() + x @ (gamma + slopes * rng.normal(size=columns))
        clients[f"site-{k:02d}"] = (x, (rng.random(len(x)) < 1 / (1 + np.exp(-logits))).astype(int))
    return from_arrays(clients, classes=2, seed=seed)
