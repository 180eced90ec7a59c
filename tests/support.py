"""A small ragged federation and shortcuts that many tests use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedprior import tree
from fedprior.data.federation import Federation, from_arrays
from fedprior.engine import AnyMethod, Engine
from fedprior.experiment.participation import Participation
from fedprior.methods import build
from fedprior.models import build as build_model
from fedprior.models.likelihood import likelihood_of
from fedprior.models.task import Task
from fedprior.rng import Key, Keys
from fedprior.training import Train

CLASSES, FEATURES = 3, 4
SIZES = (40, 9, 23, 5, 31, 14, 28)
TRAIN = Train(optimizer="sgd", lr=0.1, momentum=0.5, batch_size=8, epochs=2)
HALF = Participation(rule="fraction", rate=0.5)


def federation(sizes: tuple[int, ...] = SIZES, dtype: torch.dtype = torch.float64, seed: int = 0) -> Federation:
    """Clients of different size whose classes lie at different places."""
    clients: dict[str, tuple[Any, Any]] = {}
    for k, n in enumerate(sizes):
        rng = np.random.default_rng((seed, k))
        y = np.arange(n) % CLASSES
        centres = np.random.default_rng(seed).normal(size=(CLASSES, FEATURES)) + 0.5 * rng.normal(size=FEATURES)
        clients[f"site-{k}"] = (centres[y] + rng.normal(size=(n, FEATURES)), y)
    return from_arrays(clients, classes=CLASSES, seed=seed).to(dtype)


def regression(sizes: tuple[int, ...] = SIZES, dtype: torch.dtype = torch.float64, seed: int = 0) -> Federation:
    """Clients of different size with lines of their own: y = 50 + 10 (β_k · x + ε), in a unit of its own."""
    clients: dict[str, tuple[Any, Any]] = {}
    for k, n in enumerate(sizes):
        rng = np.random.default_rng((seed, k))
        slopes = np.random.default_rng(seed).normal(size=FEATURES) + 0.3 * rng.normal(size=FEATURES)
        x = rng.normal(size=(n, FEATURES))
        clients[f"site-{k}"] = (x, 50 + 10 * (x @ slopes + 0.5 * rng.normal(size=n)))
    return from_arrays(clients, target="number", seed=seed).to(dtype)


def counting(sizes: tuple[int, ...] = SIZES, dtype: torch.dtype = torch.float64, seed: int = 0) -> Federation:
    """Clients of different size with rates of their own: y ~ Poisson(e^{1 + β_k · x})."""
    clients: dict[str, tuple[Any, Any]] = {}
    for k, n in enumerate(sizes):
        rng = np.random.default_rng((seed, k))
        slopes = 0.8 * np.random.default_rng(seed).normal(size=FEATURES) + 0.2 * rng.normal(size=FEATURES)
        x = rng.normal(size=(n, FEATURES))
        clients[f"site-{k}"] = (x, rng.poisson(np.exp(1 + x @ slopes)))
    return from_arrays(clients, target="count", seed=seed).to(dtype)


def task(data: Federation, module: nn.Module | None = None, hidden: tuple[int, ...] = (6,)) -> Task:
    """A small perceptron, or the given network, in the federation's precision."""
    likelihood = likelihood_of(data.target)
    model = module or build_model("mlp", {"hidden": hidden}, data.shape, likelihood.outputs)
    return Task(model, likelihood, dtype=data.train.x.dtype, shape=data.shape)


def bound(
    name: str, data: Federation, train: Train = TRAIN, module: nn.Module | None = None, **options: Any
) -> AnyMethod:
    """A method ready to run on a federation."""
    return build(name, options, train).bind(task(data, module), train)


class Trace:
    """What a few rounds of a method leave behind."""

    def __init__(self, engine: Engine, logs: dict[str, NDArray[np.float64]]) -> None:
        found = engine.evaluate(99, ("test",))
        self.clients = engine.federation.clients
        self.test = dict(zip(self.clients, found.predictions["test"], strict=True))
        self.models = dict(zip(self.clients, models_of(engine), strict=True))
        self.server = {k: v.clone() for k, v in tree.items(engine.server)}
        self.states = {k: v.clone() for k, v in tree.items(engine.memory.states)}
        self.logs = logs

    def vector(self) -> NDArray[np.float64]:
        """Everything that a client or the server holds, as one vector, clients by name."""
        parts = [v.double().flatten().numpy() for v in self.server.values()]
        parts += [self.models[c][k].astype(np.float64).ravel() for c in sorted(self.models) for k in self.models[c]]
        parts += [self.test[c].astype(np.float64).ravel() for c in sorted(self.test)]
        return np.concatenate(parts)


def rounds(
    method: AnyMethod,
    data: Federation,
    count: int = 3,
    *,
    seed: int = 5,
    chunk: Any = "auto",
    workers: int = 1,
    participation: Participation | None = None,
    start_method: Literal["fork", "spawn"] | None = None,
) -> Trace:
    """Run a method for some rounds."""
    rule = participation or Participation()
    with Engine(method, data, seed, chunk=chunk, workers=workers, start_method=start_method) as engine:
        logs: dict[str, NDArray[np.float64]] = {}
        for number in range(count):
            everyone = method.hints.everyone_trains
            cohort = rule.draw(engine.root, data.clients, number, count, everyone_trains=everyone)
            logs = engine.round(number, cohort.trainers, cohort.reporters).logs
        return Trace(engine, logs)


def models_of(engine: Engine) -> list[dict[str, NDArray[Any]]]:
    """Each client's personal model as it was last evaluated, as named arrays."""
    flat = tree.flatten(engine.memory.personal)
    return [{path: leaf[c].numpy().copy() for path, leaf in flat.items()} for c in engine.everyone]


def keys(data: Federation, *tags: str | int, seed: int = 5) -> Keys:
    """The clients' keys for a purpose."""
    return Keys.of(Key.from_seed(seed), data.clients).fold(*tags)


def one_round(method: AnyMethod, data: Federation) -> tuple[Any, Any, Any, Any, Any]:
    """Server, downlink as a stack, joined clients, updated clients, uplinks of a first round, without an engine."""
    ids = torch.arange(len(data))
    server = method.init_server(Key.from_seed(5), len(data))
    down = method.broadcast(server, ids)
    stack = down if method.hints.personal_downlink else tree.expand(down, len(data))
    client = method.init_client(stack, data.train, keys(data, "join"))
    updated, up, _ = method.local_update(client, stack, data.train, keys(data, "round", 0))
    return server, stack, client, updated, up


def same(a: Any, b: Any) -> bool:
    """Whether two trees are equal bit for bit."""
    left, right = tree.flatten(a), tree.flatten(b)
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def with_train(method: AnyMethod, **changes: Any) -> AnyMethod:
    """The same method with other local training."""
    return method.using(method.task, replace(method.train, **changes))


def scalars(value: Any) -> int:
    """How many numbers a tree holds."""
    return sum(leaf.numel() for leaf in tree.leaves(value))


def flat(value: Any) -> Tensor:
    """All leaves of a stack as [C, P]."""
    return torch.cat([leaf.flatten(1) for leaf in tree.leaves(value)], 1)
