"""The one exception that a person is meant to read."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fedprior.names import visible

SHOWN = 80
"""Characters of a value that a message shows."""
LONGEST = 1500
"""Characters of a message."""


def shown(value: Any) -> str:
    """A value as a message shows it: one line, cut where it is long, whatever its `repr` does."""
    try:
        text = repr(value)
    except Exception:  # numbers of thousands of digits, nesting without end, objects that cannot tell
        text = f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"
    return cut(text)


def cut(text: str, most: int = SHOWN) -> str:
    """`text` as one line of at most so many characters; an ellipsis stands for what is left out in the middle."""
    head, tail = most * 3 // 4, most - most * 3 // 4 - 3
    short = text if len(text) <= most else f"{text[:head]}...{text[-tail:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in short)


class FedpriorError(Exception):
    """Bad input, told in one sentence: what, where, what to do instead. The command line prints it and exits 2.

    What it quotes may be a name with anything in it: no control character gets into the message.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(visible(str(message)))

    def __str__(self) -> str:
        return cut(super().__str__(), LONGEST)


class FedpriorWarning(UserWarning):
    """Something that works but is probably not what was meant."""

    def __init__(self, message: object = "") -> None:
        super().__init__(visible(str(message)))


def unknown(kind: str, given: Any, valid: Iterable[str], where: str = "") -> FedpriorError:
    """The error for a name that does not exist, which suggests the names that it begins, or the nearest one.

    `kind` is what is named ("method"), `given` the name, `valid` the names that exist, `where` the place it stands.
    """
    names = sorted(valid)
    text = cut(given) if isinstance(given, str) else shown(given)
    longer = sorted((name for name in names if text and name.startswith(text)), key=len)
    near = longer or difflib.get_close_matches(text, names, n=1, cutoff=0.5)
    choices = f"choose one of: {', '.join(names)}." if names else "there is none to choose."
    hint = f"did you mean {' or '.join(repr(name) for name in near)}?" if near else choices
    return FedpriorError(f"unknown {kind} '{text}'{f' in {where}' if where else ''}: {hint}")


def no_column(where: str, given: str, columns: Iterable[str]) -> FedpriorError:
    """The error for a column `given` that `where` does not have: the one of `columns` that was meant, or all."""
    names = {str(name).lower(): str(name) for name in columns}
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.75)
    hint = f"did you mean '{names[near[0]]}'?" if near else f"its columns are {', '.join(names.values())}."
    if not near and sum(name.startswith("unnamed: ") for name in names) > 1:  # a title, or a header of two lines
        hint += " The names must be in the first row, and in no other."
    return FedpriorError(f"{where} has no column '{cut(given)}': {hint}")


@contextmanager
def readable(what: str, most: int = SHOWN) -> Iterator[None]:
    """Refuse bad input that another package chokes on: `what` it is, and what that package says, in one sentence.

    At most `most` characters of it are quoted. Parsers of damaged files raise errors of every class: no list of classes
    would be complete.
    """
    try:
        yield
    except (FedpriorError, MemoryError):
        raise
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise FedpriorError(f"{what}: {cut(first.rstrip('.'), most)}.") from None


def of_the_disk(error: OSError) -> FedpriorError:
    """What the system says of a file or a disk in `error`, as one sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FedpriorError("the disk is full: make room and run it again; what was written before is unharmed.")
    where = f"'{error.filename}'" if error.filename else "a file"
    return FedpriorError(f"{where} cannot be read or written: {str(error.strerror or error).lower()}.")


TOO_LARGE = FedpriorError("this does not fit into memory: use a smaller model, fewer examples or fewer clients.")


def of_the_memory(error: BaseException) -> bool:
    """Whether an error says that memory is short; PyTorch has no class of its own for it."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)
