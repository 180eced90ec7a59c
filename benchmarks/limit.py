"""How far the engine is from the hardware: its rounds against the bare products and convolutions of the same work.

    python benchmarks/limit.py [--repeats 5] [--json FILE]

The limit runs nothing but the matrix products (T1, T2, T4) or convolutions (T3) that a round cannot do without, on
weights and batches of the right number and layout, split over two processes of one thread each. The engine runs the
same rounds with two workers. Both take turns in one run; read the multiples. Behind each multiple stands where the
engine's time goes, from a profile of one worker.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from engine import Runner, make
from fedprior.engine import AnyMethod, Engine
from fedprior.engine.memory import keep_freed_memory
from fedprior.methods.ditto import Ditto
from fedprior.methods.fedavg import FedAvg
from fedprior.models import build
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.training import Train

STACK = 25  # clients whose products the limit hands to the library at once, as the engine does


class Work(NamedTuple):
    """A benchmark's task."""

    name: str
    shape: tuple[int, ...]
    clients: int
    cohort: int
    examples: int
    model: dict[str, Any]
    method: Callable[..., AnyMethod]
    passes: int  # networks that a client trains in a round
    target: float | None


BATCH = 20
WORKS = [
    Work("T1 softmax 60-10", (60,), 200, 200, 400, {"name": "softmax"}, FedAvg, 1, None),
    Work("T2 MLP 784-100-10", (784,), 100, 100, 100, {"name": "mlp"}, FedAvg, 1, 2.5),
    Work("T3 CIFAR CNN", (3, 32, 32), 100, 30, 200, {"name": "cnn_cifar"}, FedAvg, 1, 2.0),
    Work("T4 Ditto, MLP 784-100-10", (784,), 100, 100, 100, {"name": "mlp"}, Ditto, 2, None),
]


def products(layers: list[tuple[int, int]], clients: int, steps: int) -> Callable[[], None]:
    """Training linear layers (inputs, outputs) takes y = x Wᵀ, W -= η gᵀ x and, but for the first, ∂x = g W."""
    stacks = [min(STACK, clients - first) for first in range(0, clients, STACK)]
    weights = [[torch.randn(c, out, ins) for ins, out in layers] for c in stacks]
    xs = [[torch.randn(steps, c, BATCH, ins) for ins, _ in layers] for c in stacks]
    gs = [[torch.randn(c, BATCH, out) for _, out in layers] for c in stacks]
    room = [[(torch.empty(c, BATCH, out), torch.empty(c, BATCH, ins)) for ins, out in layers] for c in stacks]

    def run() -> None:
        for k in range(len(stacks)):
            for step in range(steps):
                for i, (y, dx) in enumerate(room[k]):
                    w, x, g = weights[k][i], xs[k][i][step], gs[k][i]
                    torch.bmm(x, w.transpose(1, 2), out=y)
                    if i:
                        torch.bmm(g, w, out=dx)
                    w.baddbmm_(g.transpose(1, 2), x, alpha=-1e-9)  # the step is part of the product

    return run


def convolutions(shape: tuple[int, ...], clients: int, steps: int) -> Callable[[], None]:
    """Forward and backward of every convolution and linear layer of the network, one after another, and no more."""
    network = build("cnn_cifar", {}, shape, 10)
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda m, given, out: seen.append((m, given[0].detach(), torch.randn_like(out))))
        for layer in network.modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    network(torch.randn(BATCH, *shape))
    for hook in hooks:
        hook.remove()
    first = seen[0][0]

    def one(layer: nn.Module, x: Tensor, g: Tensor) -> None:
        if isinstance(layer, nn.Conv2d):
            pads = [int(p) for p in layer.padding]
            geometry = (layer.stride, pads, (1, 1), False, [0, 0], 1)
            torch.convolution(x, layer.weight, layer.bias, *geometry)
            torch.ops.aten.convolution_backward(g, x, layer.weight, [len(layer.weight)], *geometry,
                                                [layer is not first, True, True])  # fmt: skip
        else:
            assert isinstance(layer, nn.Linear)
            torch.addmm(layer.bias, x, layer.weight.T)
            torch.mm(g.T, x)
            torch.mm(g, layer.weight)

    @torch.no_grad()
    def run() -> None:
        for _ in range(clients * steps):
            for part in seen:
                one(*part)

    return run


