"""NumPy's `.npz`, without pickles: `x_train`, `y_train`, `x_test`, `y_test`, or `x` and `y`, and columns.

A column may hold codes, when the file lists their names under `<column>_names` or `<column>s`. Colour images may be
packed (see `packed`); CIFAR-100 may give `fine_to_coarse` in place of a column.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.data.store.formats import packed
from fedprior.data.store.formats.reader import Arrays, images, labels
from fedprior.data.store.members import ZIP, Member
from fedprior.data.store.record import Record
from fedprior.errors import FedpriorError

PACKED, SHAPE = "__packed", "__shape"


@dataclass
class Npz:
    """One or more `.npz` files whose arrays belong together."""

    record: Record
    found: Arrays = field(default_factory=dict)

    def take(self, member: Member) -> bool:
        """Zip files that hold arrays: `members` has opened all others."""
        if not member.head.startswith(ZIP):
            return False
        with np.load(io.BytesIO(member.read()), allow_pickle=False) as file:
            try:
                stored = {key: file[key] for key in file.files}
            except ValueError as error:
                raise FedpriorError(f"it cannot be read without unpickling, which is never done ({error}).") from None
        for key, value in stored.items():
            if key.endswith(PACKED):
                name = key.removesuffix(PACKED)
                self.found[name] = packed.unpack(value, tuple(int(n) for n in stored[name + SHAPE]))
            elif not key.endswith(SHAPE):
                self.found[key] = value
        return True

    def arrays(self) -> Arrays:
        """The arrays that the data set is made of, canonical; others are left out."""
        splits = ("_train", "_test") if "x_train" in self.found else ("",)
        arrays: Arrays = {}
        for split in splits:
            x = self._get("x" + split)
            arrays["x" + split] = images(x, self.record.shape) if self.record.dtype == "uint8" else x
            arrays["y" + split] = labels(self._get("y" + split))
            for column in self.record.columns:
                arrays[column + split] = self._column(column, split, arrays["y" + split])
        return arrays

    def _get(self, key: str) -> NDArray[Any]:
        if key not in self.found:
            raise FedpriorError(f"it has no array '{key}' beside {', '.join(sorted(self.found))}: add it.")
        return self.found[key]

    def _column(self, column: str, split: str, y: NDArray[np.int64]) -> NDArray[Any]:
        if column == "coarse" and "fine_to_coarse" in self.found:
            return self.found["fine_to_coarse"].astype(np.int64)[y]
        values = self._get(column + split)
        names = self.found.get(f"{column}_names", self.found.get(f"{column}s"))
        if names is not None and np.issubdtype(values.dtype, np.integer):
            values = names[values]
        return values.astype(np.int64) if np.issubdtype(values.dtype, np.integer) else values.astype(np.str_)
