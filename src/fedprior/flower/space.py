"""Bytes of disk that an experiment takes, from its method, its model and its rounds; nobody's rows are needed.

At a site, of which the store keeps a state and the personal model of every evaluation until the end:

    2 · state + (evaluations + 2) · personal model

At the server: the checkpoint with the server's state and the selected prior, twice while it is replaced, the prior's
own file, and Flower's database, which holds the messages of a round:

    5 · server + 2 · N · (uplink + downlink)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedprior import tree
from fedprior.data.federation import SPLITS
from fedprior.data.schema import Schema
from fedprior.engine.memory import COPIES, single_thread
from fedprior.engine.rehearsal import Shapes, rehearsed
from fedprior.engine.stack import Context
from fedprior.experiment.config import Settings
from fedprior.flower.agreement import Agreement
from fedprior.rng import Key
from fedprior.room import check_room

BASE = 100 << 20
"""For logs, reports and what Flower keeps, whatever the model."""
MARGIN = 1.5
"""For what a file system adds, and messages that are longer than their arrays."""


def site_bytes(sections: Mapping[str, Any], schema: Schema, sites: int) -> int:
    """At one of so many sites."""
    shapes, _, settings = _rehearsed(sections, schema, sites)
    state, personal = tree.nbytes(shapes.state), tree.nbytes(shapes.personal)
    evaluations = -(-settings.rounds // settings.every(settings.eval_every))
    return _with_margin(2 * state + (evaluations + 2) * personal)


def server_bytes(sections: Mapping[str, Any], schema: Schema, sites: int) -> int:
    """At the server of so many sites."""
    shapes, server, _ = _rehearsed(sections, schema, sites)
    up, down = tree.nbytes(shapes.up), tree.nbytes(shapes.down)
    return _with_margin(5 * tree.nbytes(server) + 2 * sites * (up + down))


def _with_margin(count: int) -> int:
    return BASE + int(MARGIN * count)


def _rehearsed(sections: Mapping[str, Any], schema: Schema, sites: int) -> tuple[Shapes, Any, Settings]:
    """The shapes of all trees, the server's state, and the settings of the run."""
    sizes = {str(k): dict.fromkeys(SPLITS, 1) for k in range(sites)}
    setup = Agreement("", sections, schema, sizes, schema.target).setup()
    method, root = setup.method, Key.from_seed(setup.settings.seed)
    check_room("this model", COPIES * method.task.size * method.task.dtype.itemsize, "use a smaller one")
    with single_thread():
        server = method.init_server(root, sites)
        return rehearsed(Context(method, setup.federation, root), server, torch.arange(sites)), server, setup.settings
