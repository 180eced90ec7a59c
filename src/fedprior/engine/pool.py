"""Worker processes: each has the whole context, takes jobs from a pipe, and leaves large results in shared memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Self

import torch
import torch.multiprocessing

from fedprior.engine.memory import keep_freed_memory
from fedprior.engine.stack import Answer, Context, Job
from fedprior.errors import FedpriorError


def _work(connection: Connection, context: Context) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    parent = multiprocessing.parent_process()
    assert parent is not None
    while True:
        try:
            if parent.sentinel in wait([connection, parent.sentinel]):
                return  # a forked worker holds its own end of every pipe, so a dead parent is no end of file
            job: Job | None = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        if job is None:
            return
        try:
            connection.send(context.do(job))
        except KeyboardInterrupt:
            return
        except BaseException as error:
            names = ", ".join(context.federation.clients[i] for i in job.rows[:8])
            detail = "" if isinstance(error, FedpriorError) else traceback.format_exc()
            connection.send(WorkerError(str(error), names, detail))


class WorkerError(Exception):
    """What went wrong in a worker, and with which clients."""

    def __init__(self, message: str, clients: str, detail: str) -> None:
        super().__init__(message, clients, detail)
        self.message, self.clients, self.detail = message, clients, detail

    def __str__(self) -> str:
        return f"{self.message} (clients: {self.clients})\n{self.detail}"


class Pool:
    """Some worker processes. A context manager: they end with it."""

    def __init__(self, context: Context, workers: int, start_method: str | None = None) -> None:
        method = start_method or ("fork" if sys.platform == "linux" else "spawn")
        processes = multiprocessing.get_context(method)
        self.connections: list[Connection] = []
        self.processes = []
        for _ in range(workers):
            ours, theirs = processes.Pipe()
            process = processes.Process(target=_work, args=(theirs, context), daemon=True)  # type: ignore[attr-defined]
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def run(self, jobs: Sequence[Job], done: Callable[[Answer], None]) -> None:
        """Hand out jobs, first come first served; `done` sees each answer as it arrives."""
        try:
            self._run(jobs, done)
        except (EOFError, OSError):
            raise FedpriorError(
                "a worker process died, most likely out of memory: use fewer workers or a smaller chunk."
            ) from None

    def _run(self, jobs: Sequence[Job], done: Callable[[Answer], None]) -> None:
        waiting, busy = deque(jobs), set[Connection]()
        for connection in self.connections[: len(jobs)]:
            connection.send(waiting.popleft())
            busy.add(connection)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                answer = ready.recv()
                if isinstance(answer, WorkerError):
                    raise FedpriorError(answer.message) if not answer.detail else answer
                done(answer)
                busy.discard(ready)
                if waiting:
                    ready.send(waiting.popleft())
                    busy.add(ready)

    def close(self) -> None:
        """End the workers."""
        for connection, process in zip(self.connections, self.processes, strict=True):
            with contextlib.suppress(OSError):
                connection.send(None)
            process.join(timeout=5)
            if process.is_alive():
                process.terminate()
                process.join()
            connection.close()


__all__ = ["Pool", "WorkerError"]
