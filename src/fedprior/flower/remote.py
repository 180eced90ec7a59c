"""The server's runner: jobs are done at sites elsewhere, one message per site, and every reply is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedprior import tree
from fedprior.engine import RunnerFactory
from fedprior.engine.pool import Done, Runner
from fedprior.engine.stack import Answer, Context, EvaluateJob, Job, Memory, TrainJob, Written
from fedprior.flower.codec import Arrays, Layout, RejectedError, encode
from fedprior.flower.orders import Link, Order, Reply, RoundOrder, RoundReply, may_tell, parsed
from fedprior.flower.refusal import reason
from fedprior.metrics import metrics_of

Tasks = tuple[EvaluateJob | None, TrainJob | None]
Wrap = Callable[[dict[str, Any]], dict[str, Any]]
"""Adds to an order what every message of an experiment carries."""


def remote(link: Link, wrap: Wrap = dict) -> RunnerFactory:
    """Let the sites at the other end of a link do the jobs."""

    def start(context: Context, memory: Memory) -> Runner:
        return Remote(context, memory, link, wrap)

    return start


class Remote:
    """Sites that answer, or do not."""

    def __init__(self, context: Context, memory: Memory, link: Link, wrap: Wrap = dict) -> None:
        self.context, self.memory, self.link, self.wrap = context, memory, link, wrap
        self.uplink = Layout.of(context.method.types[3], tree.index(memory.ups, slice(1)))
        self.metrics = frozenset(metrics_of(context.federation.target))

    def run(self, jobs: Sequence[Job], done: Done) -> None:
        """One message per site for all of its jobs; replies are taken in the order of names."""
        tasks: dict[int, Tasks] = {}
        for job in jobs:
            (row,) = job.rows  # chunk = 1
            evaluate, train = tasks.get(row, (None, None))
            tasks[row] = (job, train) if isinstance(job, EvaluateJob) else (evaluate, job)
        names = self.context.federation.clients
        rows = sorted(tasks, key=lambda row: names[row])
        orders = {row: self._order(row, *tasks[row]) for row in rows}
        shared = None if self.memory.addressed else encode(self.memory.down)
        replies = self.link.exchange(
            [Order(names[row], self.wrap(orders[row].model_dump()), self._down(row, shared)) for row in rows]
        )
        for row in rows:
            for answer in self._answers(row, orders[row], tasks[row], replies):
                done(answer)

    def _order(self, row: int, evaluate: EvaluateJob | None, train: TrainJob | None) -> RoundOrder:
        number = next(job.round for job in (train, evaluate) if job is not None)
        return RoundOrder(
            site=self.context.federation.clients[row],
            round=number,
            counted=int(self.memory.counted[row]),
            splits=None if evaluate is None else evaluate.splits,
            train=train is not None,
            report=train is not None and train.slots[0] >= 0,
        )

    def _down(self, row: int, shared: Arrays | None) -> Arrays:
        return encode(tree.index(self.memory.down, slice(row, row + 1))) if shared is None else shared

    def _answers(self, row: int, order: RoundOrder, tasks: Tasks, replies: Mapping[str, Reply | str]) -> list[Answer]:
        evaluate, train = tasks
        reply = replies.get(self.context.federation.clients[row], "no answer")
        try:
            if isinstance(reply, str):
                raise RejectedError(reply)
            told, up = self._checked(order, reply)
        except RejectedError as error:
            return [] if train is None else [Answer([], left_out={row: str(error)})]
        answers = [] if evaluate is None else [Answer([row], scores={k: [v] for k, v in told.scores.items()})]
        if train is not None:
            if order.report:
                self.memory.keep([Written("ups", train.slots, up)])
            answers.append(Answer([row], {name: np.array([value]) for name, value in told.logs.items()}))
        return answers

    def _checked(self, order: RoundOrder, reply: Reply) -> tuple[RoundReply, Any]:
        """What a site told and sent, if it is what was asked for."""
        if isinstance(reply.document.get("refused"), str):
            raise RejectedError(reason(reply.document["refused"]))
        try:
            told: RoundReply = parsed(RoundReply, reply.document)
            if told.round != order.round:
                raise RejectedError("it is the answer to another round")
            if not all(map(may_tell, told.logs)) or set(told.scores) != set(order.splits or ()):
                raise RejectedError("it tells what was not asked for")
            if any(values.keys() != self.metrics for values in told.scores.values()):
                raise RejectedError("its metrics are not those that were asked for")
            if not order.report and reply.arrays:
                raise RejectedError("it has an uplink that was not asked for")
            return told, self._uplink(order, reply) if order.report else None
        except RejectedError as error:
            raise RejectedError(f"its answer was rejected: {error}") from None

    def _uplink(self, order: RoundOrder, reply: Reply) -> Any:
        """What a site sent; it weighs no more than the training rows that were agreed on."""
        up = self.uplink.decode(reply.arrays, finite=True)
        data = self.context.federation
        rows = int(data.train.size[data.clients.index(order.site)])
        n = getattr(up, "n", None)
        if n is not None and not bool(((n >= min(1, rows)) & (n <= rows)).all()):
            raise RejectedError(f"its 'n' does not fit its {rows} training rows")
        return up

    def close(self) -> None:
        """Sites wait for further messages by themselves."""
