"""What ties a worker to the process that started it: it ends with it, at once, and leaves interruptions to it."""

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
"""A terminal, or whoever stops a service, sends them to all processes; the parent alone decides what follows."""
_PR_SET_PDEATHSIG = 1  # from Linux's prctl.h


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put interruptions off while a worker starts: they must not reach it before it knows to ignore them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def tie() -> None:
    """Called in a worker, before anything else."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    parent = multiprocessing.parent_process()
    assert parent is not None
    if not killed_with_parent():
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()
    elif os.getppid() != parent.pid:  # it ended before it could be asked
        os._exit(1)


def killed_with_parent() -> bool:
    """Have the system kill this process when its parent ends; False where it cannot."""
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _watch(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
