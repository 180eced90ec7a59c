"""Rows that differ only in what they mix take their training from one row.

Experts train as they would alone, bit for bit, so the stack with the most experts can train for all rows, once with
validation rows and once with blind twins. Beside its own prior it keeps those of the smaller mixtures (`Nested`), and
leaves a track of its rounds (`fedprior.experiment.track`). The part of the track that belongs to a mixture, or to one
expert, is what that row would have left alone, and the row follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedprior import tree
from fedprior.bayes import mixing
from fedprior.bayes.mixing import Pool
from fedprior.data.client import ClientData
from fedprior.experiment.config import Setup
from fedprior.experiment.loop import execute
from fedprior.experiment.result import Result
from fedprior.experiment.track import Track
from fedprior.methods.stack import Stack
from fedprior.mixture import Client, Down, Mixture, Server, Up
from fedprior.protocol import Logs
from fedprior.rng import Key, Keys
from fedprior.tree import Params

MOST = 2**33
"""Bytes of a track: 207 writers with a network each, at ten evaluations."""
ALL, TWINS = "stack + pFedVEM + pFedFDA", "stack + pFedVEM, blind twins"
EXPERTS = {
    "Local": "local",
    "FedAvg": "fedavg_ft",
    "FedAvg-FT": "fedavg_ft",
    "pFedVEM": "pfedvem",
    "pFedFDA": "pfedfda",
}
"""Row -> the expert of ALL whose training is the row's."""
SMALLER = {
    ALL: ("stack", "stack + pFedVEM", "Local+CAL", "FedAvg-FT+CAL"),
    TWINS: ("stack, blind twins",),
}
"""Row that trains -> the mixtures of some of its experts."""
OTHERS = "also"
"""Under which name the priors of smaller mixtures lie beside the experts."""


def others(row: str) -> tuple[str, ...]:
    """The rows that a row trains for."""
    return (*SMALLER.get(row, ()), *(EXPERTS if row == ALL else ()))


@dataclass(frozen=True, kw_only=True, config=ConfigDict(arbitrary_types_allowed=True))
class Nested(Stack):
    """A stack that keeps the priors of smaller mixtures of its experts too, as each would alone."""

    smaller: dict[str, Mixture]

    def init_server(self, key: Key, clients: int = 1) -> Server:
        """A flat prior over every family."""
        server = super().init_server(key, clients)
        pools = {name: mixing.start(mixture.family.size) for name, mixture in self.smaller.items()}
        return server._replace(experts=_beside(server.experts, pools))

    def broadcast(self, server: Server, ids: Tensor) -> Down:
        """Every prior."""
        down = super().broadcast(server, ids)
        pools = {name: {"pi": _own(name, server.experts)["pi"]} for name in self.smaller}
        return down._replace(experts=_beside(down.experts, pools))

    def local_update(self, client: Client, down: Down, data: ClientData, keys: Keys) -> tuple[Client, Up, Logs]:
        """The mixture's, and the scores of the smaller ones."""
        state, up, logs = super().local_update(client, down, data, keys)
        told: dict[str, Params] = {}
        for name, mixture in self.smaller.items():
            pi, scored = _own(name, down.experts)["pi"], torch.zeros(len(data), dtype=torch.float64)
            score = torch.zeros_like(pi)
            if mixture.due(int(down.round[0])):
                score, scored = mixture._judged(client, down, data, keys.fold("score"))
            told[name] = {"rho": mixing.posterior(score, pi), "score": score, "scored": scored}
        return state, up._replace(experts=_beside(up.experts, told)), logs

    def aggregate(self, server: Server, ups: Up, ids: Tensor) -> Server:
        """Every prior from its own scores."""
        after = super().aggregate(server, ups, ids)
        pools = {}
        for name, mixture in self.smaller.items():
            pool, own = tree.unflatten(Pool, _own(name, server.experts)), _own(name, ups.experts)
            if mixture.due(int(server.round)):
                pool = mixing.heard(pool, own["score"], own["rho"], own["scored"], int(server.clients))
            pools[name] = pool
        return after._replace(experts=_beside(after.experts, pools))


def _beside(experts: Params, more: Mapping[str, Any]) -> Params:
    flat = experts | {f"{OTHERS}/{path}": leaf for path, leaf in tree.items(dict(more))}
    return {path: flat[path] for path in sorted(flat)}


def _own(name: str, experts: Params) -> Params:
    prefix = f"{OTHERS}/{name}/"
    return {path.removeprefix(prefix): leaf for path, leaf in experts.items() if path.startswith(prefix)}


class Shared:
    """The tracks of one federation and seed."""

    def __init__(self) -> None:
        self.cell: tuple[str, int] | None = None
        self.tracks: dict[str, Track] = {}

    def run(self, cell: tuple[str, int], row: str, setup: Setup, smaller: Mapping[str, Mixture]) -> tuple[Result, bool]:
        """A row's result, and whether its cost is that of several rows; `smaller` are mixtures that it trains for."""
        if cell != self.cell:
            self.cell, self.tracks = cell, {}
        track, method = self.tracks.get(row), setup.method
        if smaller:
            assert isinstance(method, Stack)
            method = Nested(
                **{field.name: getattr(method, field.name) for field in fields(method)}, smaller=dict(smaller)
            )
            track = Track(MOST)
        result = execute(method, setup.federation, setup.settings, model=setup.model, track=track)
        if smaller and track is not None and whole(track):
            self.tracks |= {name: mixed(track, name, mixture) for name, mixture in smaller.items()}
            self.tracks |= {name: part(track, EXPERTS[name]) for name in others(row) if name in EXPERTS}
        return result, track is not None


def whole(track: Track) -> bool:
    """Whether others can follow: a client is left out because of any expert, so that others would miss it too."""
    return track.complete and not any(event["left_out"] for event in track.events)


def mixed(track: Track, name: str, mixture: Mixture) -> Track:
    """What a track says of a smaller mixture."""
    prefixes = tuple(f"{expert}/" for expert in mixture.learners)

    def keep(path: str) -> str | None:
        kind, _, rest = path.partition("/experts/")
        if not rest:
            return path if path in ("server/round", "server/clients") else None
        own = f"{OTHERS}/{name}/"
        if rest.startswith(own):
            return f"{kind}/pool/{rest.removeprefix(own)}"
        return path if rest.startswith(prefixes) else None

    return _sifted(track, name, keep)


def part(track: Track, expert: str) -> Track:
    """What a track says of one expert: `states/experts/local/w/head.bias` is `states/w/head.bias` of Local alone."""

    def keep(path: str) -> str | None:
        kind, _, rest = path.partition("/experts/")
        return f"{kind}/{rest.removeprefix(f'{expert}/')}" if rest.startswith(f"{expert}/") else None

    return _sifted(track, expert, keep)


def _sifted(track: Track, name: str, keep: Callable[[str], str | None]) -> Track:
    """The leaves that `keep` gives a path, and what every run has; logs are not needed to follow."""
    own = Track(MOST)
    own.begin(name, track.first)
    own.events = [{**event, "logs": {}, "server": {}} for event in track.events]
    for done, state in track.states.items():
        paths = {path: path if path in ("joined", "counted", "updated") else keep(path) for path in state}
        own.states[done] = {given: state[path] for path, given in paths.items() if given is not None}
    own.end()
    return own


def leaders_first(rows: Iterable[str]) -> list[str]:
    """Rows that train for others, then the rest."""
    return sorted(rows, key=lambda row: row not in SMALLER)
