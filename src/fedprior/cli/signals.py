"""Ctrl-C and SIGTERM: one line that says how to go on, and exit code 130 or 143; never a traceback, never a wait.

While things are loaded or printed, the process ends at once. While a run or a download is under way, it is unwound, so
that workers end and locks are let go; whoever does not want to wait for that sends the signal again.
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
"""Seconds that unwinding may take."""
SAME = "run the same command again"
SHOW_CURSOR = "\x1b[?25h"


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: like Ctrl-C, nothing but the command itself should catch it."""


class _Hint:
    """What to do after the process has ended at once."""

    text = SAME


@contextmanager
def handled() -> Iterator[None]:
    """From here on, signals end the process at once and in one line."""
    with _handlers(_end):
        yield


@contextmanager
def interruptible(again: Callable[[], str]) -> Iterator[None]:
    """Unwind what is under way when a signal comes, then say how to go on and end."""
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
    """Signals that were ignored (`nohup`, a shell's background) stay so; only the main thread may have handlers."""
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
    """Before there is anything to unwind, and in the middle of imports, an exception would only be lost on its way."""
    cursor = SHOW_CURSOR if sys.stderr.isatty() else ""
    os.write(2, f"{cursor}{SAID[signal.Signals(number)]}: {_Hint.text}\n".encode())
    os._exit(128 + number)


def _end_now(number: int, frame: Any) -> None:
    _end(number, frame)
