"""Threads, the allocator, and a check that there is enough memory.

The bytes that a run needs, for N clients, W worker processes and stacks of c clients:

    data + N · (state + uplink + 2 · personal model) + downlink + W · (PROCESS + COPIES · c · weights + GATHER)
         + PREDICTIONS · 4 · P · rows + JOURNAL · N · lines

State, uplink and personal model are one client's; personal models are kept twice, as last evaluated and as selected.
All of these are in memory that all processes share. This process alone also holds the predictions (P numbers for each
of the `rows` of validation and test examples) and the journal: `lines` per client, of the whole run, or of a single
evaluation if the run has a folder to write them to.
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
JOURNAL = 800  # bytes per line of a client: a dictionary and its numbers
COPIES = 6  # of a stack's weights during training: start, carry, gradients, moments, uplink


Sharing = Literal["nobody", "fork", "spawn"]
"""Who shares the memory: no other process, children that inherit it, or children that must open it."""


def how_to_start() -> Literal["fork", "spawn"]:
    """How workers start: by fork where that is safe, because it is fastest."""
    return "fork" if sys.platform == "linux" else "spawn"


def zeros(shape: tuple[int, ...], dtype: torch.dtype, sharing: Sharing) -> Tensor:
    """Zeros that use no memory until they are written to."""
    count = math.prod(shape)
    if sharing == "fork" and count:
        return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize), dtype=dtype).view(shape)
    found = torch.zeros(shape, dtype=dtype)
    return found.share_memory_() if sharing == "spawn" else found  # type: ignore[no-untyped-call]


def keep_freed_memory() -> None:
    """Stop glibc from handing large blocks back to the kernel after every step.

    A stack of gradients takes a few megabytes; if it is returned and requested again at each step, the page faults
    cost as much as the arithmetic. Memory freed earlier, such as copies made while loading data, is returned first.
    Without glibc this does nothing.
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
    """One intra-op thread: parallelism comes from processes, and many threads are very slow on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Need(NamedTuple):
    """Bytes that a run needs in addition to its data, which are already loaded."""

    kept: int  # states, uplinks and the downlink
    working: int  # all workers together
    told: int = 0  # predictions and journal, in this process only

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
    """The formula; `state`, `up`, `personal` and `weights` are bytes per client, `down` is the total of the downlink.

    `predicted` is how many numbers one evaluation predicts, `lines` how many journal lines each client has.
    """
    return Need(
        clients * (state + up + 2 * personal) + down,
        workers * (PROCESS + COPIES * chunk * weights + 2 * GATHER_BYTES),
        PREDICTIONS * 4 * predicted + JOURNAL * clients * lines,
    )


def shared_room() -> int | None:
    """Free bytes of shared memory; containers often have only 64 MiB."""
    with contextlib.suppress(OSError):
        found = os.statvfs("/dev/shm")
        return found.f_bavail * found.f_frsize
    return None


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
