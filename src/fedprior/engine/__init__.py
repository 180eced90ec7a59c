"""The engine: stacks of clients × worker processes, one torch thread each.

It owns what a run keeps between rounds. Clients' states and uplinks lie in memory that all workers share, so a round
sends only row numbers through the pipes; and the same code runs in this process when there is one worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprior import tree
from fedprior.data.federation import Federation
from fedprior.engine.memory import keep_freed_memory
from fedprior.engine.pool import Pool, WorkerError
from fedprior.engine.stack import (
    SPLIT_WORK,
    Answer,
    AnyMethod,
    Context,
    Job,
    Local,
    Memory,
    Predict,
    Predictions,
    chunk_size,
    compose,
)
from fedprior.rng import Key

__all__ = ["AnyMethod", "Engine", "Predictions", "WorkerError"]


class Engine:
    """Runs a method on a federation, round by round. Use it as a context manager."""

    def __init__(
        self,
        method: AnyMethod,
        federation: Federation,
        seed: int,
        *,
        chunk: int | Literal["auto"] = "auto",
        workers: int = 1,
        start_method: str | None = None,
    ) -> None:
        keep_freed_memory()
        self.method, self.federation, self.root = method, federation, Key.from_seed(seed)
        self.largest = chunk_size(chunk, method.task)
        ranked = sorted(range(len(federation)), key=lambda i: federation.clients[i])
        self.ids = torch.empty(len(federation), dtype=torch.int64)  # a client's id is the rank of its name
        self.ids[ranked] = torch.arange(len(federation))
        self.server = method.init_server(self.root, len(federation))
        self.shared = workers > 1
        if self.shared:
            federation.share_memory()
        self.context = Context(method, federation, self.root, self._memory())
        self.pool = Pool(self.context, workers, start_method) if self.shared else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.pool is not None:
            self.pool.close()

    @property
    def everyone(self) -> list[int]:
        """All clients."""
        return list(range(len(self.federation)))

    def _memory(self) -> Memory:
        """Room for every client's state, uplink and message, shaped by a rehearsal of no steps with one client."""
        n = len(self.federation)
        rehearsal = self.method.using(self.method.task, replace(self.method.train, steps=0))
        down = rehearsal.broadcast(self.server, self.ids)
        personal = self.method.about.personal_downlink
        one = tree.index(down, slice(1)) if personal else tree.expand(down, 1)
        empty = Memory(None, torch.zeros(n, dtype=torch.bool), None, None)
        context = Context(rehearsal, self.federation, self.root, empty)
        data, keys = self.federation.train[[0]], context.keys([0]).fold("round", 0)
        state, up, _ = rehearsal.local_update(rehearsal.init_client(one, data, keys), one, data, keys)
        return Memory(
            states=tree.map(lambda leaf: self._room(leaf, n), state),
            joined=self._share(torch.zeros(n, dtype=torch.bool)),
            ups=tree.map(lambda leaf: self._room(leaf, n), up),
            down=tree.map(lambda leaf: self._share(torch.zeros_like(leaf)), down),
        )

    def _room(self, leaf: Tensor, rows: int) -> Tensor:
        return self._share(torch.zeros(rows, *leaf.shape[1:], dtype=leaf.dtype))

    def _share(self, leaf: Tensor) -> Tensor:
        if self.shared:
            leaf.share_memory_()  # type: ignore[no-untyped-call]
        return leaf

    def _stacks(self, rows: list[int]) -> list[list[int]]:
        work = len(rows) * self.method.train.batch_size * self.method.task.size
        least = 2 if work >= SPLIT_WORK else 1
        return compose(rows, self.federation, self.largest, least)

    def _run(self, jobs: Sequence[Job]) -> list[Answer]:
        answers: list[Answer] = []
        if self.pool is None:
            answers = [self.context.do(job) for job in jobs]
        else:
            self.pool.run(jobs, answers.append)
        return answers

    def _broadcast(self) -> None:
        down = self.method.broadcast(self.server, self.ids)
        for target, value in zip(tree.leaves(self.context.memory.down), tree.leaves(down), strict=True):
            target.copy_(value)

    def round(self, number: int, trainers: list[int], reporters: list[int]) -> dict[str, NDArray[np.float64]]:
        """One round: everyone in `trainers` trains, the `reporters` among them are aggregated. Returns logs [N]."""
        self._broadcast()
        reporters = sorted(reporters, key=lambda i: self.federation.clients[i])
        slot = {i: k for k, i in enumerate(reporters)}
        stacks = self._stacks(trainers)
        answers = self._run([Local(rows, [slot.get(i, -1) for i in rows], number) for rows in stacks])
        memory = self.context.memory
        memory.joined[trainers] = True
        ups = tree.index(memory.ups, slice(len(reporters)))
        server = self.method.aggregate(self.server, ups, self.ids[reporters])
        self.server = tree.map(self._own, server)
        logs: dict[str, NDArray[np.float64]] = {}
        for answer in answers:
            for name, values in answer.logs.items():
                logs.setdefault(name, np.full(len(self.federation), np.nan))[answer.rows] = values
        return logs

    def _own(self, leaf: Tensor) -> Tensor:
        """The next round writes over the uplinks: a server state must not lie among them."""
        pointers = {up.untyped_storage().data_ptr() for up in tree.leaves(self.context.memory.ups)}
        return leaf.clone() if leaf.untyped_storage().data_ptr() in pointers else leaf

    def message_bytes(self) -> tuple[int, int]:
        """Bytes of one client's uplink and downlink."""
        memory, personal = self.context.memory, self.method.about.personal_downlink
        down = tree.index(memory.down, slice(1)) if personal else memory.down
        return tree.nbytes(tree.index(memory.ups, slice(1))), tree.nbytes(down)

    def predict(
        self, number: int, splits: tuple[str, ...], *, models: bool = False
    ) -> tuple[Predictions, list[dict[str, NDArray[Any]]]]:
        """Every client's predictions with its personal model after round `number`, and the models if asked."""
        self._broadcast()
        stacks = self._stacks(self.everyone)
        found: Predictions = {s: [np.empty((0, 0), np.float32)] * len(self.federation) for s in splits}
        trees: list[dict[str, NDArray[Any]]] = [{} for _ in self.everyone]
        for answer in self._run([Predict(rows, splits, number, models) for rows in stacks]):
            for k, row in enumerate(answer.rows):
                for split in splits:
                    found[split][row] = answer.predictions[split][k]
                if models:
                    trees[row] = answer.models[k]
        return found, trees

    def predict_global(self, splits: tuple[str, ...]) -> Predictions | None:
        """The prior's own predictions on every client's examples, if the method has a global model."""
        found: Predictions = {}
        for split in splits:
            data = self.federation.split(split)
            found[split] = []
            for c in range(len(data)):
                log_p = self.method.predict_global(self.server, data.client(c)[0])
                if log_p is None:
                    return None
                found[split].append(log_p.float().numpy())
        return found
