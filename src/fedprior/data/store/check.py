"""Check that decoded arrays are the named data set: number, shape, type, classes, columns, checksums."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.data.store.formats.reader import Arrays
from fedprior.data.store.layout import checksum
from fedprior.data.store.record import Record
from fedprior.errors import FedpriorError


def check(record: Record, arrays: Arrays) -> str:
    """Refuse arrays that are not the data set; return a note about them, usually empty."""
    splits = ("_train", "_test") if "x_train" in arrays else ("",)
    wanted = {part + split for part in ("x", "y", *record.columns) for split in splits}
    if set(arrays) != wanted:
        raise _wrong(record, f"the arrays are {', '.join(sorted(arrays))}, not {', '.join(sorted(wanted))}")
    for split in splits:
        _inputs(record, "x" + split, arrays["x" + split])
        _labels(record, split, arrays["y" + split])
        n = len(arrays["y" + split])
        for part in ("x", *record.columns):
            if len(arrays[part + split]) != n:
                raise _wrong(record, f"{part + split} has {len(arrays[part + split])} rows but there are {n} labels")
    _counts(record, {split[1:] or "all": arrays["y" + split] for split in splits})
    if record.groups:
        _groups(record, arrays[record.columns[0]])
    for name, expected in record.checksums.items():
        if name not in arrays or checksum(arrays[name]) != expected:
            raise _wrong(record, f"{name} is of the right form, but its values are not the published ones")
    return _note(record, arrays)


def _wrong(record: Record, what: str) -> FedpriorError:
    return FedpriorError(f"this is not {record.name} ({what}): give {record.accepts}.")


def _inputs(record: Record, name: str, x: NDArray[Any]) -> None:
    right_type = x.dtype.kind == "U" if record.dtype == "str" else x.dtype == np.dtype(record.dtype)
    if not right_type or x.shape[1:] != record.shape:
        found = f"{name} is {x.dtype}, {list(x.shape[1:])} per example"
        raise _wrong(record, f"{found}, where {record.dtype}, {list(record.shape)} is expected")


def _labels(record: Record, split: str, y: NDArray[Any]) -> None:
    if y.dtype != np.int64 or y.ndim != 1 or not len(y):
        raise _wrong(record, f"y{split} is not a list of classes")
    if y.min() < 0 or y.max() >= record.classes:
        raise _wrong(record, f"y{split} runs from {y.min()} to {y.max()}, where there are {record.classes} classes")


def _counts(record: Record, y: dict[str, NDArray[np.int64]]) -> None:
    found = {split: len(labels) for split, labels in y.items()}
    if record.counts and found != record.counts:
        raise _wrong(record, f"{_listed(found)} examples, where there are {_listed(record.counts)}")
    for split, expected in record.per_class.items():
        if tuple(np.bincount(y[split], minlength=record.classes)) != expected:
            raise _wrong(record, f"the class counts of the {split} examples are wrong")


def _groups(record: Record, column: NDArray[Any]) -> None:
    values, counts = np.unique(column, return_counts=True)
    found = dict(zip(values.tolist(), counts.tolist(), strict=True))
    if found != record.groups:
        raise _wrong(
            record, f"each {record.columns[0]} has {_listed(found)}, where {_listed(record.groups)} are expected"
        )


def _listed(counts: Any) -> str:
    return ", ".join(str(n) if name == "all" else f"{n} {name}" for name, n in counts.items())


def _note(record: Record, arrays: Arrays) -> str:
    """Splits of one data set differ in the fourth decimal of the means, so a tolerance of 1e-6 distinguishes them."""
    if not record.train_means:
        return ""
    means = arrays["x_train"].mean(axis=(0, 2, 3), dtype=np.float64) / 255
    return "" if np.allclose(means, record.train_means, rtol=0, atol=1e-6) else record.otherwise
