"""Flower's client side, in a module of its own so that Ray's workers import it instead of unpickling it every call.

The data are read once in each worker process; the network stays there and only its weights change.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from .. import tasks
from ..tasks import Problem
from .local import descend, descend_near
from .session import PROBLEM, quiet

app = ClientApp()


@cache
def resident() -> tuple[Problem, nn.Module]:
    """This worker's data and network."""
    quiet()
    problem = tasks.read(Path(os.environ[PROBLEM]))
    return problem, problem.network()


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """One epoch on the shared model, and for Ditto one on the personal model, which lives in the node's state."""
    problem, module = resident()
    task, c = problem.task, int(context.node_config["partition-id"])
    x, y = problem.x[c], problem.y[c]
    received = message.content["arrays"].to_torch_state_dict()
    module.load_state_dict(received)
    descend(module, x, y, task.lr, task.batch)
    up = ArrayRecord(module.state_dict())
    if task.pull is not None:
        module.load_state_dict(_personal(context, received))
        descend_near(module, list(received.values()), task.pull, x, y, task.lr, task.batch)
        context.state["personal"] = ArrayRecord(module.state_dict())
    return _reply(message, {"arrays": up, "metrics": MetricRecord({"num-examples": len(y)})})


@app.evaluate()  # type: ignore[untyped-decorator]
def evaluate(message: Message, context: Context) -> Message:
    """The personal model on the client's own test examples; asked for once, after the last round."""
    problem, module = resident()
    c = int(context.node_config["partition-id"])
    module.load_state_dict(_personal(context, message.content["arrays"].to_torch_state_dict()))
    accuracy, loss = tasks.evaluate(module, problem.x_test[c], problem.y_test[c])
    return _reply(message, {"metrics": MetricRecord({"accuracy": accuracy, "loss": loss, "num-examples": 1})})


def _personal(context: Context, received: dict[str, Any]) -> dict[str, Any]:
    kept = context.state.get("personal")
    return received if kept is None else dict(kept.to_torch_state_dict())


def _reply(message: Message, records: dict[str, Any]) -> Message:
    return Message(content=RecordDict(records), reply_to=message)
