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
from fedprior.models.task import EVALUATION_BATCH
from fedprior.protocol import Method
from fedprior.rng import Key, Keys

AnyMethod = Method[Any, Any, Any, Any, Any]

STACK_SCALARS = 2_500_000  # weights per stack that still run well on one core
STACK_CLIENTS = 256
HEAD_CLIENTS = 8  # of models that cannot be stacked, whose heads can
SPLIT_WORK = 2_000_000  # products in a cohort's forward pass from which two stacks on two cores beat one


def chunk_size(chunk: int | Literal["auto"], method: AnyMethod) -> int:
    """The largest stack: as given, or as many small models as run well together and convolutional ones singly.

    A method with phases in which only heads train gets a few convolutional models at once, for the sake of the heads.
    """
    if chunk != "auto":
        return chunk
    if method.task.stackable:
        return max(1, min(STACK_CLIENTS, STACK_SCALARS // method.task.size))
    return HEAD_CLIENTS if method.about.head_phase else 1


def least_stacks(method: AnyMethod, clients: int) -> int:
    """How many stacks a cohort is cut into at least: enough to keep two cores busy where that pays."""
    if not method.task.stackable:
        return HEAD_CLIENTS
    return 2 if clients * method.train.batch_size * method.task.size >= SPLIT_WORK else 1


def compose(rows: Sequence[int], federation: Federation, largest: int, least: int = 1) -> list[list[int]]:
    """Cut a cohort into `least` or more stacks of nearly equal length, clients of like size together.

    A function of the cohort alone: not of the number of workers, nor of the order of the clients.
    """
    ordered = sorted(rows, key=lambda i: (-federation.train.size[i], federation.clients[i]))
    stacks = max(-(-len(ordered) // largest), min(least, len(ordered)))
    bounds = [round(k * len(ordered) / stacks) for k in range(stacks + 1)] if stacks else [0]
    return [ordered[a:b] for a, b in itertools.pairwise(bounds)]


class View(NamedTuple):
    """What a job reads of the run's memory: all that travels to a worker elsewhere."""

    states: Any  # C  [c, ...]
    joined: list[bool]  # [c]
    down: Any  # D, shared or [c, ...]


class Trained(NamedTuple):
    """What a job adds to the run's memory: all that travels back."""

    state: Any  # C  [c, ...]
    up: Any  # U  [r, ...] of those that report


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
    """What comes back from a job beside `Trained`."""

    rows: list[int]
    logs: dict[str, NDArray[np.float64]]
    predictions: Predictions
    models: list[dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class Memory:
    """What a run keeps: every client's state, the uplinks of the round, and the newest downlink."""

    states: Any  # C  [N, ...]
    joined: Tensor  # [N] bool
    ups: Any  # U  [R, ...]
    down: Any  # D, shared or [N, ...]
    personal: bool  # the downlink is one message per client

    def view(self, rows: list[int]) -> View:
        """Rows as they lie in memory where they follow each other (which no method may write to), else copies."""
        chosen = _compact(rows)
        down = tree.index(self.down, chosen) if self.personal else self.down
        return View(tree.index(self.states, chosen), self.joined[rows].tolist(), down)

    def keep(self, job: Local, trained: Trained) -> None:
        """Write what a stack has learnt."""
        _write(self.states, job.rows, trained.state)
        _write(self.ups, [slot for slot in job.slots if slot >= 0], trained.up)


@dataclass(frozen=True)
class Context:
    """Everything a worker needs to do any job, given what the job reads of the memory."""

    method: AnyMethod
    federation: Federation
    root: Key

    @cached_property
    def _keys(self) -> Keys:
        return Keys.of(self.root, self.federation.clients)

    def keys(self, rows: list[int]) -> Keys:
        """The clients' keys."""
        return self._keys[rows]

    def _states(self, rows: list[int], view: View, down: Any) -> Any:
        """The stack's states; clients that are new get theirs now."""
        new = [k for k, joined in enumerate(view.joined) if not joined]
        if not new:
            return view.states
        fresh_rows = [rows[k] for k in new]
        data, keys = self.federation.train[fresh_rows], self.keys(fresh_rows).fold("join")
        fresh = self.method.init_client(tree.index(down, new), data, keys)
        if len(new) == len(rows):
            return fresh
        where = torch.tensor(new)
        return tree.map(lambda leaf, values: leaf.index_copy(0, where, values), view.states, fresh)

    def work(self, job: Job, view: View) -> tuple[Answer, Trained | None]:
        """Run a job."""
        down = view.down if self.method.about.personal_downlink else tree.expand(view.down, len(job.rows))
        state = self._states(job.rows, view, down)
        return self._local(job, state, down) if isinstance(job, Local) else (self._predict(job, state, down), None)

    def _local(self, job: Local, state: Any, down: Any) -> tuple[Answer, Trained]:
        data, keys = self.federation.train[job.rows], self.keys(job.rows).fold("round", job.round)
        state, up, logs = self.method.local_update(state, down, data, keys)
        reporting = [k for k, slot in enumerate(job.slots) if slot >= 0]
        if len(reporting) < len(job.rows):
            up = tree.index(up, reporting)
        return Answer(job.rows, {k: v.double().numpy() for k, v in logs.items()}, {}, []), Trained(state, up)

    def _predict(self, job: Predict, state: Any, down: Any) -> Answer:
        method, keys = self.method, self.keys(job.rows).fold("evaluation", job.round)
        personal = method.personalise(state, down, self.federation.train[job.rows], keys.fold("personalise"))
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


def _compact(rows: list[int]) -> slice | list[int]:
    """Rows that follow each other as a slice: no copy to read them, and half the time to write them."""
    first, last = rows[0], rows[0] + len(rows)
    return slice(first, last) if rows == list(range(first, last)) else rows


def _write(memory: Any, rows: list[int], values: Any) -> None:
    if not rows:
        return
    where = _compact(rows)
    for target, value in zip(tree.leaves(memory), tree.leaves(values), strict=True):
        if value.data_ptr() != target[rows[0]].data_ptr():  # else a state came back as it was
            target[where] = value
