"""Every client's examples, checked on entry and split into training, validation and test parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprior.data.columns import check_text, repeated
from fedprior.data.target import Target
from fedprior.errors import FedpriorError, shown, unknown
from fedprior.errors import cut as abridged
from fedprior.rng import Key

Examples = tuple[NDArray[np.floating[Any]], NDArray[Any]]
"""x [n, ...] and y [n] of one client."""
Given = Mapping[str, tuple[ArrayLike, ArrayLike]]

SPLITS = ("train", "validation", "test")
Units = Mapping[str, ArrayLike]
"""For every client, the group or the time of each example [n]."""
HOW = ("stratified", "random", "grouped", "time")
"""Keep each client's label proportions, split at random, keep examples of one group together, or test on the latest."""
GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, without their whole part, fill the unit interval evenly, however many there are."""


class Cut(NamedTuple):
    """One client's examples in three parts."""

    client: str
    train: Examples
    validation: Examples
    test: Examples
    tested: NDArray[np.int64]  # [n]  the unit of each test example: its row number, or its group

    @property
    def parts(self) -> tuple[Examples, ...]:
        """In the order of SPLITS."""
        return self[1:4]


class Shares(NamedTuple):
    """How a client's examples are cut."""

    validation: float
    test: float
    how: str  # one of HOW
    keep: float
    turn: int = 0  # which part is tested on: successive turns test on different examples as long as there are any

    def check(self) -> None:
        """Refuse shares that are none, or leave nothing."""
        for name, share in (("validation", self.validation), ("test", self.test), ("keep", self.keep)):
            if isinstance(share, bool) or not isinstance(share, int | float | np.floating) or abs(share) > 1:
                raise FedpriorError(f"{name} = {shown(share)} is not valid: give a share, such as 0.2.")
        if self.how not in HOW:
            raise unknown("split", self.how, HOW)
        if isinstance(self.turn, bool) or not isinstance(self.turn, int | np.integer) or not 0 <= self.turn < 2**31:
            raise FedpriorError(f"turn = {shown(self.turn)} is not valid: give a whole number from 0 on.")
        if not 0 < self.keep <= 1:
            raise FedpriorError(f"keep = {self.keep} is not valid: give a share above 0 and up to 1.")
        if not (self.validation >= 0 and self.test > 0 and self.validation + self.test < 1):
            raise FedpriorError(
                f"validation = {self.validation} and test = {self.test} leave nothing to train or test on: "
                "choose test > 0 and validation + test < 1."
            )


def pairs(what: str, clients: Any) -> None:
    """Refuse what is not one (x, y) per client, before anything is done with it."""
    if not isinstance(clients, Mapping):
        raise FedpriorError(f"{what} = {shown(clients)} is not valid: give a dictionary from names to (x, y).")
    for name in clients:
        if not isinstance(name, str | int) or isinstance(name, bool) or str(name).strip() == "":
            raise FedpriorError(f"{shown(name)} is not a client's name: give text.")


def _pair(client: str, given: Any) -> tuple[Any, Any]:
    try:
        x, y = (np.asarray(part) for part in given)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise FedpriorError(
            f"client '{abridged(client)}' has {shown(given)} instead of an (x, y) pair: give two arrays."
        ) from None
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise FedpriorError(
            f"client '{abridged(client)}' has inputs of shape {x.shape}: give a row of numbers for every example."
        )
    return x, y


def cut(
    clients: Given,
    tests: Given | None,
    target: Target,
    shares: Shares,
    key: Key,
    missing: bool,
    units: Units | None = None,
) -> Iterator[Cut]:
    """Client by client, so that not all examples are in memory at once. With `tests`, none are held out for testing."""
    _check_names([str(name) for name in clients])
    if (shares.how in HOW[2:]) != (units is not None):
        raise FedpriorError("split = grouped needs the group of every example, and split = time its time: give both.")
    first: tuple[str, tuple[int, ...]] | None = None
    for name, given in clients.items():
        client = str(name)
        x, y = _checked(client, target, *_pair(client, given), missing=missing)
        own = None
        if tests is not None:
            if name not in tests:
                raise FedpriorError(f"client '{abridged(client)}' has no examples in `tests`: give it some.")
            own = _checked(client, target, *_pair(client, tests[name]), least=1, missing=missing)
        first = first or (client, x.shape[1:])
        for part in (x,) if own is None else (x, own[0]):
            _same_shape(client, part.shape[1:], *first)
        kinds = target.strata(y) if units is None else _units(client, units, len(y))
        train, validation, test = _chosen(client, kinds, shares, own is not None, key)
        tested = np.arange(len(own[1])) if own else kinds[test] if shares.how == "grouped" else test
        yield Cut(client, (x[train], y[train]), (x[validation], y[validation]), own or (x[test], y[test]), tested)


def _check_names(names: list[str]) -> None:
    if (twice := repeated(names)) is not None:
        raise FedpriorError(f"two clients are called '{twice}': rename one.")
    check_text("client", names)


