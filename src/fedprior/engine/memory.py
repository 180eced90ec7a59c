"""What makes a process fit for this work: one thread, and an allocator that keeps what it has."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h


def keep_freed_memory() -> None:
    """Stop glibc from handing large blocks back to the kernel after every step.

    A stack of gradients is some megabytes; returned and asked for again each step, its page faults cost as much as
    the arithmetic. Elsewhere than on glibc this does nothing.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
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
