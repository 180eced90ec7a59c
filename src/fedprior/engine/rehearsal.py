"""The shapes of states, messages and personal models, found without any data."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedprior import tree
from fedprior.data.client import ClientData
from fedprior.data.federation import Federation
from fedprior.engine.stack import Context, EvaluateJob, TrainJob, View
from fedprior.protocol import AnyMethod
from fedprior.rng import Key


class Shapes(NamedTuple):
    """One client's trees, from which memory is laid out."""

    state: Any
    up: Any
    personal: Any
    down: Any  # of all clients


def rehearsed(context: Context, server: Any, ids: Tensor) -> Shapes:
    """Let a dummy client take a round of zero steps and be evaluated."""
    rehearsal = context.method.using(context.method.task, replace(context.method.train, steps=0))
    down = rehearsal.broadcast(server, ids)
    context = replace(context, method=rehearsal, federation=blank_client(context.federation))
    view = View(None, [False], tree.index(down, slice(1)) if rehearsal.hints.personal_downlink else down)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they would be about the dummy examples
        _, (written, up) = context.work(TrainJob([0], [0], 0), view)
        state = tree.map(_one, written.values)
        _, (personal,) = context.work(EvaluateJob([0], (), 0), View(state, [True], view.down))
    return Shapes(state, up.values, personal.values, down)


def _one(leaf: Tensor) -> Tensor:
    """An update that is not finite is not written; its shape is known all the same."""
    return leaf if len(leaf) else leaf.new_zeros(1, *leaf.shape[1:])


def personal_model(method: AnyMethod, federation: Federation) -> Any:
    """The personal model of a dummy client, as a stack of one: it shows which entries such models have."""
    root = Key.from_seed(0)
    server = method.init_server(root, len(federation))
    return rehearsed(Context(method, federation, root), server, torch.arange(len(federation))).personal


def blank_client(federation: Federation) -> Federation:
    """A federation of one dummy client with two blank examples: shapes depend on nothing more."""
    x = torch.zeros(2, *federation.shape, dtype=federation.train.x.dtype)
    data = ClientData.single(x, torch.zeros(2, dtype=federation.train.y.dtype))
    return replace(federation, clients=("",), train=data, validation=data, test=data)
