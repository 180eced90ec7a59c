"""A long run: memory must not grow with rounds, evaluations or checkpoints.

    python benchmarks/soak.py [--rounds 5000] [--clients 400] [--method fedper] [--out DIR]

Every round is evaluated, every second one leaves a checkpoint. Prints the resident memory of the process (and of its
workers) every hundred rounds, and at the end its largest growth over round 500, in percent, and the checkpoints that
were found at a time. With `--out`, the folder stays, and the same command continues a run that was interrupted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import fedprior
from fedprior.data.federation import from_arrays
from fedprior.experiment.journal import Event
from fedprior.methods import build
from fedprior.training import Train

SETTLED = 500
"""Rounds after which memory must be flat."""


def resident() -> float:
    """MB of this process and its workers."""
    own = psutil.Process()
    return float(sum(process.memory_info().rss for process in (own, *own.children(recursive=True)))) / 1e6


class Watch:
    """Sees every event, and looks at memory and checkpoints now and then."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every, self.began = folder, every, time.process_time()
        self.memory: dict[int, float] = {}
        self.checkpoints = 0

    def __call__(self, event: Event) -> None:
        self.checkpoints = max(self.checkpoints, len(list((self.folder / "checkpoint").glob("round-*"))))
        if event["kind"] == "round" and event["round"] % self.every == 0:
            self.memory[event["round"]] = resident()
            used = time.process_time() - self.began
            print(f"round {event['round']:5d}  {resident():7.1f} MB  {used:7.0f} s of CPU", flush=True)

    def growth(self) -> float:
        """The largest growth over the memory once settled, in percent."""
        settled = [size for done, size in self.memory.items() if done >= SETTLED]
        return 100 * (max(settled) / settled[0] - 1) if settled else float("nan")


def soak(folder: Path, rounds: int, clients: int, method: str) -> None:
    rng = np.random.default_rng(0)
    names = [f"client-{k:03d}" for k in range(clients)]
    examples = {name: (rng.normal(size=(10, 2)), rng.normal(size=10)) for name in names}
    data = from_arrays(examples, target="number")  # whose metrics are the cheapest
    watch = Watch(folder, min(100, max(1, rounds // 10)))
    settings: dict[str, Any] = {"eval_every": 1, "checkpoint_every": 2, "workers": 1, "rounds": rounds}
    chosen = build(method, train=Train(epochs=1, batch_size=10))
    fedprior.run(chosen, data, model={"name": "mlp", "hidden": [2]}, out=folder, observe=watch, **settings)
    size = sum(path.stat().st_size for path in folder.glob("*.*")) / 1e6
    left = sorted(path.name for path in (folder / "checkpoint").glob("round-*"))
    print(f"memory grew by {watch.growth():.1f} % at most after round {SETTLED}; {resident():.1f} MB after saving")
    print(
        f"{rounds // 2} checkpoints, {watch.checkpoints} at a time, left: {', '.join(left)}; journals of {size:.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=400)
    parser.add_argument("--method", default="fedper")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak(options.out or Path(folder) / "run", options.rounds, options.clients, options.method)


if __name__ == "__main__":
    main()
