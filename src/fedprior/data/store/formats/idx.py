"""IDX, the format of MNIST: two zero bytes, the type, the number of axes, their lengths (big-endian), the values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.data.store.formats.reader import Arrays, Part, by_size, images, labels
from fedprior.data.store.members import Member
from fedprior.data.store.record import Record
from fedprior.errors import FedpriorError

BYTES = b"\0\0\x08"  # the only type that image sets use
MOST_AXES = 4


def read(content: bytes) -> NDArray[np.uint8]:
    """The array in an IDX file of bytes."""
    axes = content[3]
    start = 4 + 4 * axes
    shape = np.frombuffer(content, ">u4", axes, offset=4).astype(np.int64)
    if len(content) - start != shape.prod():
        raise FedpriorError(
            f"it holds {len(content) - start} values where its header says {shape.prod()}: get it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


@dataclass
class Idx:
    """Images and labels in four files, recognised by their axes and lengths."""

    record: Record
    found: list[tuple[str, NDArray[Any]]] = field(default_factory=list)

    def take(self, member: Member) -> bool:
        """Files of bytes with up to four axes."""
        if not (member.head.startswith(BYTES) and 1 <= member.head[3] <= MOST_AXES):
            return False
        self.found.append((member.name, read(member.read())))
        return True

    def arrays(self) -> Arrays:
        """Every set of images with the labels of the same number."""
        classes = [(name, y) for name, y in self.found if y.ndim == 1]
        parts = []
        for name, x in (entry for entry in self.found if entry[1].ndim > 1):
            fitting = [entry for entry in classes if len(entry[1]) == len(x)]
            if not fitting:
                raise FedpriorError(f"there are no labels for the {len(x)} images of '{name}': give all four files.")
            same = min(fitting, key=lambda entry: ("train" in entry[0]) != ("train" in name))
            parts.append(Part(name, images(x, self.record.shape), labels(same[1])))
        return by_size(parts)
