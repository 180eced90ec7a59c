"""A federation: every client's training, validation and test examples, and what is known about them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fedprior.data.client import ClientData
from fedprior.data.encoder import Encoder
from fedprior.data.heterogeneity import size_spread
from fedprior.data.preparation import Preparation
from fedprior.data.scaling import Scaler
from fedprior.data.schema import Schema
from fedprior.data.splits import SPLITS, Cut, Examples, Given, Shares, Units, cut, pairs
from fedprior.data.sums import Sums
from fedprior.data.target import KINDS, NUMBERS, Classes, Number, Target
from fedprior.errors import FedpriorError, shown, unknown
from fedprior.rng import Key

__all__ = ["SPLITS", "Examples", "Federation", "from_arrays", "outline"]

Fit = Callable[[NDArray[Any]], Scaler | None]
"""From a client's training inputs to what is done to all of its inputs."""
ROWS = 8192
"""Number of examples converted to double precision at a time, for the checksum."""


@dataclass(frozen=True)
class Federation:
    """N clients; `federation.train` holds all of them, `federation.train[[2, 5]]` a stack of two."""

    clients: tuple[str, ...]
    train: ClientData
    validation: ClientData
    test: ClientData
    target: Target
    name: str = "custom"
    seed: int = 0  # of the partition and the splits
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # {"model": ..., "train": ...} that suit it
    encoders: tuple[Encoder | None, ...] = ()  # what was done to each client's inputs, one per client
    tested: tuple[NDArray[np.int64], ...] = ()  # of each client: the row number or the group of each test example
    setup_bytes: int = 0  # sent by each client before the first round, for shared scaling
    elsewhere: bool = False  # the examples are at the clients: only their numbers are known here
    agreed: Preparation | None = None  # how clients that are elsewhere prepare their inputs

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train.x.shape[1:])

    def split(self, name: str) -> ClientData:
        """The examples of the split `name`: `train`, `validation` or `test`."""
        data: ClientData = getattr(self, name)
        return data

    def to(self, dtype: torch.dtype) -> Federation:
        """The same federation with its inputs as `dtype`."""
        parts = {}
        for name in SPLITS:
            data = self.split(name)
            parts[name] = replace(
                data, x=data.x.to(dtype), y=data.y.to(dtype) if data.y.is_floating_point() else data.y
            )
        return replace(self, **parts)  # type: ignore[arg-type]

    def select(self, rows: list[int]) -> Federation:
        """The clients at the places `rows`, in that order."""
        return replace(
            self,
            clients=tuple(self.clients[i] for i in rows),
            train=self.train[rows],
            validation=self.validation[rows],
            test=self.test[rows],
            encoders=tuple(self.encoders[i] for i in rows) if self.encoders else (),
            tested=tuple(self.tested[i] for i in rows) if self.tested else (),
        )

    @property
    def preparation(self) -> Preparation:
        """How the inputs of all clients were prepared."""
        return self.agreed or Preparation.of(self.encoders)

    def row(self, client: str) -> int:
        """The place of `client` in every stack; FedpriorError if there is no such client."""
        if client not in self.clients:
            raise unknown("client", client, self.clients)
        return self.clients.index(client)

    def encoder(self, client: str) -> Encoder | None:
        """What was done to the inputs of `client`; None if nothing was done, or nobody knows what."""
        row = self.row(client)
        return self.encoders[row] if self.encoders else None

    def share_memory(self) -> Federation:
        """Move the tensors to where worker processes can see them without a copy."""
        for name in SPLITS:
            for tensor in (self.split(name).x, self.split(name).y):
                tensor.share_memory_()  # type: ignore[no-untyped-call]
        return self

    def fingerprint(self) -> str:
        """A checksum of every example and its position; a resumed run compares it."""
        digest = hashlib.blake2b(repr((self.clients, self._outline())).encode(), digest_size=16)
        for name in SPLITS:
            data = self.split(name)
            digest.update(repr((name, data.start, data.size)).encode())
            for rows in data.x.split(ROWS):  # type: ignore[no-untyped-call]
                digest.update(rows.double().numpy().tobytes())
            digest.update((data.y.double() if data.y.is_floating_point() else data.y).numpy().tobytes())
        return digest.hexdigest()

    def _outline(self) -> Any:
        return self.target.count if isinstance(self.target, Classes) else self.target.document()

    def labels(self, split: str = "train") -> list[NDArray[Any]]:
        """Each client's labels in a `split`, one array [n] per client."""
        data = self.split(split)
        return [data.client(c)[1].numpy() for c in range(len(data))]

    def label_counts(self, split: str = "train") -> pd.DataFrame:
        """Label counts of a `split`: one row per client, one column per label or range of a numeric target."""
        labels = self.labels(split)
        names, codes = self.target.binned(np.concatenate(labels))
        pieces = np.split(codes, np.cumsum([len(y) for y in labels])[:-1])
        counts = np.stack([np.bincount(piece, minlength=len(names)) for piece in pieces])
        return pd.DataFrame(counts, index=pd.Index(self.clients, name="client"), columns=names)

    def describe(self) -> pd.DataFrame:
        """One row per client: sizes of its splits and its label counts."""
        sizes = pd.DataFrame({s: self.split(s).size for s in SPLITS}, index=pd.Index(self.clients, name="client"))
        return sizes.join(self.label_counts().add_prefix("label "))

    def heterogeneity(self) -> dict[str, float]:
        """How unequal the clients are: sizes and, where they are known, labels of the training data."""
        return size_spread(self.train.size) | ({} if self.elsewhere else self.target.spread(self.labels()))


