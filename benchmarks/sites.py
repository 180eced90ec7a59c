"""Many small sites: the seconds that a run of two rounds takes, from a table to models and summary on disk.

    python benchmarks/sites.py [--sites 10000] [--rows 5] [--method fedmap] [--local] [--profile]

Prints the seconds of each stage by the clock and by the CPU (this process and its workers), and how often progress was
reported. On a busy machine only the latter mean something. `--local` trains Local beside it, as the command does.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np

import fedprior
from fedprior.data.federation import Federation, from_arrays
from fedprior.experiment.journal import Event
from fedprior.methods import build

INPUTS = 8


def cpu() -> float:
    """CPU seconds of this process and of its workers that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


@contextmanager
def stage(name: str) -> Iterator[None]:
    began, used = time.perf_counter(), cpu()
    yield
    print(f"{name:10} {time.perf_counter() - began:6.1f} s, {cpu() - used:6.1f} s of CPU", flush=True)


def make(sites: int, rows: int) -> Federation:
    rng = np.random.default_rng(0)
    names = [f"site-{i:05d}" for i in range(sites)]
    labels = np.arange(rows) % 2
    return from_arrays(
        {name: (rng.normal(size=(rows, INPUTS)) + labels[:, None], labels) for name in names},
        classes=2,
        standardise=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=5)
    parser.add_argument("--method", default="fedmap")
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    told: Counter[str] = Counter()

    def observe(event: Event) -> None:
        told[event["kind"]] += 1

    profile = cProfile.Profile()
    with tempfile.TemporaryDirectory() as folder, stage("all"):
        with stage("data"):
            federation = make(options.sites, options.rows)
        reference: Literal["local"] | None = "local" if options.local else None
        if options.profile:
            profile.enable()
        with stage("run"):
            method, out = build(options.method), Path(folder) / "run"
            fedprior.run(method, federation, rounds=2, out=out, reference=reference, observe=observe)
        profile.disable()
        with stage("read"):
            fedprior.run(method, federation, rounds=2, out=out, reference=reference)
    print("progress:", ", ".join(f"{count} {kind}" for kind, count in told.items()))
    if options.profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(60)


if __name__ == "__main__":
    main()
