"""The tasks: data, our method with the authors' settings, a round of their code, and the numbers to be compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from authors.released import Competitor, Numbers, Perceptron, cifar_network, fedmap, flat, ordered, pfedfda, pfedvem_of
from fedprior.data.federation import Federation, from_arrays
from fedprior.engine import AnyMethod
from fedprior.methods import build
from fedprior.models import build as build_model
from fedprior.models.likelihood import likelihood_of
from fedprior.models.task import Task
from fedprior.training import Train


class Work(NamedTuple):
    """A task: what is trained by whom, and how near the numbers must be to each other."""

    title: str
    data: Callable[[], Federation]
    method: AnyMethod
    theirs: Callable[[Path, AnyMethod, Federation], Competitor]
    ours: Callable[[Any], Numbers]  # the numbers of an engine after the last round
    model: dict[str, Any]
    train: Train
    near: dict[str, float]  # largest difference of each number, relative to its mean size; infinite: shown, not judged

    def bound(self, data: Federation) -> AnyMethod:
        """Our method on its network."""
        likelihood = likelihood_of(data.target)
        options = dict(self.model)
        network = build_model(options.pop("name"), options, data.shape, likelihood.outputs)
        return self.method.bind(Task(network, likelihood), self.train)


def make(clients: int, examples: int, shape: tuple[int, ...], classes: int) -> Callable[[], Federation]:
    """Noise around a centre for each class, so that there is something to learn."""

    def load() -> Federation:
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((classes, *shape), dtype=np.float32) / 4
        y = np.arange(round(examples / 0.8)) % classes
        rows = {
            f"c{k:03d}": (centres[y] + rng.standard_normal((len(y), *shape), dtype=np.float32), y)
            for k in range(clients)
        }
        return from_arrays(rows, classes=classes, validation=0.0, test=0.2)

    return load


def pfedvem_ours(engine: Any) -> Numbers:
    base = ordered(engine.method, engine.server.base)
    return {"ρ": torch.from_numpy(engine.logs["rho"]), "base": flat(base.values())}


def pfedfda_ours(engine: Any) -> Numbers:
    beta = [engine.logs["beta"], engine.logs["beta_covariance"]]
    phi = ordered(engine.method, engine.server.phi)
    return {"φ": flat(phi.values()), "β": torch.from_numpy(np.stack(beta, 1))}


def fedmap_ours(engine: Any) -> Numbers:
    return {"γ": flat(ordered(engine.method, engine.server.gamma).values())}


VEM = Train(lr=0.001, momentum=0.9, batch_size=10, epochs=5)
NOISE = {"ρ": 0.02, "base": 0.2}
WORKS: dict[str, list[Work]] = {
    "pfedvem": [
        Work(
            title="pFedVEM, perceptron 784-100-10, 50 clients × 200",
            data=make(50, 200, (784,), 10),
            method=build("pfedvem"),
            theirs=pfedvem_of(Perceptron),
            ours=pfedvem_ours,
            model={"name": "mlp"},
            train=VEM,
            near=NOISE,
        ),
        Work(
            title="pFedVEM, their CIFAR network, 10 clients × 200",
            data=make(10, 200, (3, 32, 32), 10),
            method=build("pfedvem"),
            theirs=pfedvem_of(cifar_network),
            ours=pfedvem_ours,
            model={"name": "cnn_cifar_lenet"},
            train=VEM,
            near=NOISE,
        ),
    ],
    "pfedfda": [
        Work(
            title="pFedFDA, their CIFAR network, 10 clients × 200, two β",
            data=make(10, 200, (3, 32, 32), 10),
            method=build("pfedfda", {"beta": "double", "feature_cache": "all_epochs", "folds_by": "copy"}),
            theirs=pfedfda,
            ours=pfedfda_ours,
            model={"name": "cnn_cifar"},
            train=Train(lr=0.01, momentum=0.5, weight_decay=5e-4, batch_size=50, epochs=5),
            near={"φ": 0.05, "β": math.inf},
        )
    ],
    "fedmap": [
        Work(
            title="FedMAP, perceptron 30-32-16-1, 10 clients × 1,400, ten epochs",
            data=make(10, 1400, (30,), 2),
            method=build("fedmap", {"omega": "num_examples"}),
            theirs=fedmap,
            ours=fedmap_ours,
            model={"name": "mlp", "hidden": (32, 16), "single_logit": True},
            train=Train(optimizer="adam", lr=1e-4, batch_size=64, epochs=10),
            near={"γ": 1e-3},
        )
    ],
}
