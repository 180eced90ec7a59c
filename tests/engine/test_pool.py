"""Worker processes: what goes wrong in one is told, and none outlives its pool."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import psutil
import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior.data.client import ClientData
from fedprior.data.federation import Federation
from fedprior.engine import Engine, WorkerError
from fedprior.engine import pool as pool_module
from fedprior.engine.memory import how_to_start
from fedprior.engine.pool import Here, Pool
from fedprior.engine.stack import compose
from fedprior.errors import FedpriorError
from fedprior.protocol import About, Empty, Logs, Method
from fedprior.rng import Key, Keys
from support import CLASSES, bound, federation, same, task

VICTIM = 2  # the client at which things go wrong


@dataclass(frozen=True, kw_only=True)
class Faulty(Method[Empty, Empty, Empty, Empty, Empty]):
    """Fails at the client with `size` training examples, but not in the engine's rehearsal of no steps."""

    about = About("faulty", "Faulty", "none", 2026, "baseline", "nothing", "after aggregation")

    size: int
    how: Literal["bug", "input", "kill", "exit"]

    def init_server(self, key: Key, clients: int = 1) -> Empty:
        return Empty()

    def broadcast(self, server: Empty, ids: Tensor) -> Empty:
        return Empty()

    def init_client(self, down: Empty, data: ClientData, keys: Keys) -> Empty:
        return Empty()

    def local_update(self, client: Empty, down: Empty, data: ClientData, keys: Keys) -> tuple[Empty, Empty, Logs]:
        if self.train.steps != 0 and self.size in data.size:
            if self.how == "bug":
                raise ValueError("the weights went for a walk")
            if self.how == "input":
                raise FedpriorError("this client's data are of no use: bring others.")
            if self.how == "exit":
                sys.exit("not a way to end")
            assert multiprocessing.parent_process() is not None, "only a worker may be killed"
            os.kill(os.getpid(), signal.SIGKILL)
        return Empty(), Empty(), {}

    def aggregate(self, server: Empty, ups: Empty, ids: Tensor) -> Empty:
        return Empty()

    def personalise(self, client: Empty, down: Empty, data: ClientData, keys: Keys) -> Empty:
        return Empty()

    def predict(self, personal: Empty, x: Tensor, keys: Keys) -> Tensor:
        return torch.zeros(*x.shape[:2], CLASSES)


@pytest.fixture(autouse=True)
def _no_worker_stays() -> Iterator[None]:
    assert multiprocessing.active_children() == []
    yield
    assert multiprocessing.active_children() == []


def engine(data: Federation, how: Literal["bug", "input", "kill", "exit"], workers: int = 2) -> Engine:
    method = Faulty(task=task(data), size=data.train.size[VICTIM], how=how)
    return Engine(method, data, 0, workers=workers, chunk=2)


def test_a_bug_in_a_worker_names_the_clients_and_shows_where() -> None:
    """The stack of the victim is named, nobody else, and the worker's own traceback comes along."""
    data = federation()
    with engine(data, "bug") as running, pytest.raises(WorkerError) as caught:
        running.round(0, running.everyone, running.everyone)
    stack = next(s for s in compose(range(len(data)), data, 2) if VICTIM in s)
    assert caught.value.clients == ", ".join(data.clients[i] for i in stack)
    assert caught.value.message == "the weights went for a walk"
    text = str(caught.value)
    assert data.clients[VICTIM] in text
    assert "local_update" in text
    assert "ValueError" in text


def test_even_an_exit_in_a_worker_is_told() -> None:
    with engine(federation(), "exit") as running, pytest.raises(WorkerError, match="not a way to end"):
        running.round(0, running.everyone, running.everyone)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_for_people_stays_one(workers: int) -> None:
    with engine(federation(), "input", workers) as running, pytest.raises(FedpriorError) as caught:
        running.round(0, running.everyone, running.everyone)
    assert str(caught.value) == "this client's data are of no use: bring others."


def test_a_bug_without_workers_is_the_bug_itself() -> None:
    with engine(federation(), "bug", workers=1) as running, pytest.raises(ValueError, match="went for a walk"):
        running.round(0, running.everyone, running.everyone)


