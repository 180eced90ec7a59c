"""A federation: every client's training, validation and test examples, and what is known about them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from fedprior.data.client import ClientData
from fedprior.data.heterogeneity import heterogeneity
from fedprior.errors import FedpriorError
from fedprior.rng import Key

Examples = tuple[NDArray[np.floating[Any]], NDArray[np.int64]]
"""x [n, ...] and y [n] of one client."""

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Federation:
    """N clients; `federation.train` holds all of them, `federation.train[[2, 5]]` a stack of two."""

    clients: tuple[str, ...]
    train: ClientData
    validation: ClientData
    test: ClientData
    classes: int
    name: str = "custom"
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # {"model": ..., "train": ...} that suit it

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train.x.shape[1:])

    def split(self, name: str) -> ClientData:
        """`train`, `validation` or `test`."""
        data: ClientData = getattr(self, name)
        return data

    def to(self, dtype: torch.dtype) -> Federation:
        """The same federation in another precision."""
        parts = {s: replace(self.split(s), x=self.split(s).x.to(dtype)) for s in SPLITS}
        return replace(self, **parts)  # type: ignore[arg-type]

    def select(self, rows: list[int]) -> Federation:
        """Some of the clients, in the given order."""
        return replace(
            self,
            clients=tuple(self.clients[i] for i in rows),
            train=self.train[rows],
            validation=self.validation[rows],
            test=self.test[rows],
        )

    def share_memory(self) -> Federation:
        """Move the tensors to where worker processes can see them without a copy."""
        for name in SPLITS:
            for tensor in (self.split(name).x, self.split(name).y):
                tensor.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def fingerprint(self) -> str:
        """A checksum of every example and its place; a resumed run compares it."""
        digest = hashlib.blake2b(repr((self.clients, self.classes)).encode(), digest_size=16)
        for name in SPLITS:
            data = self.split(name)
            digest.update(repr((name, data.start, data.size)).encode())
            digest.update(data.x.double().numpy().tobytes())
            digest.update(data.y.numpy().tobytes())
        return digest.hexdigest()

    def label_counts(self, split: str = "train") -> NDArray[np.int64]:
        """How often each client has each label, [N, classes]."""
        data = self.split(split)
        return np.stack(
            [np.bincount(data.client(c)[1].numpy(), minlength=self.classes) for c in range(len(data))]
        ).astype(np.int64)

    def describe(self) -> pd.DataFrame:
        """One row a client: sizes of its splits and its label counts."""
        sizes = pd.DataFrame({s: self.split(s).size for s in SPLITS}, index=pd.Index(self.clients, name="client"))
        labels = pd.DataFrame(self.label_counts(), index=sizes.index).add_prefix("label ")
        return sizes.join(labels)

    def heterogeneity(self) -> dict[str, float]:
        """How unequal the clients are: sizes and label distributions of the training data."""
        labels = self.train.y.numpy()
        parts = [np.arange(a, a + n) for a, n in zip(self.train.start, self.train.size, strict=True)]
        return heterogeneity(labels, parts, self.classes)


def from_arrays(
    clients: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    classes: int | None = None,
    seed: int = 0,
    validation: float = 0.1,
    test: float = 0.2,
    standardise: bool = False,
    name: str = "custom",
    options: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Mapping[str, Any]] | None = None,
) -> Federation:
    """A federation from one (x, y) per client: checked, split by label into three parts, scaled if asked.

    Scaling uses each client's own training examples, since no site sees another's data.
    """
    if not clients:
        raise FedpriorError("the federation has no clients: give at least one (x, y) pair.")
    if not (validation >= 0 and test > 0 and validation + test < 1):
        raise FedpriorError(
            f"validation = {validation} and test = {test} leave nothing to train or test on: "
            "choose test > 0 and validation + test < 1."
        )
    examples = {str(k): _checked(str(k), x, y) for k, (x, y) in clients.items()}
    _same_shape(examples)
    largest = 1 + max(int(y.max()) for _, y in examples.values())
    if classes is not None and largest > classes:
        raise FedpriorError(f"a label is {largest - 1} but the federation has {classes} classes: raise `classes`.")
    key = Key.from_seed(seed).fold("split")
    parts: dict[str, list[Examples]] = {s: [] for s in SPLITS}
    for client, (x, y) in examples.items():
        rows = _split(y, validation, test, key.fold(client).numpy(), client)
        scaled = _standardised(x, rows[0]) if standardise else x
        for split, chosen in zip(SPLITS, rows, strict=True):
            parts[split].append((scaled[chosen], y[chosen]))
    return Federation(
        clients=tuple(examples),
        train=_stacked(parts["train"]),
        validation=_stacked(parts["validation"]),
        test=_stacked(parts["test"]),
        classes=classes or largest,
        name=name,
        options=dict(options or {}),
        recipe=dict(recipe or {}),
    )


def _checked(client: str, x: ArrayLike, y: ArrayLike) -> Examples:
    xs, ys = np.asarray(x), np.asarray(y)
    for what, values in (("inputs", xs), ("labels", ys)):
        if not (np.issubdtype(values.dtype, np.number) or values.dtype == np.bool_):
            raise FedpriorError(f"client '{client}' has {what} that are not numbers: encode them as numbers first.")
    if ys.ndim != 1:
        raise FedpriorError(f"client '{client}' has labels of shape {ys.shape}: give one class number per example.")
    if len(xs) != len(ys):
        raise FedpriorError(f"client '{client}' has {len(xs)} examples but {len(ys)} labels: they must match.")
    if len(xs) < 2:
        raise FedpriorError(
            f"client '{client}' has {len(xs)} examples: it needs at least 2, one to train and one to test on."
        )
    xs = xs if np.issubdtype(xs.dtype, np.floating) else xs.astype(np.float32)
    fine = np.isfinite(xs) & (np.abs(xs) <= np.finfo(np.float32).max)
    if not fine.all():
        row = int(np.argwhere(~fine)[0][0])
        raise FedpriorError(
            f"client '{client}' has a missing or infinite value in row {row}: fill in or drop such rows first."
        )
    if not np.isfinite(ys).all() or not np.equal(np.mod(ys, 1), 0).all() or ys.min() < 0:
        raise FedpriorError(f"client '{client}' has labels other than 0, 1, 2, …: encode the classes as integers.")
    return xs, ys.astype(np.int64)


def _same_shape(examples: Mapping[str, Examples]) -> None:
    (first, (x, _)), *others = examples.items()
    for client, (other, _) in others:
        if other.shape[1:] != x.shape[1:]:
            raise FedpriorError(
                f"client '{client}' has inputs of shape {other.shape[1:]} but '{first}' of {x.shape[1:]}: "
                "all clients need the same features."
            )


def _split(
    y: NDArray[np.int64], validation: float, test: float, rng: np.random.Generator, client: str
) -> tuple[NDArray[np.int64], ...]:
    """Row numbers of the three parts. Sizes are exact; labels are spread evenly.

    Every example gets its rank among a random order of its label, as a fraction; sorted by that fraction, any prefix
    has (nearly) the label proportions of the whole.
    """
    n = len(y)
    n_test = min(max(1, round(test * n)), n - 1)
    n_validation = min(round(validation * n), n - n_test - 1)
    position = np.empty(n)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        position[rows] = (np.arange(len(rows)) + rng.random()) / len(rows)
    order = np.argsort(position, kind="stable")
    train = order[: n - n_test - n_validation]
    return np.sort(train), np.sort(order[len(train) : n - n_test]), np.sort(order[n - n_test :])


def _standardised(x: NDArray[np.floating[Any]], train: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
    own = x[train].astype(np.float64)
    constant = np.ptp(own, axis=0) == 0  # its computed deviation may be 1e-17, not 0
    mean, std = np.where(constant, own[0], own.mean(0)), np.where(constant, 1.0, own.std(0))
    scaled: NDArray[np.float64] = (x - mean) / std
    return scaled


def _stacked(examples: list[Examples]) -> ClientData:
    sizes = [len(y) for _, y in examples]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    x = torch.from_numpy(np.concatenate([x for x, _ in examples])).float()
    y = torch.from_numpy(np.concatenate([y for _, y in examples]))
    return ClientData(x, y, tuple(int(s) for s in starts), tuple(sizes))
