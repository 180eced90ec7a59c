"""Stacks of clients: how a cohort is cut into stacks, and the jobs that one stack does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprior import tree
from fedprior.data.client import ClientData
from fedprior.data.federation import Federation
from fedprior.errors import FedpriorError
from fedprior.metrics import Metric, Values, evaluate, metrics_of
from fedprior.models.task import EVALUATION_BATCH
from fedprior.protocol import AnyMethod
from fedprior.rng import Key, Keys

STACK_SCALARS = 2_500_000  # weights and moments per stack that still run well on one core: what its caches hold
STACK_CLIENTS = 256
HEAD_CLIENTS = 8  # of models that cannot be stacked, whose heads can
SPLIT_WORK = 2_000_000  # products in a cohort's forward pass from which two stacks on two cores beat one


def chunk_size(chunk: int | Literal["auto"], method: AnyMethod) -> int:
    """The largest stack: as given, or by default as many small models as run well together, or one convolutional.

    A method with phases in which only heads are trained gets a few convolutional models, so that heads can be stacked.
    """
    if chunk != "auto":
        return chunk
    if method.task.stackable:
        kept = method.task.size * (1 + method.train.moments)
        return max(1, min(STACK_CLIENTS, STACK_SCALARS // kept))
    return HEAD_CLIENTS if method.hints.head_phase else 1


def least_stacks(method: AnyMethod, clients: int) -> int:
    """Minimum number of stacks of a cohort: enough to keep two cores busy where that pays off."""
    if not method.task.stackable:
        return HEAD_CLIENTS
    return 2 if clients * method.train.batch_size * method.task.size >= SPLIT_WORK else 1


def compose(rows: Sequence[int], federation: Federation, largest: int, least: int = 1) -> list[list[int]]:
    """Cut a cohort into `least` or more stacks of nearly equal length, with clients of similar size together.

    The result depends on the cohort only, not on the number of workers or the order of the clients.
    """
    ordered = sorted(rows, key=lambda i: (-federation.train.size[i], federation.clients[i]))
    stacks = max(-(-len(ordered) // largest), min(least, len(ordered)))
    bounds = [round(k * len(ordered) / stacks) for k in range(stacks + 1)] if stacks else [0]
    return [ordered[a:b] for a, b in itertools.pairwise(bounds)]


class View(NamedTuple):
    """The part of the run's memory that a job reads: everything that is sent to a worker on another machine."""

    states: Any  # C  [c, ...]
    joined: list[bool]  # [c]
    down: Any  # D, shared or [c, ...]


class Written(NamedTuple):
    """What a job writes to the run's memory: everything that a worker on another machine sends back."""

    where: Literal["states", "ups", "personal"]
    rows: list[int]
    values: Any  # [len(rows), ...]


class TrainJob(NamedTuple):
    """Train a stack; `slots` are the rows of `ups` for each client's uplink, -1 for clients that do not report."""

    rows: list[int]
    slots: list[int]
    round: int


class EvaluateJob(NamedTuple):
    """Personalise a stack, and evaluate the personal models on the given splits."""

    rows: list[int]
    splits: tuple[str, ...]
    round: int


Job = TrainJob | EvaluateJob
Predictions = dict[str, list[NDArray[np.float32]]]  # split -> predictive distributions [n, P] of each client


@dataclass(frozen=True)
class Answer:
    """What a job returns, apart from what it writes."""

    rows: list[int]
    logs: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)  # rows whose update is discarded, and why
    scores: dict[str, list[Values]] = field(default_factory=dict)  # split -> metrics of each client
    predictions: Predictions = field(default_factory=dict)


@dataclass(frozen=True)
class Memory:
    """What a run keeps: every client's state, the round's uplinks, the newest downlink and the personal models."""

    states: Any  # C  [N, ...]
    joined: Tensor  # [N] bool
    ups: Any  # U  [R, ...]
    down: Any  # D, shared or [N, ...]
    personal: Any  # P  [N, ...]  as last evaluated
    addressed: bool  # the downlink is one message per client
    counted: Tensor  # [N] int64: rounds done with each client's newest update that counts; 0: none

    def view(self, rows: list[int]) -> View:
        """Views of consecutive rows (which no method may write to), or copies of others."""
        chosen = _compact(rows)
        down = tree.index(self.down, chosen) if self.addressed else self.down
        return View(tree.index(self.states, chosen), self.joined[rows].tolist(), down)

    def keep(self, written: Sequence[Written]) -> None:
        """Store what a job wrote."""
        for part in written:
            _write(getattr(self, part.where), part.rows, part.values, part.where)


