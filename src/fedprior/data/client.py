"""What a stack of clients trains on: `ClientData`, `Batch`, and `fold`, the one local loop.

Shuffling, short last batches and clients of different sizes are handled only here. A stack holds rows
of one flat tensor, so it is never padded; a batch is, when its clients' batches differ in size, and then carries
weights that make padding invisible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedprior import tree
from fedprior.rng import Keys

Carry = TypeVar("Carry")

GATHER_BYTES = 32 << 20
"""Limit on the examples gathered at a time: for most clients, one epoch fits."""


class Batch(NamedTuple):
    """Some examples of each client of a stack."""

    x: Tensor  # [C, B, ...]
    y: Tensor  # [C, B]
    weight: Tensor  # [C, B]  1/m on a client's m real examples, which come first; 0 on padding
    place: Tensor = torch.empty(0, dtype=torch.int64)  # [C, B]  index of each one among its client's examples

    def counts(self) -> list[int]:
        """Real examples per client."""
        return [int(m) for m in (self.weight > 0).sum(1)]


@dataclass(frozen=True)
class ClientData:
    """The examples of a stack of C clients: rows `start[c] : start[c] + size[c]` of a flat tensor."""

    x: Tensor  # [T, ...]
    y: Tensor  # [T]
    start: tuple[int, ...]
    size: tuple[int, ...]
    validation: ClientData | None = None  # of the same clients, for methods that may use it

    @classmethod
    def single(cls, x: Tensor, y: Tensor) -> ClientData:
        """A stack of one client with examples `x` [n, ...] and labels `y` [n], as held by a site's own node."""
        return cls(x, y, (0,), (len(y),))

    def __len__(self) -> int:
        return len(self.size)

    def __getitem__(self, rows: slice | Sequence[int]) -> ClientData:
        if isinstance(rows, slice):
            rows = range(len(self))[rows]
        start, size = tuple(self.start[c] for c in rows), tuple(self.size[c] for c in rows)
        validation = None if self.validation is None else self.validation[rows]
        return replace(self, start=start, size=size, validation=validation)

    @property
    def n(self) -> Tensor:
        """Example counts [C], float64: they are weights."""
        return torch.tensor(self.size, dtype=torch.float64)

    def client(self, c: int) -> tuple[Tensor, Tensor]:
        """The examples [n, ...] and labels [n] of client number `c`, as views."""
        rows = slice(self.start[c], self.start[c] + self.size[c])
        return self.x[rows], self.y[rows]

    def pick(self, rows: Sequence[NDArray[np.int64]]) -> ClientData:
        """The same clients with some of their examples, a copy: `rows` has their places among each client's own."""
        flat = np.concatenate([start + own for start, own in zip(self.start, rows, strict=True)])
        sizes = [len(own) for own in rows]
        ends = np.cumsum([0, *sizes]).tolist()
        chosen = torch.from_numpy(flat)
        return replace(self, x=self.x[chosen], y=self.y[chosen], start=tuple(ends[:-1]), size=tuple(sizes))

    def batches(self, size: int) -> Iterator[Batch]:
        """One pass in order, `size` examples at a time; clients that have none left stay in the stack with weight 0."""
        for first in range(0, max(self.size, default=0), size):
            counts = [min(size, max(0, n - first)) for n in self.size]
            rows = np.empty((len(self), max(counts)), dtype=np.int64)
            rows[:] = _padding(self)
            for c, m in enumerate(counts):
                rows[c, :m] = np.arange(self.start[c] + first, self.start[c] + first + m)
            yield _gather(self, rows, np.asarray(counts))


def _padding(data: ClientData) -> NDArray[np.int64]:
    """The padding row of each client, [C, 1]: its own first row, so that no other client's data is touched.

    A client without any examples borrows the first row of the largest.
    """
    spare = data.start[int(np.argmax(data.size))]
    return np.asarray([start if n else spare for start, n in zip(data.start, data.size, strict=True)])[:, None]


def _weights(counts: NDArray[np.int64], width: int, dtype: torch.dtype) -> Tensor:
    """counts [..., C] -> weights [..., C, width]."""
    share = np.where(np.arange(width) < counts[..., None], 1.0 / np.maximum(counts, 1)[..., None], 0.0)
    return torch.from_numpy(share).to(dtype)


def _gather(data: ClientData, rows: NDArray[np.int64], counts: NDArray[np.int64]) -> Batch:
    """Rows [..., C, B] of the flat tensors as one batch (or a block of them)."""
    flat = torch.from_numpy(rows.reshape(-1))
    x = data.x.index_select(0, flat).view(*rows.shape, *data.x.shape[1:])
    y = data.y.index_select(0, flat).view(rows.shape)
    dtype = data.x.dtype if data.x.is_floating_point() else torch.float32
    start = np.asarray(data.start[: rows.shape[-2]])[:, None]
    return Batch(x, y, _weights(counts, rows.shape[-1], dtype), torch.from_numpy(rows - start))


def every_third(data: ClientData, keys: Keys) -> tuple[ClientData, ClientData]:
    """(two thirds, one third) of every client's examples in `data`: every third one in the order of the labels.

    So both parts have all classes, or the whole range of a number. Which ones depends on the root of `keys` and the
    client, not on the round: whoever trains on the first part never sees the second.
    """
    rest, held = [], []
    for c, key in enumerate(Keys(keys.root, keys.origin).fold("every third")):
        shuffled = torch.randperm(data.size[c], generator=key.generator())
        order = shuffled[data.client(c)[1][shuffled].argsort(stable=True)].numpy()
        held.append(np.sort(order[1::3]))
        rest.append(np.setdiff1d(order, held[-1]))
    return data.pick(rest), data.pick(held)


