"""The engine against a hand-written PyTorch loop on the same work, one torch thread per process.

    python benchmarks/engine.py [--repeats 7] [--json FILE]

Both do FedAvg: same arrays, same batches per client, same learning rate, sample-weighted mean. The loop is what a
careful person writes: one module, `load_state_dict`, `torch.optim.SGD`, `zero_grad`, `backward`, `step`. Times are
medians over rounds taken in turns of four (loop, engine, engine with two workers, loop, …), so a busy machine slows all
alike; read the ratios. The weights after the last round must agree, or the row is void.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedprior.data.client import Budget, schedule
from fedprior.data.federation import Federation, from_arrays
from fedprior.engine import Engine
from fedprior.methods.fedavg import FedAvg
from fedprior.models import build
from fedprior.models.likelihood import Categorical, likelihood_of
from fedprior.models.task import Task
from fedprior.rng import Key, Keys
from fedprior.training import Train

TURN = 4  # rounds in a row, as in a real run

Competitor = tuple[Callable[[int], Any], Callable[[], Tensor]]
"""What runs a round by its number, and what gives the weights at the end."""


def make(clients: int, examples: int, shape: tuple[int, ...], classes: int = 10) -> Federation:
    """Random inputs: the work does not depend on them."""
    rng = np.random.default_rng(0)
    total = round(examples / 0.8)
    return from_arrays(
        {
            f"c{k:04d}": (
                rng.standard_normal((total, *shape), dtype=np.float32),
                np.arange(total) % classes,
            )
            for k in range(clients)
        },
        classes=classes,
        validation=0.0,
        test=0.2,
    )


def textbook_cnn() -> nn.Module:
    """pFedFDA's CIFAR network as the paper orders it: convolution, activation, pool."""
    act = nn.LeakyReLU(0.01)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 5), act, nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=1), act, nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), act, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(576, 128), act),
        nn.Linear(128, 10),
    )


def textbook_mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


