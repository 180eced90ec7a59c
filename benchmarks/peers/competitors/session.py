"""What every competitor's process does alike: read the problem, take the times, write the answer.

It runs in the competitor's own environment, so it imports NumPy, PyTorch and nothing else.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
import time
import warnings
from importlib import metadata
from pathlib import Path

import torch

from .. import tasks
from ..tasks import Problem

STARTED = "FEDPRIOR_PEERS_STARTED"
PROBLEM = "FEDPRIOR_PEERS_PROBLEM"


class Session:
    """One run of one competitor. Times are of the monotonic clock, which all processes of a machine share."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("problem", type=Path)
        parser.add_argument("answer", type=Path)
        parser.add_argument("--workers", type=int, default=1)
        parser.add_argument("--network")
        self.options = parser.parse_args()
        quiet()
        self.problem: Problem = tasks.read(self.options.problem)
        self.task = self.problem.task
        self._random = random.Random(0)
        self._begun: float | None = None
        self._ends: list[float] = []

    def cohort(self) -> list[int]:
        """The clients of the next round."""
        everyone = range(self.task.clients)
        return sorted(self._random.sample(everyone, self.task.cohort))

    def begin(self) -> None:
        """The first round starts now; later calls change nothing."""
        self._begun = self._begun or time.monotonic()

    def tick(self) -> None:
        """A round has ended."""
        self._ends.append(time.monotonic())

    def finish(self, scores: tuple[float, float], *packages: str) -> None:
        """Write times, accuracy and loss, and the versions of the packages that did the work."""
        assert self._begun is not None
        assert len(self._ends) == self.task.rounds, f"{len(self._ends)} rounds instead of {self.task.rounds}"
        starts = [self._begun, *self._ends[:-1]]
        answer = {
            "startup": self._begun - float(os.environ[STARTED]),
            "rounds": [end - start for start, end in zip(starts, self._ends, strict=True)],
            "accuracy": scores[0],
            "loss": scores[1],
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                **{name: metadata.version(name) for name in ("numpy", *packages)},
            },
        }
        temporary = self.options.answer.with_suffix(".tmp")
        temporary.write_text(json.dumps(answer))
        temporary.replace(self.options.answer)


def quiet() -> None:
    """One thread, no warnings and no logs below errors, in this process."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
