"""The list of methods, for the command and the documentation."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedprior.data.federation import Federation, from_arrays
from fedprior.engine import AnyMethod, Engine
from fedprior.engine.memory import single_thread
from fedprior.methods import build
from fedprior.models import build as build_model
from fedprior.models.likelihood import likelihood_of
from fedprior.models.task import Task
from fedprior.protocol import METHODS
from fedprior.training import Train

REFERENCE = "MLP 784-100-10, 79,510 parameters"


def catalogue() -> list[dict[str, Any]]:
    """Every method with its `about` and `hints`, and the bytes of its messages for the reference network."""
    rng = np.random.default_rng(0)
    data = from_arrays({name: (rng.normal(size=(20, 784)), np.arange(20) % 10) for name in "ab"}, classes=10)
    likelihood = likelihood_of(data.target)
    task = Task(build_model("mlp", {}, data.shape, likelihood.outputs), likelihood, shape=data.shape)
    entries = []
    for name, cls in METHODS.items():
        method = build(name)
        up, down = _message_bytes(method, task, data)
        entries.append({**cls.about._asdict(), **method.hints._asdict(), "bytes_up": up, "bytes_down": down})
    return sorted(entries, key=lambda e: (GROUPS.index(e["group"]), e["year"], e["name"]))


def _message_bytes(method: AnyMethod, task: Task, data: Federation) -> tuple[int | None, int | None]:
    """Up and down; None for a method that cannot run on the reference network's inputs."""
    if method.refusal(task) is not None:
        return None, None
    with single_thread(), Engine(method.bind(task, Train()), data, 0) as engine:
        return engine.message_bytes()


GROUPS = ("Bayesian prior", "regularised", "split", "meta", "clustered", "mixture", "baseline")
