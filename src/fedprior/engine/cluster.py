"""The same jobs as Ray tasks, for more than one machine.

The context (method and federation) is put into the object store once, where all workers on a machine share it. A task
carries the part of the memory that its stack reads, and returns what it writes. Tasks are pure, so Ray may repeat one
when a machine is lost, and the results equal those of the local engine bit for bit on the same kind of CPU.
"""

from __future__ import annotations

import logging
import socket
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from numpy.typing import NDArray

from fedprior import tree
from fedprior.data.federation import SPLITS, Federation
from fedprior.engine.memory import keep_freed_memory
from fedprior.engine.pool import Done, Runner, RunnerFactory, WorkerError
from fedprior.engine.stack import Answer, Context, Job, Memory, View, Written
from fedprior.errors import FedpriorError

Arrays = dict[str, NDArray[Any]]
"""A tree as stored in the object store: NumPy arrays are read from it without a copy, tensors are not."""

Sent = list[tuple[str, list[int], Arrays]]
"""What a task wrote, in transit."""

AHEAD = 2  # submitted tasks per core: one runs, one has its input ready


def ray_cluster(address: str | None = None) -> RunnerFactory:
    """Run the stacks on a Ray cluster."""

    def start(context: Context, memory: Memory) -> Runner:
        return Cluster(context, memory, address)

    return start


class Cluster:
    """A Ray cluster: the one at `address`, the one in RAY_ADDRESS, or a new one on this machine only."""

    def __init__(self, context: Context, memory: Memory, address: str | None = None) -> None:
        self.ray = _ray()
        self.context, self.memory = context, memory
        self.ours = not self.ray.is_initialized()
        if self.ours:
            _reach(address)
            try:
                self.ray.init(address=address, include_dashboard=None, logging_level=logging.ERROR, log_to_driver=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                where = f"at '{address}'" if address else "on this machine"
                raise FedpriorError(f"no Ray cluster {where}: {str(error).splitlines()[0]}") from None
        self.stored = self.ray.put(_stored(context))
        self.task = self.ray.remote(_task)
        self.ahead = max(2, int(AHEAD * self.ray.cluster_resources().get("CPU", 1)))

    def run(self, jobs: Sequence[Job], done: Done) -> None:
        """Submit jobs, a bounded number at a time: until it is done, a job's input stays in the object store."""
        shared = None if self.memory.addressed else self.ray.put(_arrays(self.memory.down))
        waiting, busy = deque(jobs), dict[Any, Job]()
        while waiting or busy:
            while waiting and len(busy) < self.ahead:
                job = waiting.popleft()
                view = self.memory.view(job.rows)
                down = _arrays(view.down) if shared is None else shared
                busy[self.task.remote([self.stored], job, _arrays(view.states), view.joined, down)] = job
            (ready, *_), _ = self.ray.wait(list(busy), num_returns=1)
            job = busy.pop(ready)
            done(self._received(job, ready))

    def _received(self, job: Job, ready: Any) -> Answer:
        try:
            answer, sent = self.ray.get(ready)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, FedpriorError):
                raise FedpriorError(str(error.cause)) from None
            names = ", ".join(self.context.federation.clients[i] for i in job.rows[:8])
            raise WorkerError(str(error.cause), names, str(error)) from None
        _, client, _, uplink, personal = self.context.method.types
        kinds: dict[str, Any] = {"states": client, "ups": uplink, "personal": personal}
        self.memory.keep([Written(where, rows, _tree(kinds[where], arrays)) for where, rows, arrays in sent])
        found: Answer = answer
        return found

    def close(self) -> None:
        """Leave the cluster, if this run joined it."""
        if self.ours:
            self.ray.shutdown()


def _reach(address: str | None) -> None:
    """Check that the address answers: Ray itself would wait for many minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdecimal() or "//" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise FedpriorError(f"no Ray cluster answers at '{address}' ({error}): check ray_address.") from None


def _task(stored: list[Any], job: Job, states: Arrays, joined: list[bool], down: Arrays) -> tuple[Answer, Sent]:
    """What a Ray worker does."""
    context = _context(stored[0])
    _, client, downlink, _, _ = context.method.types
    answer, written = context.work(job, View(_tree(client, states), joined, _tree(downlink, down)))
    return answer, [(part.where, part.rows, _arrays(part.values)) for part in written]


@lru_cache(maxsize=1)
def _context(stored: Any) -> Context:
    """Unpacked once per worker process."""
    torch.set_num_threads(1)
    keep_freed_memory()
    context: Context
    context, data = _ray().get(stored)
    return replace(context, federation=_with_examples(context.federation, _tensors(data)))


def _stored(context: Context) -> tuple[Context, list[NDArray[Any]]]:
    """The context without its examples, and the examples."""
    federation = context.federation
    examples = [part.numpy() for s in SPLITS for part in (federation.split(s).x, federation.split(s).y)]
    return replace(context, federation=_with_examples(federation, [torch.empty(0)] * len(examples))), examples


def _with_examples(federation: Federation, examples: list[torch.Tensor]) -> Federation:
    xs, ys = examples[::2], examples[1::2]
    train, validation, test = (replace(federation.split(s), x=x, y=y) for s, x, y in zip(SPLITS, xs, ys, strict=True))
    return replace(federation, train=train, validation=validation, test=test)


def _arrays(values: Any) -> Arrays:
    found = {path: leaf.numpy(force=True) for path, leaf in tree.items(values)}
    return {k: v if v.flags.c_contiguous else v.copy() for k, v in found.items()}  # ascontiguousarray adds an axis


def _tree(kind: Any, arrays: Arrays) -> Any:
    return tree.unflatten(kind, dict(zip(arrays, _tensors(list(arrays.values())), strict=True)))


def _tensors(arrays: list[NDArray[Any]]) -> list[torch.Tensor]:
    """Tensors that share read-only memory with the object store; no method writes to its inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return [torch.from_numpy(array) for array in arrays]


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise FedpriorError("engine=ray needs Ray: install fedprior[ray].") from None
    return ray