@dataclass(frozen=True)
class Context:
    """Everything a worker needs to do any job, apart from the part of the memory that the job reads."""

    method: AnyMethod
    federation: Federation
    root: Key

    @cached_property
    def _keys(self) -> Keys:
        return Keys.of(self.root, self.federation.clients)

    @cached_property
    def _metrics(self) -> dict[str, Metric]:
        return metrics_of(self.federation.target)

    def keys(self, rows: list[int]) -> Keys:
        """The clients' keys."""
        return self._keys[rows]

    def _data(self, rows: list[int]) -> ClientData:
        """The stack's training examples; its validation examples too, for a method that says that it uses them."""
        data = self.federation.train[rows]
        return replace(data, validation=self.federation.validation[rows]) if self.method.uses_validation else data

    def _states(self, rows: list[int], view: View, down: Any) -> Any:
        """The stack's states; new clients get their initial ones."""
        new = [k for k, joined in enumerate(view.joined) if not joined]
        if not new:
            return view.states
        fresh_rows = [rows[k] for k in new]
        keys = self.keys(fresh_rows).fold("join")
        fresh = self.method.init_client(tree.index(down, new), self._data(fresh_rows), keys)
        if len(new) == len(rows):
            return fresh
        where = torch.tensor(new)
        return tree.map(lambda leaf, values: leaf.index_copy(0, where, values), view.states, fresh)

    def work(self, job: Job, view: View) -> tuple[Answer, list[Written]]:
        """Run a job."""
        down = view.down if self.method.hints.personal_downlink else tree.expand(view.down, len(job.rows))
        state = self._states(job.rows, view, down)
        return self._train(job, state, down) if isinstance(job, TrainJob) else self._evaluate(job, state, down)

    def _train(self, job: TrainJob, state: Any, down: Any) -> tuple[Answer, list[Written]]:
        keys = self.keys(job.rows).fold("round", job.round)
        state, up, logs = self.method.local_update(state, down, self._data(job.rows), keys)
        fine = finite(up, state, len(job.rows))
        counted = [k for k, ok in enumerate(fine) if ok]
        reporting = [k for k in counted if job.slots[k] >= 0]
        written = [
            Written("states", [job.rows[k] for k in counted], _rows(state, counted, len(fine))),
            Written("ups", [job.slots[k] for k in reporting], _rows(up, reporting, len(fine))),
        ]
        left_out = {row: NOT_FINITE for row, ok in zip(job.rows, fine, strict=True) if not ok}
        return Answer(job.rows, {k: v.double().numpy() for k, v in logs.items()}, left_out), written

    def _evaluate(self, job: EvaluateJob, state: Any, down: Any) -> tuple[Answer, list[Written]]:
        method, keys = self.method, self.keys(job.rows).fold("evaluation", job.round)
        personal = method.personalise(state, down, self._data(job.rows), keys.fold("personalise"))
        predictions = {split: self._predict(personal, job.rows, split, keys.fold("predict")) for split in job.splits}
        scores = {split: self._scores(found, job.rows, split) for split, found in predictions.items()}
        return Answer(job.rows, scores=scores, predictions=predictions), [Written("personal", job.rows, personal)]

    def _predict(self, personal: Any, rows: list[int], split: str, keys: Keys) -> list[NDArray[np.float32]]:
        parts: list[list[Tensor]] = [[] for _ in rows]
        for batch in self.federation.split(split)[rows].batches(EVALUATION_BATCH):
            predictive = self.method.predict(personal, batch.x, keys)
            for c, m in enumerate(batch.counts()):
                parts[c].append(predictive[c, :m])
        empty = torch.empty(0, self.method.task.likelihood.parameters)
        return [torch.cat(p).float().numpy() if p else empty.numpy() for p in parts]

    def _scores(self, predictions: list[NDArray[np.float32]], rows: list[int], split: str) -> list[Values]:
        data = self.federation.split(split)[rows]
        return [evaluate(self._metrics, found, data.client(c)[1].numpy()) for c, found in enumerate(predictions)]


NOT_FINITE = "its update is not finite"


def finite(up: Any, state: Any, clients: int) -> list[bool]:
    """Whether all numbers that a client sends and keeps are finite, judged by their sum, which must not overflow.

    Methods that send nothing are not checked: they cannot harm other clients, and their own failure should be visible.
    """
    sent = tree.leaves(up)
    kept = {leaf.data_ptr(): leaf for leaf in (*sent, *tree.leaves(state)) if leaf.is_floating_point()} if sent else {}
    total = torch.zeros(clients, dtype=torch.float64)
    for leaf in kept.values():  # each tensor once, even if it is both sent and kept
        total += leaf.reshape(clients, -1).sum(1)
    return [bool(ok) for ok in torch.isfinite(total)]


def _rows(values: Any, rows: list[int], count: int) -> Any:
    return values if len(rows) == count else tree.index(values, rows)


def _compact(rows: list[int]) -> slice | list[int]:
    """Consecutive rows as a slice: reading them makes no copy, and writing them takes half the time."""
    first, last = rows[0], rows[0] + len(rows)
    return slice(first, last) if rows == list(range(first, last)) else rows


def _write(memory: Any, rows: list[int], values: Any, what: str) -> None:
    if not rows:
        return
    where = _compact(rows)
    for (path, target), value in zip(tree.items(memory), tree.leaves(values), strict=True):
        if value.shape[1:] != target.shape[1:]:
            raise FedpriorError(
                f"the entry '{path}' of a client's {what} has shape {tuple(value.shape[1:])} at one client and "
                f"{tuple(target.shape[1:])} at another: shapes must not depend on the number of examples."
            )
        if value.data_ptr() != target[rows[0]].data_ptr():  # otherwise the state came back unchanged
            target[where] = value