def test_a_worker_killed_at_work_is_told() -> None:
    with engine(federation(), "kill") as running, pytest.raises(FedpriorError, match="worker process died"):
        running.round(0, running.everyone, running.everyone)


def test_a_worker_killed_between_rounds_is_told() -> None:
    """As when the system runs out of memory: the next round must not end in a broken pipe."""
    data = federation()
    with Engine(bound("fedavg", data), data, 0, workers=2, chunk=2) as running:
        running.round(0, running.everyone, running.everyone)
        assert isinstance(running.runner, Pool)
        victim = running.runner.processes[0]
        victim.kill()
        victim.join()
        with pytest.raises(FedpriorError, match="worker process died"):
            running.round(1, running.everyone, running.everyone)


def test_more_workers_than_stacks() -> None:
    """Two stacks for four workers: two stay idle, and all end."""
    data = federation(sizes=(10, 12))
    with Engine(bound("fedavg", data), data, 0, workers=4, chunk=1) as running:
        assert len(multiprocessing.active_children()) == 4
        logs = running.round(0, running.everyone, running.everyone).logs
    assert (logs["loss"] > 0).all()


def test_a_single_stack_is_trained_in_this_process() -> None:
    """Workers cannot help with one job: nothing is sent to them (here they are dead), and the result is the same."""
    data = federation(sizes=(10, 12))
    found = []
    for workers in (1, 2):
        with Engine(bound("fedavg", data), data, 0, workers=workers, chunk=2) as running:
            if isinstance(running.runner, Pool):
                for process in running.runner.processes:
                    process.kill()
                    process.join()
            running.round(0, running.everyone, running.everyone)
            found.append(running.server)
    assert same(*found)


ORPHANAGE = """
import sys, time
sys.path.insert(0, {tests!r})
from support import bound, federation
from fedprior.engine import Engine
data = federation()
with Engine(bound("fedavg", data), data, 0, workers=2, chunk=2) as engine:
    engine.round(0, engine.everyone, engine.everyone)
    print(*(process.pid for process in engine.runner.processes), flush=True)
    time.sleep(60)
"""


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_workers_end_when_their_parent_is_killed() -> None:
    """A killed run leaves no process behind that waits for jobs forever and holds the memory."""
    code = ORPHANAGE.format(tests=str(Path(__file__).parents[1]))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(workers) == 2
    try:
        for _ in range(50):
            if not any(_alive(pid) for pid in workers):
                break
            time.sleep(0.1)
        assert [pid for pid in workers if _alive(pid)] == []
    finally:
        for pid in workers:
            if _alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_auto_starts_workers_once_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """No workers as long as no work counts as enough; then, when any work does, workers, and the same bits."""
    monkeypatch.setattr("fedprior.engine.cores", lambda: 2)
    monkeypatch.setitem(pool_module.START_SECONDS, how_to_start(), math.inf)
    data = federation()
    with (
        Engine(bound("ditto", data), data, 0, chunk=2) as here,
        Engine(bound("ditto", data), data, 0, chunk=2, workers="auto") as auto,
    ):
        assert isinstance(auto.runner, Here)
        for engine in (here, auto):
            engine.round(0, engine.everyone, engine.everyone)
        assert auto.runner.pool is None
        monkeypatch.setitem(pool_module.START_SECONDS, how_to_start(), 0.0)
        for engine in (here, auto):
            engine.round(1, engine.everyone, engine.everyone)
        assert auto.runner.pool is not None
        assert same(here.server, auto.server)
        assert same(here.memory.states, auto.memory.states)
    assert not any(process.is_alive() for process in auto.runner.pool.processes)


def test_auto_keeps_a_single_stack_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pool_module.START_SECONDS, how_to_start(), 0.0)
    data = federation()
    with Engine(bound("fedavg", data), data, 0, workers="auto") as auto:
        for number in range(2):
            auto.round(number, auto.everyone, auto.everyone)
        assert isinstance(auto.runner, Here)
        assert auto.runner.pool is None
