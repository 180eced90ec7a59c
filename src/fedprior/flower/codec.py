"""Trees as named arrays and back. The receiver knows the layout: a message is compared with it, never believed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from fedprior import tree
from fedprior.errors import FedpriorError

Arrays = dict[str, NDArray[Any]]


class RejectedError(FedpriorError):
    """A message that is not what it must be, and why: in our words, without anything that it contains."""


def encode(value: Any) -> Arrays:
    """A tree as arrays with memory of their own, by path."""
    return {path: np.array(leaf.numpy(force=True), order="C", copy=True) for path, leaf in tree.items(value)}


class Layout(NamedTuple):
    """What a tree must look like: its type, and the type and shape of every leaf."""

    kind: Any
    leaves: dict[str, tuple[torch.dtype, tuple[int, ...]]]

    @classmethod
    def of(cls, kind: Any, sample: Any) -> Self:
        """The layout of a sample."""
        return cls(kind, {path: (leaf.dtype, tuple(leaf.shape)) for path, leaf in tree.items(sample)})

    @property
    def nbytes(self) -> int:
        """Bytes of all leaves."""
        return sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in self.leaves.values())

    def decode(self, arrays: Mapping[str, NDArray[Any]], *, finite: bool = False) -> Any:
        """The tree, if the arrays are those that it has; `finite`: no number may be infinite or missing."""
        lacking, extra = self.leaves.keys() - arrays.keys(), arrays.keys() - self.leaves.keys()
        if extra:
            raise RejectedError(f"it has {len(extra)} fields that were not asked for")
        if lacking:
            raise RejectedError(
                f"it lacks '{min(lacking)}'" + (f" and {len(lacking) - 1} more" if len(lacking) > 1 else "")
            )
        return tree.unflatten(self.kind, {path: self._leaf(path, arrays[path], finite) for path in self.leaves})

    def _leaf(self, path: str, array: NDArray[Any], finite: bool) -> torch.Tensor:
        dtype, shape = self.leaves[path]
        if tuple(array.shape) != shape:
            raise RejectedError(f"'{path}' has the shape {list(array.shape)[:8]} and should have {list(shape)}")
        if array.dtype != _numpy(dtype):
            raise RejectedError(f"'{path}' is of the type {array.dtype.name} and should be {_numpy(dtype).name}")
        leaf = torch.from_numpy(np.array(array, order="C", copy=True))
        if finite and leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
            raise RejectedError(f"'{path}' is not finite")
        return leaf


def _numpy(dtype: torch.dtype) -> np.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of names, types, shapes and values."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        values = arrays[name]
        found.update(f"\n{name} {values.dtype.str} {values.shape}\n".encode())
        found.update(values.tobytes())
    return found.hexdigest()
