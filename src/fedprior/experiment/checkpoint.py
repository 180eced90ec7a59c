"""Checkpoints: the server's state, every client's state and who has joined. Randomness needs no saving: it is keyed.

`checkpoint/round-00012.safetensors` holds the tensors; `checkpoint/manifest.json` names the newest complete one with
its checksum and is replaced last, so that a run killed at any moment finds a whole checkpoint or none.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from fedprior import tree
from fedprior.engine import Engine
from fedprior.errors import FedpriorError
from fedprior.files import pack, read_tensors, write_bytes, write_text

FORMAT = 1


class Manifest(NamedTuple):
    """Which checkpoint is the newest."""

    round: int  # rounds done
    file: str
    sha256: str
    federation: str  # fingerprint of the data
    format: int = FORMAT


class Saver:
    """Writes and restores the checkpoints of one run."""

    def __init__(self, folder: Path, engine: Engine, fingerprint: str) -> None:
        self.folder, self.engine, self.fingerprint = folder, engine, fingerprint

    def save(self, done: int) -> None:
        """Write the state after `done` rounds, then drop the checkpoint before it."""
        memory = self.engine.memory
        content = pack(tree.flatten({"server": self.engine.server, "states": memory.states, "joined": memory.joined}))
        checksum = hashlib.sha256(content).hexdigest()
        manifest = Manifest(done, f"round-{done:05d}.safetensors", checksum, self.fingerprint)
        write_bytes(self.folder / manifest.file, content)
        write_text(self.folder / "manifest.json", json.dumps(manifest._asdict(), indent=2) + "\n")
        for old in self.folder.glob("round-*.safetensors"):
            if old.name != manifest.file:
                old.unlink()

    def restore(self) -> int:
        """Put the newest checkpoint into the engine; returns its rounds, 0 when there is none yet."""
        found = read_manifest(self.folder)
        if found is None:
            return 0
        check_data(self.folder, self.fingerprint)
        path = self.folder / found.file
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != found.sha256:
            raise damaged(path, "its checksum is wrong")
        flat, _ = read_tensors(path)
        server, client, *_ = self.engine.method.types
        self.engine.server = tree.unflatten(server, flat, "server")
        memory = self.engine.memory
        memory.joined.copy_(flat["joined"])
        states = tree.unflatten(client, flat, "states")
        for target, source in zip(tree.leaves(memory.states), tree.leaves(states), strict=True):
            target.copy_(source)
        return found.round


def check_data(folder: Path, fingerprint: str) -> None:
    """Refuse to continue or to show a run on other data than it began with."""
    found = read_manifest(folder)
    if found is not None and found.federation != fingerprint:
        raise FedpriorError(
            f"the data differ from those that the run in '{folder.parent}' began with: resume it with the same data."
        )


def read_manifest(folder: Path) -> Manifest | None:
    """The newest checkpoint of a run, or None when it has none yet."""
    path = folder / "manifest.json"
    if not path.exists():
        return None
    try:
        found = Manifest(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise damaged(path, str(error)) from None
    if not (isinstance(found.round, int) and isinstance(found.file, str)):
        raise damaged(path, "its entries are of the wrong kind")
    if found.format != FORMAT:
        raise FedpriorError(f"'{path}' has format {found.format}, this version reads {FORMAT}: use a matching version.")
    return found


def damaged(path: Path, why: str) -> FedpriorError:
    """The error for a checkpoint that cannot be trusted."""
    return FedpriorError(
        f"the checkpoint '{path}' is damaged ({why}): nothing was changed; start the run again in a new folder."
    )