def _units(client: str, units: Units, n: int) -> NDArray[Any]:
    """The group or the time of each of a client's examples; equal ones have equal numbers, in order [n]."""
    found = np.asarray(units[client])
    if len(found) != n:
        raise FedpriorError(f"client '{client}' has {n} examples but {len(found)} groups or times: they must match.")
    return np.unique(found, return_inverse=True)[1]


def _chosen(client: str, kinds: NDArray[Any], shares: Shares, tested: bool, key: Key) -> tuple[NDArray[np.int64], ...]:
    rng = key.fold("split", client).numpy()
    test = 0.0 if tested else shares.test
    if shares.how == "grouped":
        train, *others = _by_group(kinds, shares.validation, test, rng, shares.turn)
    elif shares.how == "time":
        train, *others = _by_time(kinds, shares.validation, test, rng)
    else:
        train, *others = _split(kinds, shares.validation, test, rng, shares.how, shares.turn)
    if shares.keep < 1:
        train = _kept(client, train, shares.keep, key.fold("keep", client).numpy())
    return train, *others


def _checked(
    client: str, target: Target, x: ArrayLike, y: ArrayLike, *, least: int = 2, missing: bool = False
) -> Examples:
    xs, ys = np.asarray(x), np.asarray(y)
    for what, values in (("inputs", xs), ("labels", ys)):
        if values.dtype.kind not in "biuf":
            raise FedpriorError(f"client '{client}' has {what} that are not numbers: encode them as numbers first.")
    if ys.ndim != 1:
        raise FedpriorError(f"client '{client}' has labels of shape {ys.shape}: give one label per example.")
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
    return xs, target.check(client, ys)


def _first_bad(x: NDArray[np.floating[Any]], *, missing: bool) -> int | None:
    """The first row with a number that float32 cannot hold, or with NaN unless that is allowed."""
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
    y: NDArray[np.int64], validation: float, test: float, rng: np.random.Generator, how: str, turn: int = 0
) -> tuple[NDArray[np.int64], ...]:
    """Row numbers of the three parts. Sizes are exact; labels are spread evenly, or at random with `random`.

    Every example gets its rank among a random order of its label, as a fraction; sorted by that fraction, any prefix
    has (nearly) the label proportions of the whole. Turns test on one stretch of that order after the other. A client
    too small for a validation example has one as often as its share says: many such clients have their share together.
    """
    n = len(y)
    n_test = min(max(1, round(test * n)), n - 1) if test else 0
    position = np.empty(n)
    for label in np.unique(y) if how == "stratified" else [None]:
        rows = rng.permutation(np.arange(n) if label is None else np.flatnonzero(y == label))
        position[rows] = (np.arange(len(rows)) + rng.random()) / len(rows)
    order = np.roll(np.argsort(position, kind="stable"), turn * n_test)
    n_validation = round(validation * n) or int((rng.random() + turn * GOLDEN) % 1 < validation * n)
    n_validation = min(n_validation, n - n_test - 1)
    train = order[: n - n_test - n_validation]
    return np.sort(train), np.sort(order[len(train) : n - n_test]), np.sort(order[n - n_test :])


def _by_group(
    group: NDArray[np.int64], validation: float, test: float, rng: np.random.Generator, turn: int
) -> tuple[NDArray[np.int64], ...]:
    """Whole groups in a random order: those that begin in the stretch of the turn are tested on, the next validate.

    A client with a single group trains on it, and has nothing to test on.
    """
    n, groups = len(group), int(group.max()) + 1
    order = np.argsort(rng.permutation(groups)[group], kind="stable")
    starts = np.full(groups, n)
    np.minimum.at(starts, group[order], np.arange(n))
    begins = (starts[group] - turn * round(test * n)) % n  # [n]  where an example's group begins, from the turn on
    held = [begins < test * n, (begins >= test * n) & (begins < (test + validation) * n)]
    if groups == 1 or (held[0] | held[1]).all():
        held = [held[0] & (groups > 1), np.zeros(n, dtype=np.bool_)]
    return np.flatnonzero(~held[0] & ~held[1]), np.flatnonzero(held[1]), np.flatnonzero(held[0])


def _by_time(
    time: NDArray[np.int64], validation: float, test: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], ...]:
    """The latest examples are tested on, all of one moment together; those to validate on are drawn from the others.

    A client whose examples are all of one moment trains on them, and has nothing to test on.
    """
    n = len(time)
    first = np.sort(time)[n - max(1, round(test * n))] if test else time.max() + 1
    later = time >= max(first, time.min() + 1)
    rest = rng.permutation(np.flatnonzero(~later))
    m = min(round(validation * n), max(0, len(rest) - 1))
    return np.sort(rest[m:]), np.sort(rest[:m]), np.flatnonzero(later)


def _kept(client: str, rows: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """A random floor(share · n) of the rows; those of a smaller share are among those of a larger one."""
    n = int(share * len(rows))
    if not n:
        raise FedpriorError(
            f"keep={share} leaves client '{client}' none of its {len(rows)} training examples: use fewer clients or a "
            "larger share."
        )
    return np.sort(rng.permutation(rows)[:n])