class Schedule(NamedTuple):
    """Which rows each client uses at each step; clients sorted by decreasing number of steps."""

    rows: NDArray[np.int64]  # [S, C, B]
    counts: NDArray[np.int64]  # [S, C]  real rows of each batch; 0 once a client has finished
    active: list[int]  # [S]  clients that still train: a prefix of the stack
    width: list[int]  # [S]  the largest batch of the step


class Budget(NamedTuple):
    """How long a local run is: `epochs`, or exactly `steps`; one of the two is None."""

    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    smallest: int = 1  # a last batch with fewer examples is skipped: batch normalisation needs two
    together: bool = True  # a step takes the whole stack, or clients run one after another
    drop: bool = False  # a short last batch is skipped, unless the client has no other

    def per_epoch(self, n: int) -> int:
        """Batches in one pass over n examples."""
        full, rest = divmod(n, self.batch_size)
        return full + (rest >= max(1, self.smallest) and not (self.drop and full))

    def length(self, n: int) -> int:
        """Steps that a client with n examples takes."""
        if self.steps is None:
            return (self.epochs or 0) * self.per_epoch(n)
        return self.steps if self.per_epoch(n) else 0


def schedule(data: ClientData, keys: Keys, budget: Budget) -> Schedule:
    """The batches of a local run on `data` as long as `budget`; every epoch is reshuffled by `keys`."""
    size, lengths = budget.batch_size, np.asarray([budget.length(n) for n in data.size], dtype=np.int64)
    per_epoch = [budget.per_epoch(n) for n in data.size]
    epochs = max((-(-length // max(1, m)) for length, m in zip(lengths.tolist(), per_epoch, strict=True)), default=0)
    steps = int(max(lengths, default=0))
    places = np.zeros((len(data), steps * size), dtype=np.int64)  # among the client's examples
    generator = torch.Generator()
    for epoch in range(epochs):
        for c, key in enumerate(keys.fold("epoch", epoch)):
            first = epoch * per_epoch[c] * size
            last = min(first + per_epoch[c] * size, int(lengths[c]) * size)
            if first < last:
                order = torch.randperm(data.size[c], generator=key.seed(generator)).numpy()[: last - first]
                places[c, first : first + len(order)] = order
    rows = (places + _padding(data)).reshape(len(data), steps, size).transpose(1, 0, 2)
    step = np.arange(steps)[:, None]
    left = np.asarray(data.size) - step % np.maximum(per_epoch, 1) * size  # [S, C]  of the epoch's examples
    counts = np.where(step < lengths, np.minimum(left, size), 0)
    active = [int((lengths > s).sum()) for s in range(len(rows))]
    return Schedule(rows, counts, active, counts.max(1, initial=0).tolist())


def fold(
    step: Callable[[Carry, Any, Batch, Keys], Carry],
    carry: Carry,
    fixed: Any,
    data: ClientData,
    keys: Keys,
    budget: Budget,
) -> Carry:
    """Run `carry = step(carry, fixed, batch, keys)` over each client's batches.

    Args:
        step: One step of all clients that still train. It may write to the carry that it is given.
        carry: What changes from step to step, a stack [C, ...]; it is copied once, before the first step.
        fixed: What a step needs and does not change, a stack; it is never copied.
        data: The clients' examples.
        keys: One per client; they determine the order of examples.
        budget: Batch size and number of steps. Clients that finish early leave the stack: a step sees a prefix of it.

    Returns:
        The last carry of every client, [C, ...].
    """
    if not budget.together and len(data) > 1:
        singles = [slice(c, c + 1) for c in range(len(data))]
        return tree.cat(
            [fold(step, tree.index(carry, c), tree.index(fixed, c), data[c], keys[c], budget) for c in singles]
        )
    order = sorted(range(len(data)), key=lambda c: -budget.length(data.size[c]))
    if order == list(range(len(data))):
        return _run(step, tree.clone(carry), fixed, data, keys, schedule(data, keys, budget))
    carry, fixed = tree.clone(tree.index(carry, order)), tree.map(lambda leaf: _reorder(leaf, order), fixed)
    data, keys = data[order], keys[order]
    carry = _run(step, carry, fixed, data, keys, schedule(data, keys, budget))
    return tree.index(carry, [int(i) for i in np.argsort(order)])


def _reorder(leaf: Tensor, order: list[int]) -> Tensor:
    return leaf if leaf.stride(0) == 0 else leaf[order]  # a shared value is the same for every client


def _run(
    step: Callable[[Carry, Any, Batch, Keys], Carry],
    carry: Carry,
    fixed: Any,
    data: ClientData,
    keys: Keys,
    plan: Schedule,
) -> Carry:
    finished: list[Carry] = []
    clients, batch_size = plan.rows.shape[1:]
    example = max(1, data.x[:1].numel() * data.x.element_size())
    block = max(1, GATHER_BYTES // (example * batch_size * max(clients, 1)))
    for s, (active, width) in enumerate(zip(plan.active, plan.width, strict=True)):
        if active < clients:
            finished.append(tree.index(carry, slice(active, None)))
            carry, fixed = tree.index(carry, slice(active)), tree.index(fixed, slice(active))
            keys, clients = keys[:active], active
        if s % block == 0:
            examples = _gather(data, plan.rows[s : s + block, :active], plan.counts[s : s + block, :active])
        batch = Batch(*(part[s % block] for part in examples))
        if width < batch_size or active < len(batch.y):
            batch = Batch(*(part[:active, :width] for part in batch))
        carry = step(carry, fixed, batch, keys.fold("step", s))
    return tree.cat([carry, *reversed(finished)])
