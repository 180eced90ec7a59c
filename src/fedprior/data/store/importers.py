"""From files to checked arrays; files are recognised by their content."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from fedprior.data.store.check import check
from fedprior.data.store.formats.cifar import CifarBinary, CifarPython
from fedprior.data.store.formats.idx import Idx
from fedprior.data.store.formats.leaf import Leaf
from fedprior.data.store.formats.matlab import Matlab
from fedprior.data.store.formats.npz import Npz
from fedprior.data.store.formats.pictures import Listed, Photos, Sheets
from fedprior.data.store.formats.reader import Arrays, Reader
from fedprior.data.store.formats.tables import Hospitals, Rows, Tweets
from fedprior.data.store.formats.tff import Tff
from fedprior.data.store.members import BROKEN, Member, members
from fedprior.data.store.record import Record
from fedprior.errors import FedpriorError

FORMATS: dict[str, Callable[[Record], Reader]] = {
    "idx": Idx,
    "npz": Npz,
    "matlab": Matlab,
    "cifar-python": CifarPython,
    "cifar-binary": CifarBinary,
    "sheets": Sheets,
    "listed": Listed,
    "photos": Photos,
    "leaf": Leaf,
    "tff": Tff,
    "hospitals": Hospitals,
    "tweets": Tweets,
    "rows": Rows,
}
DAMAGED = (*BROKEN, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError, struct.error)
"""Errors of a reader when a file of its format does not hold what it should."""


class Decoded(NamedTuple):
    """The examples of a data set, checked."""

    arrays: Arrays
    format: str
    note: str


def decode(record: Record, paths: Iterable[Path]) -> Decoded:
    """Read files, folders or archives as the data set. Members in other formats are skipped."""
    readers = {name: FORMATS[name](record) for name in record.formats}
    taken: list[str] = []
    for member in members(paths):
        name = next((name for name, reader in readers.items() if _take(reader, member)), None)
        taken += [name] if name else []
    if not taken:
        raise FedpriorError(f"none of the files can be read as {record.name}: give {record.accepts}.")
    used = next(name for name in readers if name in taken)
    try:
        arrays = readers[used].arrays()
    except DAMAGED as error:
        raise FedpriorError(
            f"the files do not fit together as {record.name} ({error}): give {record.accepts}."
        ) from None
    return Decoded(arrays, used, check(record, arrays))


def _take(reader: Reader, member: Member) -> bool:
    try:
        return reader.take(member)
    except FedpriorError as error:
        raise FedpriorError(f"'{member.path}' cannot be imported: {error}") from None
    except DAMAGED as error:
        raise FedpriorError(f"'{member.path}' is damaged or not what it seems ({error}): get it again.") from None
