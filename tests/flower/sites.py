"""Sites in this process, with their states in a folder: for equality with the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedprior.data.federation import SPLITS, Federation, outline
from fedprior.engine import AnyMethod
from fedprior.engine.stack import Context
from fedprior.experiment.config import Settings
from fedprior.experiment.loop import execute
from fedprior.experiment.result import Result
from fedprior.flower.codec import Arrays, encode
from fedprior.flower.here import Here
from fedprior.flower.orders import Link, Reply, RoundOrder, parsed
from fedprior.flower.refusal import RefusedError
from fedprior.flower.remote import remote
from fedprior.flower.site import Site
from fedprior.flower.store import Store
from fedprior.rng import Key

Tamper = Callable[[str, RoundOrder, Reply], Reply]


class Sites:
    """A site anew for every message, as real nodes start a process for each."""

    def __init__(self, method: AnyMethod, data: Federation, state: Path, tamper: Tamper | None = None) -> None:
        self.method, self.data, self.state, self.tamper = method, data, state, tamper
        self.orders: list[tuple[str, RoundOrder]] = []

    def site(self, name: str) -> Site:
        row = self.data.clients.index(name)
        context = Context(self.method, self.data.select([row]), Key.from_seed(0))
        return Site(context, len(self.data), Store(self.state, "test", name))

    def __call__(self, name: str, document: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Reply:
        order = parsed(RoundOrder, document)
        self.orders.append((name, order))
        try:
            reply = self.site(name).work(order, arrays)
        except RefusedError as refusal:
            reply = Reply({"round": order.round, "refused": refusal.code})
        return reply if self.tamper is None else self.tamper(name, order, reply)

    def personal(self, name: str, number: int) -> Arrays:
        site = self.site(name)
        return encode(site.store.read("personal", number, site.layouts.personal))


def known(data: Federation) -> Federation:
    """What a server knows of a federation."""
    sizes = {name: {s: data.split(s).size[i] for s in SPLITS} for i, name in enumerate(data.clients)}
    return outline(sizes, data.shape, data.target).to(data.train.x.dtype)


def deployed(method: AnyMethod, data: Federation, link: Link, folder: Path | None = None, **settings: Any) -> Result:
    """A run whose clients are at the other end of a link."""
    chosen = Settings(**{"rounds": 2, "chunk": 1, "workers": 1, "eval_every": 1, "checkpoint_every": 1, **settings})
    return execute(
        method,
        known(data),
        chosen,
        model={"name": "mlp"},
        runner=remote(link),
        folder=folder,
        resume=folder is not None,
    )


def simulated(method: AnyMethod, data: Federation, **settings: Any) -> Result:
    """The same run in the simulator, client by client."""
    chosen = Settings(**{"rounds": 2, "chunk": 1, "workers": 1, "eval_every": 1, **settings})
    return execute(method, data, chosen, model={"name": "mlp"})


def linked(method: AnyMethod, data: Federation, state: Path, tamper: Tamper | None = None) -> tuple[Sites, Here]:
    sites = Sites(method, data, state, tamper)
    return sites, Here(sites)


def same_values(a: Any, b: Any) -> bool:
    """Equal numbers in journals, nan included."""
    return repr(a) == repr(b)
