"""The one exception that a person is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedpriorError(Exception):
    """Bad input, told in one sentence: what, where, what to do instead. The command line prints it and exits 2."""


class FedpriorWarning(UserWarning):
    """Something that works but is probably not what was meant."""


def unknown(kind: str, given: str, valid: Iterable[str], where: str = "") -> FedpriorError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(valid)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    choices = f"choose one of: {', '.join(names)}." if names else "there is none to choose."
    hint = f"did you mean '{near[0]}'?" if near else choices
    return FedpriorError(f"unknown {kind} '{given}'{f' in {where}' if where else ''}: {hint}")