class Pair:
    """The limit: two processes that do half of the bare work each, at the same time."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("fork")
        self.pipes, self.processes = [], []
        for k in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._serve, args=(theirs, work, k), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    @staticmethod
    def _serve(pipe: Any, work: Work, k: int) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        clients, steps = work.passes * (work.cohort // 2), work.examples // BATCH
        if len(work.shape) == 3:
            run = convolutions(work.shape, clients, steps)
        else:
            widths = {"softmax": [60, 10], "mlp": [784, 100, 10]}[work.model["name"]]
            run = products(list(itertools.pairwise(widths)), clients, steps)
        while pipe.recv() is not None:
            run()
            pipe.send(True)

    def round(self, number: int) -> float:
        began = time.perf_counter()
        for pipe in self.pipes:
            pipe.send(number)
        for pipe in self.pipes:
            pipe.recv()
        return time.perf_counter() - began

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join()


KINDS = {
    "products and convolutions": ("bmm", "addmm", "aten::mm", "convolution", "mkldnn"),
    "pooling": ("pool",),
    "gathering examples": ("index_select",),
    "copies of weights": ("index_copy", "copy_", "clone", "cat"),
    "mean over uplinks": ("addmv", "aten::mv"),
    "update": ("_fused_sgd",),
    "shuffling": ("randperm",),
}


def where(method: AnyMethod, data: Any, cohort: list[int]) -> dict[str, float]:
    """Shares of one worker's time by kind; what no kernel accounts for is Python and the dispatcher."""
    with Engine(method, data, 0) as engine:
        for number in range(3):
            engine.round(number, cohort, cohort)
        began = time.perf_counter()
        for number in range(3, 6):
            engine.round(number, cohort, cohort)
        plain = time.perf_counter() - began
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            for number in range(6, 9):
                engine.round(number, cohort, cohort)
    shares: dict[str, float] = defaultdict(float)
    for event in seen.key_averages():
        kind = next((k for k, words in KINDS.items() if any(w in event.key for w in words)), "other kernels")
        shares[kind] += event.self_cpu_time_total / 1e6 / plain
    shares["Python and dispatch"] = max(0.0, 1 - sum(shares.values()))
    total = sum(shares.values())  # above one when the machine was busier under the profile than before it
    return dict(sorted(((k, v / total) for k, v in shares.items()), key=lambda pair: -pair[1]))


def measure(work: Work, repeats: int) -> dict[str, Any]:
    data = make(work.clients, work.examples, work.shape)
    options = {"personal_epochs": 1} if work.passes == 2 else {}
    train = Train(lr=0.01, batch_size=BATCH, epochs=1)
    task = Task(build(work.model["name"], {}, work.shape, 10), Categorical(10))
    method = work.method(train=train, **options).bind(task, train)
    cohort = list(range(work.cohort))

    def engine() -> tuple[Callable[[int], Any], Callable[[], Tensor]]:
        runner = Engine(method, data, 0, workers=2)

        def finish() -> Tensor:
            runner.runner.close()
            return torch.empty(0)

        return lambda number: runner.round(number, cohort, cohort), finish

    limit, ours = Pair(work), Runner(engine)
    times: dict[str, list[float]] = {"limit": [], "engine": []}
    for turn in range(repeats):
        for name, competitor in (("limit", limit), ("engine", ours)):
            rounds = [competitor.round(3 * turn + k) for k in range(3)]
            times[name] += rounds[1:]
    limit.close()
    ours.finish()
    seconds = {k: statistics.median(v) for k, v in times.items()}
    multiple = seconds["engine"] / seconds["limit"]
    shares = where(method, data, cohort)
    goal = f", aim ≤ {work.target}" if work.target else ""
    print(f"{work.name}: limit {seconds['limit'] * 1e3:.1f} ms, engine {seconds['engine'] * 1e3:.1f} ms, "
          f"{multiple:.2f} times the limit{goal}")  # fmt: skip
    print("   one worker's time: " + ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in shares.items()))
    return {"task": work.name, "seconds": seconds, "multiple": multiple, "target": work.target, "shares": shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(work, options.repeats) for work in WORKS]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
