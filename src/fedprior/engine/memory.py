"""What makes a process fit for this work: one thread, an allocator that keeps what it has, and enough memory.

What a run needs, in bytes, for N clients, W worker processes and stacks of c clients:

    data + N · (state + uplink + 2 · personal model) + downlink + W · (PROCESS + COPIES · c · weights + GATHER)
         + PREDICTIONS · 4 · P · rows + JOURNAL · N · lines

States, uplinks and personal models are those of one client; the latter are there twice, as last evaluated and as
selected. All lie in memory that all processes share. Beside them, in this process alone, lie the predictions, P numbers
for each of the `rows` to validate and to test on, and the journal, `lines` a client in the course of the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import sys
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedprior.data.client import GATHER_BYTES
from fedprior.errors import FedpriorError
from fedprior.room import available, gib

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h

PROCESS = 200 << 20  # a worker's own pages: interpreter and torch, less what a fork shares
PREDICTIONS = 4  # those being made, the last, the selected, and those of the global model
JOURNAL = 800  # bytes of a client's line: a dictionary and its numbers
COPIES = 6  # of a stack's weights at work: start, carry, gradients, moments, uplink


Sharing = Literal["nobody", "fork", "spawn"]
"""With whom memory is shared: with no process, with children that inherit it, or with such as must open it."""


def how_to_start() -> Literal["fork", "spawn"]:
    """How workers start: forked where that is safe, so that they are there at once."""
    return "fork" if sys.platform == "linux" else "spawn"


def zeros(shape: tuple[int, ...], dtype: torch.dtype, sharing: Sharing) -> Tensor:
    """Zeros that take no memory until they are written to."""
    count = math.prod(shape)
    if sharing == "fork" and count:
        return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize), dtype=dtype).view(shape)
    found = torch.zeros(shape, dtype=dtype)
    return found.share_memory_() if sharing == "spawn" else found  # type: ignore[no-untyped-call]


def keep_freed_memory() -> None:
    """Stop glibc from handing large blocks back to the kernel after every step.

    A stack of gradients is some megabytes; returned and asked for again each step, its page faults cost as much as
    the arithmetic. What was freed before, such as copies made while data were loaded, is handed back first. Elsewhere
    than on glibc this does nothing.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc_trim(0)
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """One intra-op thread: parallelism comes from processes. Many threads on a busy machine collapse."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Need(NamedTuple):
    """Bytes that a run will take beside its data, which are loaded already."""

    kept: int  # states, uplinks and the downlink
    working: int  # all workers together
    told: int = 0  # predictions and journal, in this process alone

    def check(self, sharing: Sharing) -> None:
        """Refuse a run that cannot fit, before it starts."""
        room = available()
        if room is not None and sum(self) > room:
            raise FedpriorError(
                f"the run needs about {gib(sum(self))} ({gib(self.kept)} for clients' states, uplinks and models, "
                f"{gib(self.told)} for predictions and journal, {gib(self.working)} for its workers) but {gib(room)} "
                "of memory are free: use fewer workers, fewer clients or a smaller model."
            )
        room = shared_room() if sharing == "spawn" else None
        if room is not None and self.kept > room:
            raise FedpriorError(
                f"the run keeps {gib(self.kept)} of states and uplinks in shared memory but /dev/shm has {gib(room)} "
                "free: enlarge it, or use workers=1."
            )


def need(
    state: int,
    up: int,
    personal: int,
    down: int,
    clients: int,
    weights: int,
    chunk: int,
    workers: int,
    *,
    predicted: int = 0,
    lines: int = 0,
) -> Need:
    """The formula; `state`, `up`, `personal` and `weights` are the bytes of one client's, `down` those of all.

    `predicted` are the numbers that one evaluation predicts, `lines` those of a client in the journal.
    """
    return Need(
        clients * (state + up + 2 * personal) + down,
        workers * (PROCESS + COPIES * chunk * weights + 2 * GATHER_BYTES),
        PREDICTIONS * 4 * predicted + JOURNAL * clients * lines,
    )


def shared_room() -> int | None:
    """Bytes left for shared memory; containers often give 64 MiB."""
    with contextlib.suppress(OSError):
        found = os.statvfs("/dev/shm")
        return found.f_bavail * found.f_frsize
    return None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
