"""Ctrl-C and SIGTERM: one line that says how to continue, and exit code 130 or 143, without a traceback or a wait.

During imports and printing, the process ends at once. A run or a download is unwound, so that workers end and locks are
released; a second signal ends the process at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SAID = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
PATIENCE = 10.0
"""Maximum seconds for unwinding."""
SAME = "run the same command again"
SHOW_CURSOR = "\x1b[?25h"


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: like Ctrl-C, nothing but the command itself should catch it."""


class _Hint:
    """The hint to print when the process ends at once."""

    text = SAME


@contextmanager
def handled() -> Iterator[None]:
    """From here on, a signal prints one line and ends the process at once."""
    with _handlers(_end):
        yield


@contextmanager
def interruptible(again: Callable[[], str]) -> Iterator[None]:
    """On a signal, unwind the work in progress, then say how to continue and exit."""
    try:
        with _handlers(_raise):
            yield
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT
        print(f"{SAID[number]}: {again()}", file=sys.stderr, flush=True)
        sys.exit(128 + number)
    finally:
        _Hint.text = again()


@contextmanager
def _handlers(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Signals that were ignored (`nohup`, background jobs) stay ignored; only the main thread can have handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SAID}
    for number, old in before.items():
        if old not in (signal.SIG_IGN, None):
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            if old is not None and signal.getsignal(number) not in (signal.SIG_IGN, _end_now):
                signal.signal(number, old)


def _raise(number: int, frame: Any) -> None:
    for other in SAID:
        signal.signal(other, _end_now)
    limit = threading.Timer(PATIENCE, _end_now, [number, None])
    limit.daemon = True
    limit.start()
    raise TerminatedError if number == signal.SIGTERM else KeyboardInterrupt


def _end(number: int, frame: Any) -> None:
    """End at once: there is nothing to unwind yet, and an exception during imports could get lost."""
    cursor = SHOW_CURSOR if sys.stderr.isatty() else ""
    os.write(2, f"{cursor}{SAID[signal.Signals(number)]}: {_Hint.text}\n".encode())
    os._exit(128 + number)


def _end_now(number: int, frame: Any) -> None:
    _end(number, frame)
