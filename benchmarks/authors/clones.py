"""Importing from a clone, without what it needs for other things than training."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fedprior.data.client import Budget, ClientData, schedule
from fedprior.rng import Keys


class MissingError(Exception):
    """Why a clone cannot be run, in one sentence."""


class Unused(types.ModuleType):
    """Stands for a package that a clone imports for its data or its pictures, and that is not installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def enter(clone: Path, needs: tuple[str, ...], unused: tuple[str, ...] = ()) -> None:
    """Make a clone importable in this process: its modules have names such as `utils`, so each has its own process."""
    for name in needs:
        if not (clone / name).is_file():
            raise MissingError(f"'{clone}' has no {name}: check out the release that the README names.")
    missing = {name for name in unused if "." not in name and importlib.util.find_spec(name) is None}
    for name in unused:
        if name.split(".")[0] in missing:
            sys.modules[name] = Unused(name)
    sys.path.insert(0, str(clone))
    os.chdir(clone)
    numpy_sum = np.sum
    np.sum = lambda a, *rest, **more: numpy_sum(list(a) if isinstance(a, Iterator) else a, *rest, **more)  # NumPy 1 did
    if not torch.cuda.is_available():  # written for a graphics card, without an option
        torch.Tensor.cuda = lambda self, *rest, **more: self  # type: ignore[method-assign]


def module(name: str) -> Any:
    """A module of the clone that was entered."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingError(f"the clone's {name} needs the package {error.name}: install it.") from None


class Batches:
    """torch's DataLoader, as the authors use it, with the batches that fedprior draws for a client in a round."""

    def __init__(self, data: ClientData, keys: Keys, purpose: str, budget: Budget, float_labels: bool = False) -> None:
        self.data, self.keys, self.purpose, self.budget = data, keys, purpose, budget
        x, y = data.client(0)
        self.dataset = TensorDataset(x, y.to(x.dtype) if float_labels else y)
        self.passes: list[list[list[int]]] = []

    def begin(self, number: int, whole: int = 0) -> None:
        """Draw the batches of a round; the first `whole` passes are over all examples in their order."""
        plan = schedule(self.data, self.keys.fold("round", number, self.purpose), self.budget)
        start, each = self.data.start[0], self.budget.per_epoch(self.data.size[0])
        rows = [(r[0, : c[0]] - start).tolist() for r, c in zip(plan.rows, plan.counts, strict=True)]
        size, n = self.budget.batch_size, len(self.dataset)
        in_order = [list(range(first, min(first + size, n))) for first in range(0, n, size)]
        self.passes = [in_order] * whole + [rows[k : k + each] for k in range(0, len(rows), each)]

    def __len__(self) -> int:
        return self.budget.per_epoch(self.data.size[0])

    def __iter__(self) -> Iterator[list[Tensor]]:
        rows = self.passes.pop(0) if len(self.passes) > 1 else self.passes[0]
        return iter(DataLoader(self.dataset, batch_sampler=rows))
