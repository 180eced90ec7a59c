"""The prior of a run: the server's state after the round whose personal models were kept.

Personal models alone cannot admit a new site; the prior can. `prior.safetensors` holds it with a description of the
method, its training and how inputs are prepared: all that a site needs to join, and no row of anyone's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedprior import tree
from fedprior.data.federation import Federation
from fedprior.data.preparation import Preparation
from fedprior.data.target import Target, from_document
from fedprior.engine import AnyMethod
from fedprior.errors import FedpriorError
from fedprior.experiment import signed
from fedprior.experiment.personal import Arrays, Outline, check, described_method
from fedprior.files import write_bytes
from fedprior.rng import Key

TOLD = ("version", "method", "model", "target", "shape", "precision", "seed")
"""What a summary says that the description of a model or a prior repeats."""


@dataclass(frozen=True)
class Prior:
    """What the server knows, and how a site that has only this would use it."""

    method: AnyMethod  # bound to its task
    server: Any  # S
    target: Target
    shape: tuple[int, ...]  # of one example
    preparation: Preparation
    seed: int
    round: int  # rounds that it has learned from
    clients: int
    told: Mapping[str, Any]  # version, method, model, target, shape, precision and seed, as personal models have them

    @classmethod
    def of(cls, method: AnyMethod, server: Any, federation: Federation, summary: Mapping[str, Any]) -> Prior:
        """The prior of a run, given its summary."""
        told = {key: summary[key] for key in TOLD}
        kept, preparation = summary["selected"]["round"], federation.preparation
        sites, shape = len(federation), federation.shape
        return cls(method, server, federation.target, shape, preparation, summary["seed"], kept, sites, told)

    def down(self) -> Any:
        """What a site receives that has no number among the clients; one message for all."""
        return self.method.broadcast(self.server, torch.zeros(1, dtype=torch.int64))

    def arrays(self) -> Arrays:
        """The server's state as named arrays."""
        return {path: leaf.numpy(force=True) for path, leaf in tree.items(self.server)}

    def save(self, path: Path) -> None:
        """Write it."""
        own = {"train": asdict(self.method.train), "round": self.round, "clients": self.clients}
        inputs = {"preparation": self.preparation.document()}
        write_bytes(path, signed.packed(self.arrays(), {**self.told, **own, **inputs}))


def load_prior(path: str | Path, module: nn.Module | None = None) -> Prior:
    """A prior from its file.

    Args:
        path: `prior.safetensors` in a run's folder.
        module: The network, if it is your own; its weights come from the file.

    Returns:
        What `fedprior.join` needs to admit a new site.

    Raises:
        FedpriorError: If there is no such file, or it is damaged or was altered.
    """
    place = Path(path)
    if not place.is_file():
        raise FedpriorError(
            f"there is no '{place}', the prior that a new site needs: the run was made by an earlier version (run it "
            "again), or its method keeps a part for each client at the server (use another method)."
        )
    arrays, about = signed.read(place, "prior")
    try:
        target, preparation = from_document(about["target"]), Preparation.from_document(about["preparation"])
        method = described_method(place, about, target, module)
        shape, seed, clients = tuple(map(int, about["shape"])), int(about["seed"]), int(about["clients"])
        told, number = {key: about[key] for key in TOLD}, int(about["round"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise signed.unreadable(place, "prior", error) from None
    check(place, arrays, _outline(method, clients))
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    server = tree.unflatten(method.types[0], tensors)
    return Prior(method, server, target, shape, preparation, seed, number, clients, told)


def _outline(method: AnyMethod, clients: int) -> Outline:
    """What a server of this method holds, before it has learned anything."""
    idle = method.using(method.task, replace(method.train, steps=0))
    found = tree.items(idle.init_server(Key.from_seed(0), clients))
    return {path: (tuple(leaf.shape), leaf.numpy().dtype) for path, leaf in found}
