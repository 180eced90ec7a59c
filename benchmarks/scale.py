"""What a round costs as clients, model size and cores grow: a model with four constants, fitted here and checked.

    python benchmarks/scale.py [--repeats 5] [--json FILE]

    seconds = start + c · S / k + m · B + o · J            (S client-steps on k cores, B bytes moved, J tasks)

    c   seconds of one client-step of this network on one core: measured with one worker, nothing fitted
    o   seconds that the driver spends per Ray task
    m   seconds per byte that goes through the driver and the object store: the downlink once per round, each trainer's
        state there and back, its uplink back
    start   what an empty round costs

`o`, `m` and `start` are fitted by least squares to rounds on a Ray cluster of two cores on this machine, leaving out
the points that are then predicted. Network links between machines are not in it: add bytes / bandwidth.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import torch

from engine import make
from fedprior import methods, tree
from fedprior.engine import Engine
from fedprior.engine.cluster import ray_cluster
from fedprior.models import build
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.training import Train

TRAIN = Train(lr=0.01, batch_size=20, epochs=1)
STEPS = 5
CORES = 2


class Point(NamedTuple):
    """One federation to measure."""

    network: str
    method: str
    clients: int
    fitted: bool


POINTS = [
    *(Point("softmax", "fedavg", n, fitted=n != 800) for n in (100, 400, 800, 1600)),
    *(Point("mlp", "fedavg", n, fitted=n != 200) for n in (50, 100, 200, 400)),
    *(Point("mlp", "ditto", n, fitted=n != 200) for n in (100, 200, 400)),
]


class Measured(NamedTuple):
    """What was seen at a point."""

    point: Point
    step: float  # seconds of a client-step on one core
    steps: int
    bytes: int
    tasks: int
    seconds: float  # of a round on the Ray cluster


def measure(point: Point, repeats: int) -> Measured:
    data = make(point.clients, 20 * STEPS, (784,) if point.network == "mlp" else (60,))
    task = Task(build(point.network, {}, data.shape, 10), Categorical(10))
    options = {"personal_epochs": 1} if point.method == "ditto" else {}
    method = methods.build(point.method, options, TRAIN).bind(task, TRAIN)
    steps = STEPS * point.clients * (2 if point.method == "ditto" else 1)
    with Engine(method, data, 0) as alone, Engine(method, data, 0, runner=ray_cluster()) as cluster:
        everyone, times = alone.everyone, {"alone": list[float](), "ray": list[float]()}
        for number in range(repeats + 1):
            for name, engine in (("alone", alone), ("ray", cluster)):
                began = time.perf_counter()
                engine.round(number, everyone, everyone)
                times[name].append(time.perf_counter() - began)
        state, up = tree.nbytes(alone.memory.states), tree.nbytes(alone.memory.ups)
        moved, tasks = 2 * state + up + tree.nbytes(alone.memory.down), len(alone._stacks(everyone))
    alone_seconds, seconds = (statistics.median(times[name][1:]) for name in ("alone", "ray"))
    return Measured(point, alone_seconds / steps, steps, moved, tasks, seconds)


def features(m: Measured) -> list[float]:
    return [1.0, float(m.tasks), float(m.bytes)]


def compute(m: Measured) -> float:
    return m.step * m.steps / min(CORES, m.tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    found = [measure(point, options.repeats) for point in POINTS]
    ray.shutdown()
    chosen = [m for m in found if m.point.fitted]
    design, left = np.array([features(m) for m in chosen]), np.array([m.seconds - compute(m) for m in chosen])
    scale = 1 / np.array([m.seconds for m in chosen])  # relative errors count, or the largest federation decides alone
    constants, *_ = np.linalg.lstsq(design * scale[:, None], left * scale, rcond=None)
    start, per_task, per_byte = constants
    print(f"start {start * 1e3:.1f} ms, {per_task * 1e3:.2f} ms per task, {per_byte * 1e9:.2f} ns per byte "
          f"({1 / per_byte / 1e9:.2f} GB/s)")  # fmt: skip
    print(f"{'network':8} {'method':7} {'clients':>7} {'tasks':>5} {'MB':>7} {'measured':>9} {'model':>9}  error")
    rows: list[dict[str, Any]] = []
    for m in found:
        model = compute(m) + float(np.dot(features(m), constants))
        rows.append({**m._asdict(), "point": m.point._asdict(), "model": model})
        error = f"{100 * model / m.seconds - 100:+.0f} %" + ("" if m.point.fitted else "  (not fitted)")
        print(f"{m.point.network:8} {m.point.method:7} {m.point.clients:7d} {m.tasks:5d} {m.bytes / 1e6:7.1f} "
              f"{m.seconds * 1e3:7.1f} ms {model * 1e3:7.1f} ms  {error}")  # fmt: skip
    if options.json:
        named = dict(zip(("start", "per_task", "per_byte"), (float(c) for c in constants), strict=True))
        options.json.write_text(json.dumps({"constants": named, "points": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
