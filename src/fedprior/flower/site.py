"""A site: a stack of one client, with its memory on its own disk. Knows nothing of what carries the messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from fedprior import tree
from fedprior.engine.memory import keep_freed_memory, single_thread
from fedprior.engine.rehearsal import rehearsed
from fedprior.engine.stack import Context, EvaluateJob, TrainJob, View, Written
from fedprior.flower.codec import Arrays, Layout, RejectedError, encode
from fedprior.flower.orders import Reply, RoundOrder, RoundReply, may_tell
from fedprior.flower.refusal import RefusedError
from fedprior.flower.store import SCORES, Store


class Layouts(NamedTuple):
    """Of what a site keeps and receives."""

    state: Layout
    personal: Layout
    down: Layout


@dataclass(frozen=True)
class Site:
    """One client of a federation of `clients`, at its own place."""

    context: Context
    clients: int
    store: Store

    @cached_property
    def layouts(self) -> Layouts:
        """By a rehearsal: so the server's message is checked as well."""
        method = self.context.method
        _, state, down, _, personal = method.types
        server = method.init_server(self.context.root, self.clients)
        shapes = rehearsed(self.context, server, torch.arange(self.clients))
        message = tree.index(shapes.down, slice(1)) if method.hints.personal_downlink else shapes.down
        return Layouts(Layout.of(state, shapes.state), Layout.of(personal, shapes.personal), Layout.of(down, message))

    def work(self, order: RoundOrder, arrays: Mapping[str, NDArray[Any]]) -> Reply:
        """Evaluate and train as ordered; nothing is written if it fails."""
        with single_thread():
            keep_freed_memory()
            view = self._view(order, arrays)
            scores = {} if order.splits is None else self._evaluate(order, view)
            logs, up = self._train(order, view) if order.train else ({}, {})
        return Reply(RoundReply(round=order.round, logs=logs, scores=scores).model_dump(), up)

    def _view(self, order: RoundOrder, arrays: Mapping[str, NDArray[Any]]) -> View:
        try:
            down = self.layouts.down.decode(arrays)
        except RejectedError as error:
            raise RefusedError("order", f"the message from the server is not one of this method: {error}.") from None
        self.store.roll_back(order.counted)
        if not order.counted:
            return View(None, [False], down)
        return View(self.store.read("state", order.counted, self.layouts.state), [True], down)

    def _evaluate(self, order: RoundOrder, view: View) -> dict[str, Any]:
        assert order.splits is not None
        answer, (personal,) = self.context.work(EvaluateJob([0], order.splits, order.round), view)
        self.store.keep("personal", order.round, personal.values)
        scores = {split: of_split[0] for split, of_split in answer.scores.items()}
        self.store.note(SCORES, json.dumps({"round": order.round, "scores": scores}))
        return scores

    def _train(self, order: RoundOrder, view: View) -> tuple[dict[str, float], Arrays]:
        answer, written = self.context.work(TrainJob([0], [0 if order.report else -1], order.round), view)
        if answer.left_out:
            raise RefusedError("not finite", f"the update of round {order.round + 1} is not finite.")
        parts: dict[str, Written] = {part.where: part for part in written}
        self.store.keep("state", order.round + 1, parts["states"].values)
        logs = {name: float(values[0]) for name, values in answer.logs.items() if may_tell(name)}
        return logs, encode(parts["ups"].values) if order.report else {}
