"""What is computed: the tasks, their data and their networks.

Every competitor reads this module in an environment of its own, so it imports NumPy and PyTorch and nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

CLASSES = 10
SWEEP = (50, 100, 200, 500, 1000)
EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Task:
    """One piece of work that every competitor does alike. Clients are of equal size, a round is one epoch."""

    name: str
    title: str
    network: str
    shape: tuple[int, ...]
    clients: int
    examples: int  # per client, a multiple of the batch size
    cohort: int  # clients that train in a round
    lr: float
    separation: float  # norm of the class centroids; the noise has unit variance
    rounds: int
    accuracy_tolerance: float  # points, against the plain loop
    loss_tolerance: float  # relative, against the plain loop
    batch: int = 20
    gain: float = 0.6  # scale of the initial weights
    last_gain: float = 0.6  # and of the last layer's
    test: int = 4000  # common test examples, or each client's own if the task is personal
    pull: float | None = None  # Ditto's λ, which makes the task personal
    skew: float | None = None  # concentration of the clients' label proportions; None means uniform

    @property
    def steps(self) -> int:
        """Steps of one client in a round, of each of its models."""
        return self.examples // self.batch

    @property
    def fraction(self) -> float:
        """The share of clients in a round."""
        return self.cohort / self.clients


TASKS = {
    task.name: task
    for task in (
        Task(
            name="T1",
            title="softmax regression 60-10",
            network="softmax",
            shape=(60,),
            clients=200,
            examples=400,
            cohort=200,
            lr=0.012,
            separation=2.8,
            rounds=20,
            accuracy_tolerance=0.5,
            loss_tolerance=0.01,
        ),
        Task(
            name="T2",
            title="MLP 784-100-10",
            network="mlp",
            shape=(784,),
            clients=100,
            examples=100,
            cohort=100,
            lr=0.05,
            separation=4.2,
            rounds=20,
            accuracy_tolerance=0.5,
            loss_tolerance=0.01,
        ),
        Task(
            name="T3",
            title="CIFAR CNN",
            network="cnn",
            shape=(3, 32, 32),
            clients=100,
            examples=200,
            cohort=30,
            lr=0.01,
            separation=14.0,
            rounds=10,
            accuracy_tolerance=6.0,
            loss_tolerance=0.02,
            gain=1.4,
            last_gain=0.0,
        ),
        Task(
            name="T4",
            title="Ditto, MLP 784-100-10",
            network="mlp",
            shape=(784,),
            clients=100,
            examples=100,
            cohort=100,
            lr=0.05,
            separation=4.2,
            rounds=20,
            accuracy_tolerance=0.5,
            loss_tolerance=0.01,
            test=60,
            pull=0.1,
            skew=1.0,
        ),
    )
}


def find(name: str) -> Task:
    """A task by name; `T2@500` is T2 with 500 clients, all of them in every round."""
    base, _, clients = name.partition("@")
    if base not in TASKS or (clients and not clients.isdigit()):
        raise SystemExit(f"there is no task '{name}': choose among {', '.join(TASKS)}.")
    task = TASKS[base]
    return replace(task, name=name, clients=int(clients), cohort=int(clients), rounds=8) if clients else task


# Networks


def softmax() -> nn.Module:
    return nn.Sequential(nn.Linear(60, CLASSES))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, CLASSES))


def cnn() -> nn.Module:
    """pFedFDA's CIFAR network as the paper orders it: convolution, activation, pool."""
    act = nn.LeakyReLU(0.01)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 5), act, nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=1), act, nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), act, nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(576, 128), act, nn.Linear(128, CLASSES)),
    )


class _ChannelsLast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)


def cnn_reordered() -> nn.Module:
    """The same function in the order that fedprior's own network has: channels last, and pool before activation."""
    act = nn.LeakyReLU(0.01)
    return nn.Sequential(
        _ChannelsLast(),
        *(nn.Conv2d(3, 16, 5), nn.MaxPool2d(2), act),
        *(nn.Conv2d(16, 32, 5, padding=1), nn.MaxPool2d(2), act),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.MaxPool2d(2), act),
        *(nn.Flatten(), nn.Linear(576, 128), act, nn.Linear(128, CLASSES)),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"softmax": softmax, "mlp": mlp, "cnn": cnn, "reordered": cnn_reordered}


def network(name: str, weights: list[Tensor]) -> nn.Module:
    """A network that starts from the given weights, which come in the order of its parameters."""
    module = NETWORKS[name]()
    load(module, weights)
    return module


@torch.no_grad()
def load(module: nn.Module, weights: list[Tensor]) -> None:
    """Write weights into a network."""
    for parameter, value in zip(module.parameters(), weights, strict=True):
        parameter.copy_(value)


