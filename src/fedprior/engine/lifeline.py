"""Ties a worker to the process that started it: it ends when its parent ends, and leaves interruptions to it."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""A terminal or a service manager sends these to all processes; only the parent acts on them."""
_PR_SET_PDEATHSIG = 1  # from Linux's prctl.h


@contextmanager
def undisturbed() -> Iterator[None]:
    """Defer interruptions while a worker starts: they must not reach it before it ignores them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def tie() -> None:
    """To be called in a worker before anything else."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    parent = multiprocessing.parent_process()
    assert parent is not None
    if not killed_with_parent():
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()
    elif os.getppid() != parent.pid:  # the parent ended before the line above
        os._exit(1)


def killed_with_parent() -> bool:
    """Ask the system to kill this process when its parent ends; False where that is not possible."""
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _watch(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
