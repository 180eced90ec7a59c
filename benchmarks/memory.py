"""Peak memory of a run with many stateful clients, against the formula of `fedprior.engine.memory`.

    python benchmarks/memory.py [--clients 1000] [--method ditto] [--limit-gib 2]

Every client keeps a network of 79,510 weights of its own (MLP 784-100-10). Three rounds with two workers; the peak is
the largest proportional set size of the process tree, so pages that processes share count once. Exit code 1 when the
peak is above the limit or a tenth above what the engine announced.
"""

from __future__ import annotations

import argparse
import sys
import threading

import psutil
import torch

from engine import make, textbook_mlp
from fedprior import methods
from fedprior.engine import Engine
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.training import Train
from fedprior.tree import nbytes

GIB = 2**30
SLACK = 1.1  # the sum over processes is no snapshot


class Peak(threading.Thread):
    """Watches this process and its children; `with Peak() as peak` leaves the largest PSS in `peak.seen`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen, self.over = 0, threading.Event()

    def run(self) -> None:
        process = psutil.Process()
        while not self.over.wait(0.1):
            tree = [process, *process.children(recursive=True)]
            self.seen = max(self.seen, sum(p.memory_full_info().pss for p in tree))

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--examples", type=int, default=40)
    parser.add_argument("--method", default="ditto")
    parser.add_argument("--limit-gib", type=float, default=2.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = make(options.clients, options.examples, (784,))
    train = Train(lr=0.01, batch_size=20, epochs=1)
    method = methods.build(options.method, {}, train).bind(Task(textbook_mlp(), Categorical(10)), train)
    loaded = psutil.Process().memory_full_info().pss
    with Engine(method, data, 0, workers=2) as engine:
        announced = engine.need.kept + engine.need.working
        with Peak() as peak:
            for number in range(3):
                engine.round(number, engine.everyone, engine.everyone)
        states, ups = nbytes(engine.memory.states), nbytes(engine.memory.ups)
    print(f"{options.method}, {options.clients} clients, {method.task.size:,} weights, 2 workers")
    print(f"  loaded before the run (interpreter, torch, data)  {loaded / GIB:5.2f} GiB")
    print(
        f"  states {states / GIB:.2f} GiB + uplinks {ups / GIB:.2f} GiB; announced in all  {announced / GIB:5.2f} GiB"
    )
    print(
        f"  peak of the process tree                          {peak.seen / GIB:5.2f} GiB, limit {options.limit_gib} GiB"
    )
    if peak.seen > options.limit_gib * GIB or peak.seen > SLACK * (loaded + announced):
        sys.exit(1)


if __name__ == "__main__":
    main()