class Loop:
    """The plain loop."""

    def __init__(self, data: Federation, module: nn.Module, weights: list[Tensor], train: Train) -> None:
        self.data, self.module, self.train = data, module, train
        self.names = list(module.state_dict())
        self.w = dict(zip(self.names, weights, strict=True))
        self.budget = Budget(train.batch_size, train.epochs)

    def round(self, number: int) -> None:
        data, total = self.data.train, sum(self.data.train.size)
        mean = {k: torch.zeros_like(v) for k, v in self.w.items()}
        for c in range(len(data)):
            self.module.load_state_dict(self.w)
            optimizer = torch.optim.SGD(self.module.parameters(), lr=self.train.lr)
            keys = Keys.of(Key.from_seed(0), [self.data.clients[c]]).fold("round", number, "descend")
            plan = schedule(data[[c]], keys, self.budget)
            for rows, counts in zip(plan.rows, plan.counts, strict=True):
                chosen = torch.from_numpy(rows[0, : counts[0]])
                optimizer.zero_grad()
                F.cross_entropy(self.module(data.x[chosen]), data.y[chosen]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            for k, v in self.module.state_dict().items():
                mean[k].add_(v, alpha=data.size[c] / total)
        self.w = mean


class Runner:
    """One competitor in a process of its own, so that nobody works in another's heap. `make` builds it there."""

    def __init__(self, make: Callable[[], Competitor]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=self._serve, args=(make, theirs))
        self.process.start()

    @staticmethod
    def _serve(make: Callable[[], Competitor], pipe: Any) -> None:
        torch.set_num_threads(1)
        run, weights = make()
        while (number := pipe.recv()) is not None:
            began = time.perf_counter()
            run(number)
            pipe.send(time.perf_counter() - began)
        pipe.send(weights().numpy())

    def round(self, number: int) -> float:
        self.pipe.send(number)
        seconds: float = self.pipe.recv()
        return seconds

    def finish(self) -> Tensor:
        self.pipe.send(None)
        weights = torch.from_numpy(self.pipe.recv())
        self.process.join()
        return weights


def compare(name: str, data: Federation, model: str, plain: nn.Module, train: Train, repeats: int) -> dict[str, Any]:
    likelihood = likelihood_of(data.target)
    task = Task(build(model, {}, data.shape, likelihood.outputs), likelihood)
    method = FedAvg(train=train).bind(task, train)
    names, everyone = _in_order(task), list(range(len(data)))
    first = method.init_server(Key.from_seed(0)).w

    def loop() -> Competitor:
        runner = Loop(data, plain, [first[k] for k in names], train)
        return runner.round, lambda: torch.cat([v.flatten() for v in runner.w.values()])

    def engine(workers: int) -> Competitor:
        runner = Engine(method, data, 0, workers=workers)

        def weights() -> Tensor:
            runner.__exit__(None, None, None)
            return torch.cat([runner.server.w[k].flatten() for k in names])

        return lambda number: runner.round(number, everyone, everyone), weights

    runners = {
        "loop": Runner(loop),
        "engine, 1 worker": Runner(lambda: engine(1)),
        "engine, 2 workers": Runner(lambda: engine(2)),
    }
    times: dict[str, list[float]] = {k: [] for k in runners}
    for turn in range(repeats):
        for key, runner in runners.items():
            rounds = [runner.round(number) for number in range(TURN * turn, TURN * (turn + 1))]
            times[key] += rounds[1:]  # the first round of a turn wakes caches and cores
    memory = _peak_memory(runners["engine, 2 workers"])
    finals = {k: r.finish() for k, r in runners.items()}
    agree = float((finals["engine, 1 worker"] - finals["loop"]).abs().max())
    steps = sum(Budget(train.batch_size, train.epochs).length(n) for n in data.train.size)
    seconds = {k: statistics.median(v) for k, v in times.items()}
    print(f"\n{name}: {len(data)} clients, {steps} client-steps a round, weights agree to {agree:.1e}")
    for key, value in seconds.items():
        low, high = min(times[key]), max(times[key])
        print(
            f"  {key:<18} {value * 1e3:8.1f} ms a round ({low * 1e3:.1f}-{high * 1e3:.1f})"
            f"  {value / steps * 1e6:7.1f} µs a client-step  {seconds['loop'] / value:5.2f}×"
        )
    print(f"  peak memory of the engine's process tree with 2 workers {memory / 2**20:.0f} MiB (shared pages once)")
    if agree > 1e-3:
        raise SystemExit(f"{name}: the engine and the loop disagree by {agree}")
    return {
        "task": name,
        "seconds": seconds,
        "ratio": {k: seconds["loop"] / v for k, v in seconds.items()},
        "agree": agree,
        "peak_bytes": memory,
    }


def _in_order(task: Task) -> list[str]:
    return [name for name, _ in task.module.named_parameters()]


def _peak_memory(runner: Runner) -> int:
    """The largest proportional set size of a runner and its children during a round, sampled."""
    process, seen, done = psutil.Process(runner.process.pid), [0], threading.Event()

    def sample() -> None:
        while not done.wait(0.02):
            tree = [process, *process.children(recursive=True)]
            seen.append(sum(p.memory_full_info().pss for p in tree))

    sampler = threading.Thread(target=sample)
    sampler.start()
    runner.round(10**6)
    done.set()
    sampler.join()
    return max(seen)


def scaling(counts: list[int], repeats: int) -> list[dict[str, Any]]:
    """Cost per client-step as the federation grows, one worker."""
    print("\nMLP 784-100-10, batch 20, 5 steps, one worker: cost per client-step as the federation grows")
    engines, rows = {}, []
    train = Train(lr=0.01, batch_size=20, epochs=1)
    for n in counts:
        data = make(n, 100, (784,))
        method = FedAvg().bind(Task(textbook_mlp(), Categorical(10)), train)
        engines[n] = Engine(method, data, 0)
    times: dict[int, list[float]] = {n: [] for n in counts}
    for turn in range(repeats):
        for n, engine in engines.items():
            for number in range(TURN * turn, TURN * (turn + 1)):
                began = time.perf_counter()
                engine.round(number, engine.everyone, engine.everyone)
                if number % TURN:
                    times[n].append((time.perf_counter() - began) / (5 * n))
    for n in counts:
        rows.append({"clients": n, "microseconds": statistics.median(times[n]) * 1e6})
        print(f"  {n:5d} clients  {rows[-1]['microseconds']:.1f} µs")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        compare(
            "MLP 784-100-10, batch 20",
            make(100, 100, (784,)),
            "mlp",
            textbook_mlp(),
            Train(lr=0.01, batch_size=20, epochs=1),
            options.repeats,
        ),
        compare(
            "CIFAR CNN, batch 50",
            make(10, 200, (3, 32, 32)),
            "cnn_cifar",
            textbook_cnn(),
            Train(lr=0.01, batch_size=50, epochs=1),
            options.repeats,
        ),
    ]
    sweep = scaling([50, 200, 1000], max(3, options.repeats // 2))
    if options.json:
        options.json.write_text(json.dumps({"tasks": rows, "scaling": sweep}, indent=2) + "\n")


if __name__ == "__main__":
    main()