def outline(
    sizes: Mapping[str, Mapping[str, int]],
    shape: tuple[int, ...],
    target: Target,
    *,
    seed: int = 0,
    name: str = "custom",
    options: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Mapping[str, Any]] | None = None,
    agreed: Preparation | None = None,
) -> Federation:
    """What a server knows of sites whose examples stay with them: their names and the sizes of their splits."""
    x, y = torch.empty(0, *shape), torch.empty(0, dtype=target.dtype)
    nowhere = (0,) * len(sizes)
    parts = {s: ClientData(x, y, nowhere, tuple(int(of[s]) for of in sizes.values())) for s in SPLITS}
    told = {"options": dict(options or {}), "recipe": dict(recipe or {}), "agreed": agreed}
    return Federation(tuple(sizes), **parts, target=target, name=name, seed=seed, elsewhere=True, **told)  # type: ignore[arg-type]


def from_arrays(
    clients: Given,
    *,
    classes: int | None = None,
    target: Target | Literal["classes", "number", "count"] | None = None,
    seed: int = 0,
    validation: float = 0.1,
    test: float = 0.2,
    tests: Given | None = None,
    split: Literal["stratified", "random", "grouped", "time"] = "stratified",
    units: Units | None = None,
    turn: int = 0,
    keep: float = 1.0,
    standardise: bool = False,
    impute: bool = False,
    scaling: Literal["own", "shared"] = "own",
    scaler: Scaler | None = None,
    schema: Schema | None = None,
    name: str = "custom",
    options: Mapping[str, Any] | None = None,
    recipe: Mapping[str, Mapping[str, Any]] | None = None,
) -> Federation:
    """A federation from one (x, y) per client: checked, split by label into three parts, scaled if asked.

    Args:
        clients: x [n, ...] and y [n] of every client, by name or as a list.
        classes: How many classes there are; by default, as many as occur.
        target: What y is: class numbers from 0 (the default), a number to predict, or a count.
        seed: What the split is drawn with.
        validation: Share of each client's examples that is held out for validation.
        test: Share that is held out for testing.
        tests: One (x, y) per client to test on; none of `clients` is then held out for testing.
        split: "stratified" by label, "random", "grouped" (examples of one group stay together) or "time" (the latest
            are tested on).
        units: The group or the time of every client's examples, for the last two.
        turn: Successive turns hold out different examples for testing.
        keep: Share of the training examples that each client keeps.
        standardise: Whether inputs are scaled to mean 0 and deviation 1.
        impute: Whether missing values (NaN) are filled in; otherwise they are refused.
        scaling: "own" uses each client's training examples, and missing values become their median; "shared" uses
            those of all clients and their mean: each client then sends `Sums` and no rows, and nothing of an input of
            which it has fewer than five values.
        scaler: One that was agreed on with other sites; it replaces both.
        schema: Names of the inputs, in the order of `schema.matrix`.
        name: What the federation is called in files and tables.
        options: Recorded with the federation, as options of the data set `name`.
        recipe: Default settings for runs on it, such as `{"train": {"lr": 0.1}}`.

    Returns:
        The federation, with clients in the order given.

    Raises:
        FedpriorError: If arrays do not match in length or shape, or hold values that are not finite.

    Examples:
        >>> import fedprior, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> sites = {name: (rng.normal(size=(40, 3)), rng.integers(0, 2, 40)) for name in ("a", "b")}
        >>> federation = fedprior.data.from_arrays(sites)
        >>> federation.clients, federation.train.size, federation.test.size
        (('a', 'b'), (28, 28), (8, 8))
    """
    pairs("clients", clients)
    if tests is not None:
        pairs("tests", tests)
    if not clients:
        raise FedpriorError("the federation has no clients: give at least one (x, y) pair.")
    shares = Shares(validation, test, split, keep, turn)
    shares.check()
    _check_options(seed, scaling, target, name)
    kind = _target(target, classes, schema)
    cuts: Iterable[Cut] = cut(clients, tests, kind, shares, Key.from_seed(seed), impute, units)
    how: dict[str, Any] = {"standardise": standardise, "impute": impute}
    how["truths"] = None if schema is None else schema.truths
    fit: Fit = partial(Scaler.fitted, **how)
    size = 0
    if scaler is not None:
        fit = lambda _: scaler  # noqa: E731
    elif scaling == "shared" and (standardise or impute):
        cuts = list(cuts)
        sums = {own.client: Sums.of(own.train[0]).guarded() for own in cuts}
        common = Scaler.from_sums(Sums.of_all(sums), **how)
        fit, size = (lambda _: common), next(iter(sums.values())).nbytes
    parts, encoders, tested = _encoded(cuts, fit, schema)
    every = [y for part in parts.values() for _, y in part if len(y)]
    kind = kind.fitted(every, [y for _, y in parts["train"]])
    return Federation(
        clients=tuple(str(client) for client in clients),
        train=_stacked(parts["train"], kind.dtype),
        validation=_stacked(parts["validation"], kind.dtype),
        test=_stacked(parts["test"], kind.dtype),
        target=kind,
        name=name,
        seed=seed,
        options=dict(options or {}),
        recipe=dict(recipe or {}),
        encoders=encoders,
        tested=tested,
        setup_bytes=size,
    )


