"""Checkpoints: the engine's snapshot and the selected round. Randomness is keyed, so it need not be saved.

`checkpoint/round-00012.safetensors` holds the tensors. `checkpoint/manifest.json` names the newest complete checkpoint
with its checksum and is replaced last, so that a run killed at any moment has a complete checkpoint or none. The
manifest also ties the checkpoint to its run: to the data, the whole configuration, and the journals up to that round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedprior.errors import FedpriorError
from fedprior.experiment.identity import refuse_another
from fedprior.experiment.seal import JOURNALS, Running, Seal, parsed
from fedprior.files import pack, read_tensors, write_bytes, write_text

FORMAT = 4
EMPTY = Running().seal()


class Newest(NamedTuple):
    """The manifest: which checkpoint is the newest."""

    round: int  # rounds done
    file: str
    sha256: str
    federation: str  # fingerprint of the data
    config: Mapping[str, Any] = {}  # the identity of the run
    journals: Mapping[str, Any] = {}  # seals of the journals up to here
    format: int = FORMAT


class Checkpoint(NamedTuple):
    """The state after some rounds."""

    round: int
    tensors: dict[str, Tensor]
    journals: Mapping[str, Seal]
    config: Mapping[str, Any]


class Saver:
    """Writes and reads the checkpoints of one run."""

    def __init__(self, folder: Path, fingerprint: str, config: Mapping[str, Any] | None = None) -> None:
        self.folder, self.fingerprint, self.config = folder, fingerprint, dict(config or {})

    def save(self, done: int, tensors: Mapping[str, Tensor], journals: Mapping[str, Seal] | None = None) -> None:
        """Write the state after `done` rounds, then delete the previous checkpoint."""
        content = pack(tensors)
        checksum = hashlib.sha256(content).hexdigest()
        seals = {name: seal._asdict() for name, seal in (journals or dict.fromkeys(JOURNALS, EMPTY)).items()}
        newest = Newest(done, f"round-{done:05d}.safetensors", checksum, self.fingerprint, self.config, seals)
        write_bytes(self.folder / newest.file, content)
        write_text(self.folder / "manifest.json", json.dumps(newest._asdict(), indent=2) + "\n")
        self._keep_only(newest.file)

    def read(self) -> Checkpoint | None:
        """The newest checkpoint, or None if there is none yet."""
        found = read_manifest(self.folder)
        if found is None:
            return None
        check_run(self.folder, self.fingerprint, self.config)
        path = self.folder / found.file
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != found.sha256:
            raise damaged(path, "its checksum is wrong")
        try:
            journals = parsed(found.journals)
        except (TypeError, KeyError) as error:
            raise damaged(self.folder / "manifest.json", str(error)) from None
        self._keep_only(found.file)  # a process that was killed may have left the one before
        return Checkpoint(found.round, read_tensors(path)[0], journals, found.config)

    def _keep_only(self, name: str) -> None:
        for old in self.folder.glob("round-*.safetensors"):
            if old.name != name:
                old.unlink()


def check_run(folder: Path, fingerprint: str, config: Mapping[str, Any]) -> None:
    """Refuse to continue or show a run with data or a configuration that differ from those it began with."""
    found = read_manifest(folder, any_format=True)
    if found is not None and found.federation != fingerprint:
        raise FedpriorError(
            f"the data differ from those that the run in '{folder.parent}' began with: resume it with the same data."
        )
    if found is not None and found.format == FORMAT:
        refuse_another(folder.parent, found.config, config)


def read_manifest(folder: Path, *, any_format: bool = False) -> Newest | None:
    """The manifest of a run, or None if it has no checkpoint; `any_format` if its tensors will not be read."""
    path = folder / "manifest.json"
    if not path.exists():
        return None
    try:
        found = Newest(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise damaged(path, str(error)) from None
    kinds = (found.round, int), (found.file, str), (found.config, dict), (found.journals, dict)
    if not all(isinstance(value, kind) for value, kind in kinds):
        raise damaged(path, "its entries are of the wrong kind")
    if found.format != FORMAT and not any_format:
        raise FedpriorError(f"'{path}' has format {found.format}, this version reads {FORMAT}: use a matching version.")
    return found


def damaged(path: Path, why: str) -> FedpriorError:
    """The error for a checkpoint that cannot be trusted."""
    return FedpriorError(
        f"the checkpoint '{path}' is damaged ({why}): nothing was changed; start the run again in a new folder."
    )