# Data


@dataclass(frozen=True)
class Problem:
    """A task with its arrays, as read from the file that all competitors share."""

    task: Task
    x: Tensor  # [N, n, ...]
    y: Tensor  # [N, n]
    x_test: Tensor  # [M, ...], or [N, m, ...] if personal
    y_test: Tensor
    weights: list[Tensor]  # initial, in the order of the network's parameters

    def network(self, name: str | None = None) -> nn.Module:
        """The task's network at its initial weights."""
        return network(name or self.task.network, self.weights)


def write(task: Task, path: Path) -> None:
    """Draw a task's data and initial weights, always the same ones, and write them to one file."""
    rng = np.random.default_rng(0)
    centroids = _centroids(task, rng)
    mixture = np.full((task.clients, CLASSES), 1 / CLASSES)
    if task.skew is not None:
        mixture = rng.dirichlet(np.full(CLASSES, task.skew), size=task.clients)
    arrays: dict[str, NDArray[Any]] = {"spec": np.array(json.dumps(asdict(task)))}
    arrays["x"], arrays["y"] = _examples(centroids, mixture, task.examples, rng)
    if task.pull is None:
        uniform = np.full((1, CLASSES), 1 / CLASSES)
        x_test, y_test = _examples(centroids, uniform, task.test, rng)
        arrays["x_test"], arrays["y_test"] = x_test[0], y_test[0]
    else:
        arrays["x_test"], arrays["y_test"] = _examples(centroids, mixture, task.test, rng)
    for i, value in enumerate(_initial(task)):
        arrays[f"w{i}"] = value.numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, **arrays)  # type: ignore[arg-type]
    temporary.replace(path)


def read(path: Path) -> Problem:
    """What `write` wrote."""
    with np.load(path) as file:
        spec = json.loads(str(file["spec"]))
        arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "spec"}
    task = Task(**{**spec, "shape": tuple(spec["shape"])})
    weights = [arrays[f"w{i}"] for i in range(sum(name.startswith("w") for name in arrays))]
    return Problem(task, arrays["x"], arrays["y"], arrays["x_test"], arrays["y_test"], weights)


def _initial(task: Task) -> list[Tensor]:
    """Normal weights of standard deviation gain / √fan-in, and biases of zero."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.zeros_like(p, requires_grad=False) for p in NETWORKS[task.network]().parameters()]
    *inner, last = values[::2]
    for value, gain in [*((value, task.gain) for value in inner), (last, task.last_gain)]:
        value.normal_(std=gain / math.sqrt(value[0].numel()), generator=generator)
    return values


def _centroids(task: Task, rng: np.random.Generator) -> NDArray[np.float32]:
    """One point a class. Images get coarse patterns, which convolutions and pooling can see."""
    if len(task.shape) == 1:
        points: NDArray[Any] = rng.normal(size=(CLASSES, *task.shape))
    else:
        channels, height, width = task.shape
        coarse = rng.normal(size=(CLASSES, channels, height // 4, width // 4))
        points = np.kron(coarse, np.ones((1, 1, 4, 4)))
    norm = np.sqrt((points.reshape(CLASSES, -1) ** 2).sum(1))
    scaled: NDArray[np.float32] = (points * (task.separation / norm).reshape(-1, *[1] * len(task.shape))).astype("f4")
    return scaled


def _examples(
    centroids: NDArray[np.float32], mixture: NDArray[np.float64], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Labels from each client's mixture [N, K], inputs at the label's centroid plus noise."""
    y = np.stack([rng.choice(CLASSES, size=count, p=p) for p in mixture]).astype(np.int64)
    x = rng.standard_normal(size=(*y.shape, *centroids.shape[1:]), dtype=np.float32)
    x += centroids[y]
    return x, y


# Judging


@torch.no_grad()
def evaluate(module: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Accuracy in percent and mean loss."""
    logits = torch.cat([module(part) for part in torch.split(x, EVALUATION_BATCH)])
    return score(F.log_softmax(logits, dim=1), y)


def score(log_probabilities: Tensor, y: Tensor) -> tuple[float, float]:
    """Accuracy in percent and mean loss of predictions [M, K]."""
    right = (log_probabilities.argmax(1) == y).double().mean()
    return 100 * float(right), float(F.nll_loss(log_probabilities.double(), y))


def mean(scores: list[tuple[float, float]]) -> tuple[float, float]:
    """The mean over clients of accuracy and loss."""
    return math.fsum(a for a, _ in scores) / len(scores), math.fsum(b for _, b in scores) / len(scores)
