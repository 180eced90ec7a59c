"""The engine: stacks of clients × worker processes, one torch thread each.

It owns what a run keeps between rounds. Clients' states and uplinks lie in memory that all workers share, so a round
sends only row numbers through the pipes; and the same code runs in this process, or as tasks on a Ray cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprior import tree
from fedprior.data.federation import Federation
from fedprior.engine.memory import Need, Sharing, cores, how_to_start, keep_freed_memory, need, zeros
from fedprior.engine.pool import Here, Pool, Runner, WorkerError
from fedprior.engine.stack import (
    Answer,
    AnyMethod,
    Context,
    Job,
    Local,
    Memory,
    Predict,
    Predictions,
    View,
    chunk_size,
    compose,
    least_stacks,
)
from fedprior.rng import Key

__all__ = ["AnyMethod", "Engine", "Predictions", "WorkerError", "Workers"]

Workers = int | Literal["auto"]
"""How many worker processes. `auto`: one per core, once the run has lasted as long as it takes to start them."""


class Shapes(NamedTuple):
    """Trees of one client, to lay out memory by."""

    state: Any
    up: Any
    down: Any  # of all clients


class Engine:
    """Runs a method on a federation, round by round. Use it as a context manager."""

    def __init__(
        self,
        method: AnyMethod,
        federation: Federation,
        seed: int,
        *,
        chunk: int | Literal["auto"] = "auto",
        workers: Workers = 1,
        start_method: Literal["fork", "spawn"] | None = None,
        backend: Literal["local", "ray"] = "local",
        address: str | None = None,
    ) -> None:
        keep_freed_memory()
        self.method, self.federation, self.root = method, federation, Key.from_seed(seed)
        self.largest = chunk_size(chunk, method)
        ranked = sorted(range(len(federation)), key=lambda i: federation.clients[i])
        self.ids = torch.empty(len(federation), dtype=torch.int64)  # a client's id is the rank of its name
        self.ids[ranked] = torch.arange(len(federation))
        self.server = method.init_server(self.root, len(federation))
        self.context = Context(method, federation, self.root)
        shapes = self._rehearse()
        at_work = 1 if backend == "ray" else self._workers(workers)
        self.sharing: Sharing = "nobody" if at_work == 1 else start_method or how_to_start()
        self.need = self._need(shapes, at_work)
        self.need.check(self.sharing)
        self.memory = self._memory(shapes)
        self.runner = self._runner(at_work, workers == "auto", start_method, backend, address)

    def _runner(self, workers: int, auto: bool, start_method: str | None, backend: str, address: str | None) -> Runner:
        if backend == "ray":
            from fedprior.engine.cluster import Cluster

            return Cluster(self.context, self.memory, address)
        if workers == 1 or auto:
            return Here(self.context, self.memory, workers)
        return Pool(self.context, self.memory, workers, start_method)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.runner.close()

    @property
    def everyone(self) -> list[int]:
        """All clients."""
        return list(range(len(self.federation)))

    def _rehearse(self) -> Shapes:
        """One client takes a round of no steps, and shows what its state and messages look like."""
        rehearsal = self.method.using(self.method.task, replace(self.method.train, steps=0))
        down = rehearsal.broadcast(self.server, self.ids)
        personal = self.method.about.personal_downlink
        context = replace(self.context, method=rehearsal)
        view = View(None, [False], tree.index(down, slice(1)) if personal else down)
        _, trained = context.work(Local([0], [0], 0), view)
        assert trained is not None
        return Shapes(trained.state, trained.up, down)

    def _need(self, shapes: Shapes, workers: int) -> Need:
        weights = self.method.task.size * self.method.task.dtype.itemsize
        sizes = (tree.nbytes(shapes.state), tree.nbytes(shapes.up), tree.nbytes(shapes.down))
        return need(*sizes, len(self.federation), weights, min(self.largest, len(self.federation)), workers)

    def _workers(self, workers: Workers) -> int:
        return workers if workers != "auto" else min(cores(), len(self._stacks(self.everyone)))

    def _memory(self, shapes: Shapes) -> Memory:
        """Room for every client's state, uplink and message."""
        n = len(self.federation)
        return Memory(
            states=tree.map(lambda leaf: self._room(leaf, n), shapes.state),
            joined=zeros((n,), torch.bool, self.sharing),
            ups=tree.map(lambda leaf: self._room(leaf, n), shapes.up),
            down=tree.map(lambda leaf: zeros(leaf.shape, leaf.dtype, self.sharing), shapes.down),
            personal=self.method.about.personal_downlink,
        )

    def _room(self, leaf: Tensor, rows: int) -> Tensor:
        return zeros((rows, *leaf.shape[1:]), leaf.dtype, self.sharing)

    def _stacks(self, rows: list[int]) -> list[list[int]]:
        return compose(rows, self.federation, self.largest, least_stacks(self.method, len(rows)))

    def _run(self, jobs: Sequence[Job]) -> list[Answer]:
        answers: list[Answer] = []
        self.runner.run(jobs, answers.append)
        return answers

    def _broadcast(self) -> None:
        down = self.method.broadcast(self.server, self.ids)
        for target, value in zip(tree.leaves(self.memory.down), tree.leaves(down), strict=True):
            target.copy_(value)

    def round(self, number: int, trainers: list[int], reporters: list[int]) -> dict[str, NDArray[np.float64]]:
        """One round: everyone in `trainers` trains, the `reporters` among them are aggregated. Returns logs [N]."""
        self._broadcast()
        reporters = sorted(reporters, key=lambda i: self.federation.clients[i])
        slot = {i: k for k, i in enumerate(reporters)}
        stacks = self._stacks(trainers)
        answers = self._run([Local(rows, [slot.get(i, -1) for i in rows], number) for rows in stacks])
        memory = self.memory
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
        pointers = {up.untyped_storage().data_ptr() for up in tree.leaves(self.memory.ups)}
        return leaf.clone() if leaf.untyped_storage().data_ptr() in pointers else leaf

    def message_bytes(self) -> tuple[int, int]:
        """Bytes of one client's uplink and downlink."""
        memory, personal = self.memory, self.method.about.personal_downlink
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
