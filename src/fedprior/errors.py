"""The one exception that a person is meant to read."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable


class FedpriorError(Exception):
    """Bad input, told in one sentence: what, where, what to do instead. The command line prints it and exits 2."""


class FedpriorWarning(UserWarning):
    """Something that works but is probably not what was meant."""


def unknown(kind: str, given: str, valid: Iterable[str], where: str = "") -> FedpriorError:
    """The error for a name that does not exist, with those that it begins, or the nearest one that does."""
    names = sorted(valid)
    text = str(given)
    longer = sorted((name for name in names if text and name.startswith(text)), key=len)
    near = longer or difflib.get_close_matches(text, names, n=1, cutoff=0.5)
    choices = f"choose one of: {', '.join(names)}." if names else "there is none to choose."
    hint = f"did you mean {' or '.join(repr(name) for name in near)}?" if near else choices
    return FedpriorError(f"unknown {kind} '{given}'{f' in {where}' if where else ''}: {hint}")


def of_the_disk(error: OSError) -> FedpriorError:
    """What the system says of a file or a disk, in one sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FedpriorError("the disk is full: make room and run it again; what was written before is unharmed.")
    where = f"'{error.filename}'" if error.filename else "a file"
    return FedpriorError(f"{where} cannot be read or written: {str(error.strerror or error).lower()}.")
