"""TensorFlow Federated's database of FEMNIST: every example is a `tf.train.Example` in a row of SQLite.

    Example { Features features = 1; }    Features { map<string, Feature> feature = 1; }    map { key = 1; value = 2; }
    Feature { BytesList = 1; FloatList = 2; Int64List = 3; }    each list { repeated value = 1; }

No more of Protocol Buffers is needed, so it is read without a library.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedprior.data.store import layout
from fedprior.data.store.formats.reader import Arrays, Part, by_split, images, labels
from fedprior.data.store.members import Member
from fedprior.data.store.record import Record
from fedprior.errors import FedpriorError

MAGIC = b"SQLite format 3\0"
PARTS = {"all_train": "train", "all_test": "test"}  # beside them are digits_only_train and digits_only_test
QUERY = f"SELECT split_name, client_id, serialized_example_proto FROM examples WHERE split_name IN {(*PARTS,)}"
FLOATS, INTEGERS = 2, 3


@dataclass
class Tff:
    """FEMNIST as LEAF has it, ink dark (0) on white (1); clients are the writers."""

    record: Record
    splits: dict[str, dict[str, list[tuple[NDArray[np.uint8], int]]]] = field(default_factory=dict)

    def take(self, member: Member) -> bool:
        """A database, which SQLite needs as a file of its own: 4.7 GB unpacked."""
        if not member.head.startswith(MAGIC):
            return False
        with tempfile.NamedTemporaryFile(dir=layout.part(self.record.name), suffix=".sqlite") as file:
            member.copy(file)
            file.flush()
            database = sqlite3.connect(f"file:{file.name}?mode=ro&immutable=1", uri=True)
            try:
                for split, writer, example in database.execute(f"{QUERY} ORDER BY rowid"):
                    values = features(example)
                    found = (images(values["pixels"][None], self.record.shape)[0], int(values["label"][0]))
                    self.splits.setdefault(PARTS[split], {}).setdefault(writer, []).append(found)
            except sqlite3.Error as error:
                told = f"it is not a database of TensorFlow Federated, or it is damaged ({error}): get it again."
                raise FedpriorError(told) from None
            finally:
                database.close()
        return True

    def arrays(self) -> Arrays:
        """Writers in the order of their names, and their examples in that of the database."""
        return by_split({split: self._parts(split) for split in PARTS.values()})

    def _parts(self, split: str) -> list[Part]:
        parts = []
        for writer, found in sorted(self.splits.get(split, {}).items()):
            x, y = zip(*found, strict=True)
            parts.append(Part(writer, np.stack(x), labels(y), {"writer": np.full(len(y), writer)}))
        return parts


def features(example: bytes) -> dict[str, NDArray[np.float32] | NDArray[np.int64]]:
    """The numbers in a serialised `tf.train.Example`, by name; features that are bytes are left out."""
    done: dict[str, NDArray[np.float32] | NDArray[np.int64]] = {}
    for _, feature_map in fields(example):
        for _, entry in fields(_message(feature_map)):
            pair = dict(fields(_message(entry)))
            for kind, values in fields(_message(pair[2])):
                listed = [value for _, value in fields(_message(values))]
                if kind == FLOATS:  # packed values are one piece of bytes, others a piece each
                    done[_message(pair[1]).decode()] = np.frombuffer(b"".join(map(_message, listed)), "<f4")
                elif kind == INTEGERS:
                    numbers = (n for v in listed for n in ([v] if isinstance(v, int) else varints(v)))
                    done[_message(pair[1]).decode()] = np.array([*numbers], np.int64)
    return done


def fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The number and the value of every field of a message: an integer, or bytes to interpret by the number."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        length, at = _varint(message, at) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], at)
        if at + length > len(message):
            raise ValueError("a message ends too early")
        yield tag >> 3, message[at : at + length]
        at += length


def varints(message: bytes) -> Iterator[int]:
    """Integers with seven bits per byte, one after another."""
    at = 0
    while at < len(message):
        value, at = _varint(message, at)
        yield value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def _message(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message is expected")
    return value
