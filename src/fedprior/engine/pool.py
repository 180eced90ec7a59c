"""Runners of jobs: this process, worker processes, or this process until starting workers pays off.

A worker has the whole context, takes jobs from a pipe, and reads and writes the run's shared memory, so only row
numbers go through the pipes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch
import torch.multiprocessing

from fedprior.engine.lifeline import tie, undisturbed
from fedprior.engine.memory import how_to_start, keep_freed_memory
from fedprior.engine.stack import Answer, Context, Job, Memory
from fedprior.errors import FedpriorError

Done = Callable[[Answer], None]
RunnerFactory = Callable[[Context, Memory], "Runner"]

START_SECONDS = {"fork": 0.1, "spawn": 5.0}
"""Seconds of work after which workers pay off (`benchmarks/start.py`); a spawned one takes 3 s to import torch."""


class Runner(Protocol):
    """Does the jobs."""

    def run(self, jobs: Sequence[Job], done: Done) -> None:
        """Do all jobs, in any order; `done` is called with each answer as it arrives.

        If clients are on other machines, an answer may leave some of them out, or may never arrive.
        """

    def close(self) -> None:
        """End the run."""


def do(context: Context, memory: Memory, job: Job) -> Answer:
    """Do a job in a process that has access to the memory."""
    answer, written = context.work(job, memory.view(job.rows))
    memory.keep(written)
    return answer


class Here:
    """This process; if `workers` > 1, also worker processes once it has worked as long as starting them takes."""

    def __init__(self, context: Context, memory: Memory, workers: int = 1) -> None:
        self.context, self.memory, self.workers = context, memory, workers
        self.spent, self.pool = 0.0, None

    pool: Pool | None

    def run(self, jobs: Sequence[Job], done: Done) -> None:
        """Do jobs one after another; once workers have started, the rest goes to them."""
        waiting, began = deque(jobs), time.perf_counter()
        while waiting and self.pool is None:
            if self.workers > 1 and len(waiting) > 1 and self.spent > START_SECONDS[how_to_start()]:
                self.pool = Pool(self.context, self.memory, self.workers)
                break
            done(do(self.context, self.memory, waiting.popleft()))
            self.spent, began = self.spent + time.perf_counter() - began, time.perf_counter()
        if self.pool is not None:
            self.pool.run(list(waiting), done)

    def close(self) -> None:
        """End the workers, if any."""
        if self.pool is not None:
            self.pool.close()


class Pool:
    """A number of worker processes."""

    def __init__(self, context: Context, memory: Memory, workers: int, how: str | None = None) -> None:
        how = how or how_to_start()
        processes = multiprocessing.get_context(how)
        if how != "fork":
            context.federation.share_memory()  # a forked process has it anyway
        self.context, self.memory = context, memory
        self.connections: list[Connection] = []
        self.processes: list[Any] = []
        self.busy: set[Connection] = set()
        try:
            for _ in range(workers):
                self._start(processes, context, memory)
        except OSError as error:
            self.close()
            raise FedpriorError(
                f"only {len(self.processes)} of {workers} workers could be started ({error.strerror}): use fewer."
            ) from None
        except BaseException:
            self.close()
            raise

    def _start(self, processes: Any, context: Context, memory: Memory) -> None:
        ours, theirs = processes.Pipe()
        process = processes.Process(target=_work, args=(theirs, context, memory), daemon=True)
        with undisturbed():
            process.start()
            self.connections.append(ours)
            self.processes.append(process)
        theirs.close()

    def run(self, jobs: Sequence[Job], done: Done) -> None:
        """Give each worker a job, and the next one when it answers; a single job is done here, which is faster."""
        if len(jobs) == 1:
            return done(do(self.context, self.memory, jobs[0]))
        try:
            self._run(jobs, done)
        except (EOFError, OSError):
            raise FedpriorError(
                "a worker process died, most likely out of memory: use fewer workers or a smaller chunk."
            ) from None

    def _run(self, jobs: Sequence[Job], done: Done) -> None:
        waiting, busy = deque(jobs), self.busy
        for connection in self.connections[: len(jobs)]:
            busy.add(connection)
            connection.send(waiting.popleft())
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                answer = ready.recv()
                if isinstance(answer, WorkerError):
                    raise FedpriorError(answer.message) if not answer.detail else answer
                done(answer)
                if waiting:
                    ready.send(waiting.popleft())
                else:
                    busy.discard(ready)

    def close(self) -> None:
        """End the workers; those still at work are killed, because nobody waits for their answers."""
        for connection, process in zip(self.connections, self.processes, strict=True):
            if connection in self.busy:
                process.kill()
            else:
                with contextlib.suppress(OSError):
                    connection.send(None)
        for connection, process in zip(self.connections, self.processes, strict=True):
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
            connection.close()


def _work(connection: Connection, context: Context, memory: Memory) -> None:
    tie()
    torch.set_num_threads(1)
    keep_freed_memory()
    while True:
        try:
            job: Job | None = connection.recv()
        except EOFError:
            return
        if job is None:
            return
        try:
            connection.send(do(context, memory, job))
        except BaseException as error:
            names = ", ".join(context.federation.clients[i] for i in job.rows[:8])
            detail = "" if isinstance(error, FedpriorError) else traceback.format_exc()
            connection.send(WorkerError(str(error), names, detail))


class WorkerError(Exception):
    """An error in a worker, with the names of the clients that it was working on."""

    def __init__(self, message: str, clients: str, detail: str) -> None:
        super().__init__(message, clients, detail)
        self.message, self.clients, self.detail = message, clients, detail

    def __str__(self) -> str:
        return f"{self.message} (clients: {self.clients})\n{self.detail}"
