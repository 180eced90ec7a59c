"""When worker processes pay: short runs with one worker, with two, and with `workers="auto"`.

    python benchmarks/start.py [--repeats 5] [--rounds 1,2,4,8,16,32,64]

Each run is timed from building the engine to the end of its workers, in turns; medians over repeats. `auto` stays in
the process until it has worked as long as it takes to start workers and end them again (`START_SECONDS`), so it can
lose at most about that to the better of the two.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from engine import make, textbook_mlp
from fedprior.engine import Engine, Workers
from fedprior.engine.pool import START_SECONDS
from fedprior.methods.fedavg import FedAvg
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.training import Train

CHOICES: tuple[Workers, ...] = (1, 2, "auto")


def seconds(workers: Workers, rounds: int) -> float:
    """One run of FedAvg on 100 clients × 5 steps of the MLP, or nothing but start and end."""
    task = Task(textbook_mlp(), Categorical(10))
    method = FedAvg().bind(task, Train(lr=0.05, batch_size=20, epochs=1))
    began = time.perf_counter()
    with Engine(method, DATA, 0, workers=workers) as engine:
        for number in range(rounds):
            engine.round(number, engine.everyone, engine.everyone)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", default="0,1,2,4,8,16,32,64")
    options = parser.parse_args()
    print(f"START_SECONDS = {START_SECONDS}")
    print("| rounds | 1 worker | 2 workers | auto | auto, over the better |\n|---|---|---|---|---|")
    for rounds in (int(n) for n in options.rounds.split(",")):
        turns = [[seconds(choice, rounds) for choice in CHOICES] for _ in range(options.repeats)]
        one, two, auto = (statistics.median(times) for times in zip(*turns, strict=True))
        print(f"| {rounds} | {one:.3f} s | {two:.3f} s | {auto:.3f} s | {auto - min(one, two):+.3f} s |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    DATA = make(100, 100, (784,))
    seconds(1, 1)
    main()
