"""A federation: every client's training, validation and test examples, and what is known about them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from fedprior.data.client import ClientData
from fedprior.data.heterogeneity import heterogeneity
from fedprior.data.scaling import Scaler
from fedprior.errors import FedpriorError
from fedprior.rng import Key

Examples = tuple[NDArray[np.floating[Any]], NDArray[np.int64]]
"""x [n, ...] and y [n] of one client."""

SPLITS = ("train", "validation", "test")
ROWS = 8192
"""Examples that are put into double precision at a time, for the checksum."""


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
    scalers: tuple[Scaler | None, ...] = ()  # what was done to each client's inputs, one a client

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
            scalers=tuple(self.scalers[i] for i in rows) if self.scalers else (),
        )

    def scaler(self, client: str) -> Scaler | None:
        """What was done to a client's inputs; None if nothing was, or nobody knows."""
        return self.scalers[self.clients.index(client)] if self.scalers else None

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
            for rows in data.x.split(ROWS):  # type: ignore[no-untyped-call]
                digest.update(rows.double().numpy().tobytes())
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
    tests: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    split: Literal["stratified", "random"] = "stratified",
    keep: float = 1.0,
    standardise: bool = False,
    impute: bool = False,
    name: str = "custom",
    options: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Mapping[str, Any]] | None = None,
) -> Federation:
    """A federation from one (x, y) per client: checked, split by label into three parts, scaled if asked.

    With `tests`, one (x, y) per client to test on, nothing of `clients` is held back for testing. `keep` leaves a
    client that share of its training examples. Missing values (NaN) are refused, or with `impute` become the median.
    Scaling and medians are those of each client's own training examples, since no site sees another's data.
    """
    if not clients:
        raise FedpriorError("the federation has no clients: give at least one (x, y) pair.")
    if not (validation >= 0 and test > 0 and validation + test < 1):
        raise FedpriorError(
            f"validation = {validation} and test = {test} leave nothing to train or test on: "
            "choose test > 0 and validation + test < 1."
        )
    key = Key.from_seed(seed)
    parts: dict[str, list[Examples]] = {s: [] for s in SPLITS}
    scalers: list[Scaler | None] = []
    largest, first = 0, ""
    for name_given, given in clients.items():
        client = str(name_given)
        x, y = _checked(client, *given, missing=impute)
        own_test = _checked(client, *tests[name_given], least=1, missing=impute) if tests is not None else None
        for shape in [x.shape[1:]] + ([own_test[0].shape[1:]] if own_test else []):
            _same_shape(client, shape, first or client, parts["train"][0][0].shape[1:] if first else x.shape[1:])
        first = first or client
        largest = max(largest, 1 + int(y.max()), 1 + int(own_test[1].max()) if own_test else 0)
        chosen = _split(y, validation, 0.0 if own_test else test, key.fold("split", client).numpy(), split)
        if keep < 1:
            chosen = _kept(client, chosen[0], keep, key.fold("keep", client).numpy()), *chosen[1:]
        scaler = Scaler.fitted(x[chosen[0]], standardise=standardise, impute=impute)
        change = scaler or (lambda x: x)
        for part, rows in zip(SPLITS, chosen, strict=True):
            parts[part].append((change(x[rows]), y[rows]))
        if own_test:
            parts["test"][-1] = change(own_test[0]), own_test[1]
        scalers.append(scaler)
    if classes is not None and largest > classes:
        raise FedpriorError(f"a label is {largest - 1} but the federation has {classes} classes: raise `classes`.")
    return Federation(
        clients=tuple(str(client) for client in clients),
        train=_stacked(parts["train"]),
        validation=_stacked(parts["validation"]),
        test=_stacked(parts["test"]),
        classes=classes or largest,
        name=name,
        options=dict(options or {}),
        recipe=dict(recipe or {}),
        scalers=tuple(scalers),
    )


