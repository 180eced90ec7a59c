"""CIFAR-10 and CIFAR-100: the Python archives and the binary ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.data.store.formats import pickled
from fedprior.data.store.formats.reader import Arrays, Part, by_name, labels
from fedprior.data.store.members import Member
from fedprior.data.store.record import Record
from fedprior.errors import FedpriorError

PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))


def _part(record: Record, name: str, x: NDArray[np.uint8], fine: Any, coarse: Any) -> Part:
    columns = {"coarse": labels(coarse)} if "coarse" in record.columns else {}
    return Part(name, x.reshape(-1, *record.shape), labels(fine), columns)


@dataclass
class CifarPython:
    """Batches as pickled dictionaries; each says in `batch_label` which one it is."""

    record: Record
    parts: list[Part] = field(default_factory=list)

    def take(self, member: Member) -> bool:
        """Pickles with `data`; the one with the names of the classes is passed over."""
        if not member.head.startswith(PICKLES):
            return False
        found = pickled.read(member.read())
        batch = {_text(key): value for key, value in found.items()} if isinstance(found, dict) else {}
        if "data" not in batch:
            return False
        classes = batch.get("fine_labels" if "coarse" in self.record.columns else "labels")
        if not isinstance(batch["data"], pickled.PickledArray) or classes is None:
            raise FedpriorError(f"it has no labels of {self.record.name}: this is a different data set.")
        name = _text(batch.get("batch_label", member.name))
        self.parts.append(_part(self.record, name, batch["data"].array(), classes, batch.get("coarse_labels")))
        return True

    def arrays(self) -> Arrays:
        """Training batches in their order, and the test batch."""
        return by_name(self.parts)


def _text(key: Any) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)


@dataclass
class CifarBinary:
    """Rows of one byte for each label (coarse before fine) and the pixels; no magic bytes, so the rows must add up."""

    record: Record
    parts: list[Part] = field(default_factory=list)

    def take(self, member: Member) -> bool:
        """Whole rows whose labels are classes."""
        if member.head.startswith(PICKLES):
            return False
        leading = 1 + ("coarse" in self.record.columns)
        content = member.read()
        width = leading + int(np.prod(self.record.shape))
        if not content or len(content) % width:
            return False
        rows = np.frombuffer(content, np.uint8).reshape(-1, width)
        fine = rows[:, leading - 1]
        if fine.max() >= self.record.classes:
            return False
        self.parts.append(_part(self.record, member.name, rows[:, leading:], fine, rows[:, 0]))
        return True

    def arrays(self) -> Arrays:
        """Training batches in the order of their names, and the test batch."""
        return by_name(self.parts)
