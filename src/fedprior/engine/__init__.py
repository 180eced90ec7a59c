"""The engine: stacks of clients × worker processes, one torch thread each.

It owns what a run keeps between rounds. Clients' states and uplinks are in memory that all workers share, so a round
sends only row numbers through the pipes. The same code runs in this process, in workers, as tasks on a Ray cluster, or
at real sites: a `Runner` does the jobs. The engine is told which clients answered, and counts only those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprior import tree
from fedprior.data.federation import Federation
from fedprior.engine.memory import COPIES, Need, Sharing, cores, how_to_start, keep_freed_memory, need, zeros
from fedprior.engine.pool import Here, Pool, Runner, RunnerFactory, WorkerError
from fedprior.engine.rehearsal import Shapes, personal_model, rehearsed
from fedprior.engine.shared import predict_shared
from fedprior.engine.stack import (
    Answer,
    Context,
    EvaluateJob,
    Job,
    Memory,
    Predictions,
    TrainJob,
    chunk_size,
    compose,
    least_stacks,
)
from fedprior.metrics import Values
from fedprior.protocol import AnyMethod
from fedprior.rng import Key
from fedprior.room import check_room

__all__ = [
    "AnyMethod",
    "Engine",
    "Evaluation",
    "Predictions",
    "Round",
    "RunnerFactory",
    "WorkerError",
    "Workers",
    "personal_model",
]

Workers = int | Literal["auto"]
"""Number of worker processes. `auto`: one per core, started once the run has lasted as long as starting them takes."""

NO_ANSWER = "no answer"
LINES = 5
"""Journal lines per client and evaluation: its own model and the global one on two splits, and its logs."""


class Round(NamedTuple):
    """The outcome of a round."""

    logs: dict[str, NDArray[np.float64]]  # name -> [N], nan for those who did not train
    counted: list[int]  # clients whose uplinks are in the new prior; if empty, it is unchanged
    left_out: dict[int, str]  # clients whose update was discarded, and why
    evaluation: Evaluation | None = None  # of the personal models before the round, if it was asked for


class Evaluation(NamedTuple):
    """Every client's metrics, and its predictions where they are available: split -> one entry per client."""

    scores: dict[str, list[Values]]
    predictions: Predictions


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
        runner: RunnerFactory | None = None,
        min_answers: int = 1,
        evaluations: int = 1,
    ) -> None:
        keep_freed_memory()
        weights = COPIES * method.task.size * method.task.dtype.itemsize
        check_room("training this model", weights, "use a smaller one")  # the rehearsal below makes it
        self.method, self.federation, self.root = method, federation, Key.from_seed(seed)
        self.largest, self.min_answers = chunk_size(chunk, method), min_answers
        ranked = sorted(range(len(federation)), key=lambda i: federation.clients[i])
        self.ids = torch.empty(len(federation), dtype=torch.int64)  # a client's id is the rank of its name
        self.ids[ranked] = torch.arange(len(federation))
        self.server = method.init_server(self.root, len(federation))
        self.context = Context(method, federation, self.root)
        shapes = rehearsed(self.context, self.server, self.ids)
        at_work = 1 if runner is not None else self._workers(workers)
        self.sharing: Sharing = "nobody" if at_work == 1 else start_method or how_to_start()
        self.need = self._need(shapes, at_work, evaluations)
        self.need.check(self.sharing)
        self.memory = self._memory(shapes)
        self.kept: Any = None  # the personal models that `keep` stored
        self.judged = self.server  # the server's state at the last evaluation
        self.prior: Any = None  # the server's state that they were made with, if other clients could use it too
        self.logs: dict[str, NDArray[np.float64]] = {}  # of each client's last update, [N]
        self.updated = np.zeros(len(federation), dtype=np.int64)  # the round of that update, from 1; 0: none yet
        start = runner or self._local(at_work, workers == "auto", start_method)
        self.runner = start(self.context, self.memory)

    def _local(self, workers: int, auto: bool, start_method: str | None) -> RunnerFactory:
        def start(context: Context, memory: Memory) -> Runner:
            if workers == 1 or auto:
                return Here(context, memory, workers)
            return Pool(context, memory, workers, start_method)

        return start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.runner.close()

    @property
    def everyone(self) -> list[int]:
        """All clients."""
        return list(range(len(self.federation)))

    def _need(self, shapes: Shapes, workers: int, evaluations: int) -> Need:
        weights = self.method.task.size * self.method.task.dtype.itemsize
        state, up, personal, down = (tree.nbytes(part) for part in shapes)
        clients = len(self.federation)
        rows = sum(sum(self.federation.split(split).size) for split in ("validation", "test"))
        if self.federation.elsewhere:  # sites keep their own states, models and predictions
            state = personal = rows = 0
        told = {"predicted": rows * max(2, self.method.task.likelihood.outputs), "lines": LINES * evaluations}
        return need(state, up, personal, down, clients, weights, min(self.largest, clients), workers, **told)

    def _workers(self, workers: Workers) -> int:
        return workers if workers != "auto" else min(cores(), len(self._stacks(self.everyone)))

    def _memory(self, shapes: Shapes) -> Memory:
        """Memory for every client's state, uplink, message and personal model."""
        n = len(self.federation)
        here = 0 if self.federation.elsewhere else n  # states and models of real sites stay with them
        return Memory(
            states=tree.map(lambda leaf: self._room(leaf, here), shapes.state),
            joined=zeros((n,), torch.bool, self.sharing),
            ups=tree.map(lambda leaf: self._room(leaf, n), shapes.up),
            down=tree.map(lambda leaf: zeros(leaf.shape, leaf.dtype, self.sharing), shapes.down),
            personal=tree.map(lambda leaf: self._room(leaf, here), shapes.personal),
            addressed=self.method.hints.personal_downlink,
            counted=zeros((n,), torch.int64, self.sharing),
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

    def round(
        self, number: int, trainers: list[int], reporters: list[int], splits: tuple[str, ...] | None = None
    ) -> Round:
        """One round: all `trainers` train, and the uplinks of the `reporters` that answer are aggregated.

        An update that did not come back, or is not finite, is discarded: neither the prior nor the client's own state
        changes because of it. Where clients are elsewhere, the message that asks them to train may ask for an
        evaluation on `splits` before.
        """
        assert splits is None or self.federation.elsewhere
        self._broadcast()
        reporters = sorted(reporters, key=lambda i: self.federation.clients[i])
        slot = {i: k for k, i in enumerate(reporters)}
        jobs = [TrainJob(rows, [slot.get(i, -1) for i in rows], number) for rows in self._stacks(trainers)]
        found = self._run([*([] if splits is None else self._evaluations(number, splits)), *jobs])
        evaluation = None if splits is None else self._evaluated(found, splits)
        answers = [answer for answer in found if not answer.scores]
        left_out = {row: why for answer in answers for row, why in answer.left_out.items()}
        came = {row for answer in answers for row in answer.rows}
        left_out |= {row: NO_ANSWER for row in trainers if row not in came and row not in left_out}
        fine = torch.tensor([row for row in trainers if row not in left_out], dtype=torch.int64)
        self.memory.joined[fine], self.memory.counted[fine] = True, number + 1
        counted = [row for row in reporters if row not in left_out]
        counted = counted if len(counted) >= self.min_answers else []
        if counted:
            self._aggregate([slot[row] for row in counted], self.ids[counted])
        return Round(self._logged(answers, number + 1), counted, left_out, evaluation)

    def _aggregate(self, slots: list[int], ids: Tensor) -> None:
        ups = tree.index(self.memory.ups, slice(len(slots)) if slots == list(range(len(slots))) else slots)
        self.server = tree.map(self._own, self.method.aggregate(self.server, ups, ids))

    def _own(self, leaf: Tensor) -> Tensor:
        """A copy if the leaf shares memory with the uplinks, which the next round overwrites."""
        pointers = {up.untyped_storage().data_ptr() for up in tree.leaves(self.memory.ups)}
        return leaf.clone() if leaf.untyped_storage().data_ptr() in pointers else leaf

    def _logged(self, answers: list[Answer], done: int) -> dict[str, NDArray[np.float64]]:
        logs: dict[str, NDArray[np.float64]] = {}
        for answer in answers:
            for name, values in answer.logs.items():
                for known in (logs, self.logs):
                    known.setdefault(name, np.full(len(self.federation), np.nan))[answer.rows] = values
            self.updated[answer.rows] = done
        return logs

    def message_bytes(self) -> tuple[int, int]:
        """Bytes of one client's uplink and downlink."""
        memory = self.memory
        down = tree.index(memory.down, slice(1)) if memory.addressed else memory.down
        return tree.nbytes(tree.index(memory.ups, slice(1))), tree.nbytes(down)

    def evaluate(self, number: int, splits: tuple[str, ...]) -> Evaluation:
        """Evaluate every client's personal model after round `number`, where the client's examples are."""
        self._broadcast()
        return self._evaluated(self._run(self._evaluations(number, splits)), splits)

    def _evaluations(self, number: int, splits: tuple[str, ...]) -> list[EvaluateJob]:
        self.judged = self.server
        return [EvaluateJob(rows, splits, number) for rows in self._stacks(self.everyone)]

    def _evaluated(self, answers: list[Answer], splits: tuple[str, ...]) -> Evaluation:
        """Metrics by client: none for those that did not answer."""
        scores: dict[str, list[Values]] = {s: [{} for _ in self.everyone] for s in splits}
        found: Predictions = {s: [np.empty((0, 0), np.float32)] * len(self.federation) for s in splits}
        for answer in answers:
            for split, of_split in answer.scores.items():
                for k, row in enumerate(answer.rows):
                    scores[split][row] = of_split[k]
                    if answer.predictions:
                        found[split][row] = answer.predictions[split][k]
        return Evaluation(scores, found)

    def predict_global(self, splits: tuple[str, ...]) -> Predictions | None:
        """The prior's own predictions on every client's examples, if these are here and there is a global model."""
        if self.federation.elsewhere:
            return None
        found: Predictions = {}
        for split in splits:
            order = self.ids.argsort().tolist()
            predicted = predict_shared(self.method, self.server, self.federation.split(split), order)
            if predicted is None:
                return None
            found[split] = predicted
        return found

    def keep(self) -> None:
        """Keep a copy of the personal models as last evaluated, and of their prior, because validation chose them.

        A server state with a part for each client is not a prior for others, and as large as all their models.
        """
        self.kept = tree.clone(self.memory.personal)
        self.prior = None if self.memory.addressed else self.method.shareable(self.judged)

    def snapshot(self) -> dict[str, Tensor]:
        """Everything a checkpoint must hold for `restore` to continue as if there had been no interruption."""
        memory, logs = self.memory, {name: torch.from_numpy(values) for name, values in self.logs.items()}
        state = {"server": self.server, "states": memory.states, "logs": logs}
        state |= {"joined": memory.joined, "counted": memory.counted}
        kept = {} if self.kept is None else {"kept": self.kept}
        kept |= {} if self.prior is None else {"prior": self.prior}
        return tree.flatten({**state, **kept, "updated": torch.from_numpy(self.updated)})

    def restore(self, flat: Mapping[str, Tensor]) -> None:
        """Continue from a snapshot."""
        server, client, _, _, personal = self.method.types
        self.server = tree.unflatten(server, flat, "server")
        self.memory.joined.copy_(flat["joined"])
        self.memory.counted.copy_(flat.get("counted", self.memory.counted))  # which older checkpoints lack
        states = tree.unflatten(client, flat, "states")
        for target, source in zip(tree.leaves(self.memory.states), tree.leaves(states), strict=True):
            target.copy_(source)
        self.logs = {name: values.numpy().copy() for name, values in tree.unflatten(dict, flat, "logs").items()}
        self.updated = flat["updated"].numpy().copy()
        if any(path == "kept" or path.startswith("kept/") for path in flat):
            self.kept = tree.unflatten(personal, flat, "kept")
            known = any(path == "prior" or path.startswith("prior/") for path in flat)  # older checkpoints lack it
            if not self.memory.addressed and (known or not tree.leaves(self.server)):
                self.prior = tree.unflatten(server, flat, "prior")