def _checked(client: str, x: ArrayLike, y: ArrayLike, *, least: int = 2, missing: bool = False) -> Examples:
    xs, ys = np.asarray(x), np.asarray(y)
    for what, values in (("inputs", xs), ("labels", ys)):
        if not (np.issubdtype(values.dtype, np.number) or values.dtype == np.bool_):
            raise FedpriorError(f"client '{client}' has {what} that are not numbers: encode them as numbers first.")
    if ys.ndim != 1:
        raise FedpriorError(f"client '{client}' has labels of shape {ys.shape}: give one class number per example.")
    if len(xs) != len(ys):
        raise FedpriorError(f"client '{client}' has {len(xs)} examples but {len(ys)} labels: they must match.")
    if len(xs) < least:
        raise FedpriorError(
            f"client '{client}' has {len(xs)} examples: it needs at least 2, one to train and one to test on."
            if least == 2
            else f"client '{client}' has no examples to test on: use fewer clients or other shares."
        )
    xs = xs if np.issubdtype(xs.dtype, np.floating) else xs.astype(np.float32)
    if (row := _first_bad(xs, missing=missing)) is not None:
        raise FedpriorError(
            f"client '{client}' has a missing or infinite value in row {row}: fill in or drop such rows first."
        )
    if not np.isfinite(ys).all() or not np.equal(np.mod(ys, 1), 0).all() or ys.min() < 0:
        raise FedpriorError(f"client '{client}' has labels other than 0, 1, 2, …: encode the classes as integers.")
    return xs, ys.astype(np.int64)


def _first_bad(x: NDArray[np.floating[Any]], *, missing: bool) -> int | None:
    """The first row with a number that float32 cannot hold, or NaN unless such are allowed."""
    most = np.finfo(np.float32).max
    if not x.size or (x.min() >= -most and x.max() <= most):  # without a copy of all; false if there is a NaN
        return None
    wrong = ~(np.abs(x) <= most) & ~(np.isnan(x) & missing)
    return int(np.argwhere(wrong)[0][0]) if wrong.any() else None


def _same_shape(client: str, shape: tuple[int, ...], first: str, expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise FedpriorError(
            f"client '{client}' has inputs of shape {shape} but '{first}' of {expected}: "
            "all clients need the same features."
        )


def _split(
    y: NDArray[np.int64], validation: float, test: float, rng: np.random.Generator, how: str
) -> tuple[NDArray[np.int64], ...]:
    """Row numbers of the three parts. Sizes are exact; labels are spread evenly, or with `random` as they fall.

    Every example gets its rank among a random order of its label, as a fraction; sorted by that fraction, any prefix
    has (nearly) the label proportions of the whole.
    """
    n = len(y)
    n_test = min(max(1, round(test * n)), n - 1) if test else 0
    n_validation = min(round(validation * n), n - n_test - 1)
    position = np.empty(n)
    for label in np.unique(y) if how == "stratified" else [None]:
        rows = rng.permutation(np.arange(n) if label is None else np.flatnonzero(y == label))
        position[rows] = (np.arange(len(rows)) + rng.random()) / len(rows)
    order = np.argsort(position, kind="stable")
    train = order[: n - n_test - n_validation]
    return np.sort(train), np.sort(order[len(train) : n - n_test]), np.sort(order[n - n_test :])


def _kept(client: str, rows: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """A random floor(share · n) of the rows; those of a smaller share are among those of a larger one."""
    n = int(share * len(rows))
    if not n:
        raise FedpriorError(
            f"keep={share} leaves client '{client}' none of its {len(rows)} training examples: use fewer clients or a "
            "larger share."
        )
    return np.sort(rng.permutation(rows)[:n])


def _stacked(examples: list[Examples]) -> ClientData:
    """One flat tensor; the pieces are let go as they are copied, so that all is never there twice."""
    sizes = [len(y) for _, y in examples]
    starts = [int(a) for a in np.concatenate([[0], np.cumsum(sizes)[:-1]])]
    x = torch.empty((sum(sizes), *examples[0][0].shape[1:]))
    y = torch.empty(sum(sizes), dtype=torch.int64)
    for start, size in zip(reversed(starts), reversed(sizes), strict=True):
        piece, labels = examples.pop()
        x[start : start + size] = torch.from_numpy(piece)
        y[start : start + size] = torch.from_numpy(labels)
    return ClientData(x, y, tuple(starts), tuple(sizes))
