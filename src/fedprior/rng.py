"""Keyed randomness: a draw depends only on its purpose, not on when, where or with which other clients it is made.

A key is a 64-bit word. `fold` derives another from it with tags (a purpose, a client's name, a round, a step), so the
key of a draw is a pure function of (seed, purpose, client, round, step). Results therefore do not depend on the order
of clients, on how they are stacked, or on the number of worker processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK = (1 << 64) - 1


def _mix(word: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014): every input bit reaches every output bit."""
    word = (word + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def _mix_all(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`_mix` of many words; 64-bit arithmetic wraps around."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@lru_cache(maxsize=4096)
def _word(tag: str | int) -> int:
    if isinstance(tag, int):
        return _mix(_mix(tag & _MASK))  # twice: a seed is mixed once, and must not collide with its own tag
    return int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Key:
    """One source of randomness."""

    word: int

    @classmethod
    def from_seed(cls, seed: int) -> Key:
        """The root key of the run with this `seed`."""
        return cls(_mix(seed & _MASK))

    def fold(self, *tags: str | int) -> Key:
        """A new key for a narrower purpose, named by `tags`: `key.fold("round", 3)`."""
        word = self.word
        for tag in tags:
            word = _mix(word ^ _word(tag))
        return Key(word)

    def generator(self) -> torch.Generator:
        """A torch generator that starts at this key.

        torch's CPU generator reads 32 bits of its seed, so among 10⁵ draws about one pair shares a stream. This is
        harmless for shuffles and noise; `numpy` uses all 64 bits.
        """
        return self.seed(torch.Generator())

    def seed(self, generator: torch.Generator) -> torch.Generator:
        """The same with an existing generator: creating one costs more than a small draw."""
        return generator.manual_seed(self.word >> 32)

    def numpy(self) -> np.random.Generator:
        """A NumPy generator that starts at this key."""
        return np.random.Generator(np.random.PCG64(self.word))


@dataclass(frozen=True)
class Keys:
    """One key per client of a stack, and the run's root key, which all clients share.

    Tags are remembered by `fold` and hashed on the first draw: a loop that folds a key per step costs nothing when
    the step draws nothing, and hashes what its steps have in common once.
    """

    root: Key
    origin: tuple[int, ...]
    tags: tuple[str | int, ...] = ()
    parent: Keys | None = field(default=None, compare=False, repr=False)  # whose tags these begin with

    @classmethod
    def of(cls, root: Key, clients: Sequence[str]) -> Keys:
        """The keys of `clients` under `root`; by name, so that their order does not matter."""
        return cls(root, tuple(root.fold("client", name).word for name in clients))

    def __len__(self) -> int:
        return len(self.origin)

    def __getitem__(self, rows: slice | Sequence[int]) -> Keys:
        origin = self.origin[rows] if isinstance(rows, slice) else tuple(self.origin[i] for i in rows)
        return Keys(self.root, origin, self.tags)

    def fold(self, *tags: str | int) -> Keys:
        """Each client's key for a narrower purpose, named by `tags`: `keys.fold("noise", step)`."""
        return Keys(self.root, self.origin, self.tags + tags, self)

    @cached_property
    def _words(self) -> NDArray[np.uint64]:
        above = self.parent
        words = np.array(self.origin, dtype=np.uint64) if above is None else above._words
        for tag in self.tags if above is None else self.tags[len(above.tags) :]:
            words = _mix_all(words ^ np.uint64(_word(tag)))
        return words

    @cached_property
    def each(self) -> tuple[Key, ...]:
        """The keys, one per client: `Key.fold` for the whole stack at once."""
        return tuple(Key(word) for word in self._words.tolist())

    def __iter__(self) -> Iterator[Key]:
        return iter(self.each)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal draws [C, *shape] of type `dtype`, each client from its own stream."""
        draws, generator = torch.empty(len(self), *shape, dtype=dtype), torch.Generator()
        for row, key in zip(draws.unbind(), self, strict=True):
            row.normal_(generator=key.seed(generator))
        return draws
