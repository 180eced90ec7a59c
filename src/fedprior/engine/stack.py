"""Stacks of clients: how a cohort is cut into them, and what is done with one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprior import tree
from fedprior.data.federation import Federation
from fedprior.models.task import EVALUATION_BATCH, Task
from fedprior.protocol import Method
from fedprior.rng import Key, Keys

AnyMethod = Method[Any, Any, Any, Any, Any]

STACK_SCALARS = 2_500_000  # weights per stack that still run well on one core
STACK_CLIENTS = 256
SPLIT_WORK = 2_000_000  # products in a cohort's forward pass from which two stacks on two cores beat one


def chunk_size(chunk: int | Literal["auto"], task: Task) -> int:
    """The largest stack: as given, or as many small models as run well together and convolutional ones singly."""
    if chunk != "auto":
        return chunk
    return max(1, min(STACK_CLIENTS, STACK_SCALARS // task.size)) if task.stackable else 1


def compose(rows: Sequence[int], federation: Federation, largest: int, least: int = 1) -> list[list[int]]:
    """Cut a cohort into `least` or more stacks of nearly equal length, clients of like size together.

    A function of the cohort alone: not of the number of workers, nor of the order of the clients.
    """
    ordered = sorted(rows, key=lambda i: (-federation.train.size[i], federation.clients[i]))
    stacks = max(-(-len(ordered) // largest), min(least, len(ordered)))
    bounds = [round(k * len(ordered) / stacks) for k in range(stacks + 1)] if stacks else [0]
    return [ordered[a:b] for a, b in itertools.pairwise(bounds)]


class Memory(NamedTuple):
    """What all workers of a run see: every client's state, the uplinks of the round, and the newest downlink."""

    states: Any  # C  [N, ...]
    joined: Tensor  # [N] bool
    ups: Any  # U  [R, ...]
    down: Any  # D, shared or [N, ...]


class Local(NamedTuple):
    """Let a stack train; `slots` say where in `ups` each one's uplink goes, -1 for those that do not report."""

    rows: list[int]
    slots: list[int]
    round: int


class Predict(NamedTuple):
    """Let a stack personalise and predict the given splits; `models` asks for the personal models too."""

    rows: list[int]
    splits: tuple[str, ...]
    round: int
    models: bool


Job = Local | Predict
Predictions = dict[str, list[NDArray[np.float32]]]  # split -> log-probabilities [n, K] of each client


class Answer(NamedTuple):
    """What comes back from a job; large trees are left in `Memory`."""

    rows: list[int]
    logs: dict[str, NDArray[np.float64]]
    predictions: Predictions
    models: list[dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class Context:
    """Everything a worker needs to do a job."""

    method: AnyMethod
    federation: Federation
    root: Key
    memory: Memory

    @cached_property
    def _keys(self) -> Keys:
        return Keys.of(self.root, self.federation.clients)

    def keys(self, rows: list[int]) -> Keys:
        """The clients' keys."""
        return self._keys[rows]

    def down(self, rows: list[int]) -> Any:
        """The newest message as the stack sees it."""
        if self.method.about.personal_downlink:
            return tree.index(self.memory.down, rows)
        return tree.expand(self.memory.down, len(rows))

    def states(self, rows: list[int]) -> Any:
        """The stack's states; clients that are new get theirs now."""
        new = [i for i in rows if not self.memory.joined[i]]
        if new:
            data, keys = self.federation.train[new], self.keys(new).fold("join")
            fresh = self.method.init_client(self.down(new), data, keys)
            if len(new) == len(rows):
                return fresh
            known = self._kept(rows)
            where = torch.tensor([rows.index(i) for i in new])
            return tree.map(lambda leaf, values: leaf.index_copy(0, where, values), known, fresh)
        return self._kept(rows)

    def _kept(self, rows: list[int]) -> Any:
        """The states as they lie in memory: a view where the rows follow each other, which no method may write to."""
        run = rows == list(range(rows[0], rows[0] + len(rows)))
        return tree.index(self.memory.states, slice(rows[0], rows[0] + len(rows)) if run else rows)

    def do(self, job: Job) -> Answer:
        """Run a job."""
        return self._local(job) if isinstance(job, Local) else self._predict(job)

    def _local(self, job: Local) -> Answer:
        data, keys = self.federation.train[job.rows], self.keys(job.rows).fold("round", job.round)
        state = self.states(job.rows)
        state, up, logs = self.method.local_update(state, self.down(job.rows), data, keys)
        _write(self.memory.states, job.rows, state)
        reporting = [k for k, slot in enumerate(job.slots) if slot >= 0]
        if len(reporting) < len(job.rows):
            up = tree.index(up, reporting)
        _write(self.memory.ups, [job.slots[k] for k in reporting], up)
        return Answer(job.rows, {k: v.double().numpy() for k, v in logs.items()}, {}, [])

    def _predict(self, job: Predict) -> Answer:
        method, keys = self.method, self.keys(job.rows).fold("evaluation", job.round)
        personal = method.personalise(
            self.states(job.rows), self.down(job.rows), self.federation.train[job.rows], keys.fold("personalise")
        )
        predictions: Predictions = {}
        for split in job.splits:
            data = self.federation.split(split)[job.rows]
            parts: list[list[Tensor]] = [[] for _ in job.rows]
            for batch in data.batches(EVALUATION_BATCH):
                log_p = method.predict(personal, batch.x, keys.fold("predict"))
                for c, m in enumerate(batch.counts()):
                    parts[c].append(log_p[c, :m])
            empty = torch.empty(0, method.task.classes)
            predictions[split] = [torch.cat(p).float().numpy() if p else empty.numpy() for p in parts]
        models = [_arrays(personal, c) for c in range(len(job.rows))] if job.models else []
        return Answer(job.rows, {}, predictions, models)


def _arrays(personal: Any, c: int) -> dict[str, NDArray[Any]]:
    return {path: leaf[c].numpy(force=True).copy() for path, leaf in tree.items(personal)}


def _write(memory: Any, rows: list[int], values: Any) -> None:
    where = torch.tensor(rows, dtype=torch.int64)
    for target, value in zip(tree.leaves(memory), tree.leaves(values), strict=True):
        if rows and value.data_ptr() != target[rows[0]].data_ptr():  # else a state came back as it was
            target.index_copy_(0, where, value)
