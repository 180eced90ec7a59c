"""Results do not depend on workers, on the order in which jobs are done, on hash seeds or on the locale."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fedprior import tree
from fedprior.engine import Engine
from fedprior.engine.pool import Done, Here, Runner, RunnerFactory
from fedprior.engine.stack import Context, Job, Memory
from hostile.same import compared, locales, table
from support import bound, federation


def test_workers_hash_seeds_and_locales(tmp_path: Path) -> None:
    """One run each of the first, the second and the third kind; `hostile/same.py` runs all 27."""
    data, known = table(tmp_path), locales()
    cases = [(1, "0", "C"), (2, "1", "C.UTF-8"), (3, "4711", known[-1])]
    first, *others = [compared(data, tmp_path / f"{case[0]}", *case, methods="fedmap") for case in cases]
    for found in others:
        assert found.keys() == first.keys()
        assert [name for name in found if found[name] != first[name]] == []


@pytest.mark.parametrize("name", ["fedmap", "pfedvem", "ifca", "fedem", "scaffold"])
def test_any_order_of_jobs(name: str) -> None:
    """Two rounds and an evaluation, with stacks of two clients that are done in three orders."""
    data = federation()
    found = []
    for seed in range(3):
        with Engine(bound(name, data), data, 0, chunk=2, runner=Shuffled.by(seed)) as engine:
            for number in range(2):
                engine.round(number, engine.everyone, engine.everyone)
            scores = engine.evaluate(2, ("test",)).scores
            found.append((scores, tree.flatten({"server": engine.server, "states": engine.memory.states})))
    for scores, state in found[1:]:
        assert repr(scores) == repr(found[0][0])
        assert state.keys() == found[0][1].keys()
        assert all(torch.equal(state[path], leaf) for path, leaf in found[0][1].items())


class Shuffled(Here):
    """This process, which does its jobs in a random order."""

    drawn = random.Random(0)

    @classmethod
    def by(cls, seed: int) -> RunnerFactory:
        def start(context: Context, memory: Memory) -> Runner:
            runner = cls(context, memory)
            runner.drawn = random.Random(seed)
            return runner

        return start

    def run(self, jobs: Sequence[Job], done: Done) -> None:
        super().run(self.drawn.sample(list(jobs), len(jobs)), done)