def _encoded(
    cuts: Iterable[Cut], fit: Fit, schema: Schema | None
) -> tuple[dict[str, list[Examples]], tuple[Encoder | None, ...], tuple[NDArray[np.int64], ...]]:
    """Every client's examples as a model takes them, by split, what was done to them, and which are tested on."""
    parts: dict[str, list[Examples]] = {s: [] for s in SPLITS}
    encoders: list[Encoder | None] = []
    tested = []
    for own in cuts:
        encoder = Encoder.maybe(schema, fit(own.train[0]))
        for part, (x, y) in zip(SPLITS, own.parts, strict=True):
            parts[part].append((x if encoder is None else encoder(x), y))
        encoders.append(encoder)
        tested.append(own.tested)
    return parts, tuple(encoders), tuple(tested)


def check_seed(seed: Any) -> None:
    """Refuse what is no seed."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise FedpriorError(f"seed = {shown(seed)} is not valid: give a whole number from 0 on.")


def _check_options(seed: Any, scaling: Any, target: Any, name: Any) -> None:
    check_seed(seed)
    if scaling not in ("own", "shared"):
        raise unknown("scaling", scaling, ("own", "shared"))
    if isinstance(target, str) and target not in KINDS:
        raise unknown("target", target, KINDS)
    if not (target is None or isinstance(target, str | Classes | Number)):
        raise FedpriorError(f"target = {shown(target)} is not valid: give 'classes', 'number' or 'count'.")
    if not isinstance(name, str):
        raise FedpriorError(f"name = {shown(name)} is not valid: give text.")


def _target(given: Target | str | None, classes: int | None, schema: Schema | None) -> Target:
    """The target, before all labels have been seen."""
    if given is None and classes is None and schema is not None:
        return schema.target
    if given is None or given == "classes":
        return Classes.numbered(classes) if classes is not None else Classes()
    if classes is not None:
        raise FedpriorError("`classes` applies to class numbers only: leave it out if `target` is given.")
    return NUMBERS[given]() if isinstance(given, str) else given


def _stacked(examples: list[Examples], dtype: torch.dtype) -> ClientData:
    """One flat tensor; pieces are freed as they are copied, so that memory never holds everything twice."""
    sizes = [len(y) for _, y in examples]
    starts = [int(a) for a in np.concatenate([[0], np.cumsum(sizes)[:-1]])]
    x = torch.empty((sum(sizes), *examples[0][0].shape[1:]))
    y = torch.empty(sum(sizes), dtype=dtype)
    for start, size in zip(reversed(starts), reversed(sizes), strict=True):
        piece, labels = examples.pop()
        x[start : start + size] = torch.from_numpy(piece)
        y[start : start + size] = torch.from_numpy(labels)
    return ClientData(x, y, tuple(starts), tuple(sizes))
