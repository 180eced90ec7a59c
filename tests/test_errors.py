"""The sentences that people read when something is wrong."""

from __future__ import annotations

import errno
import os

import pytest

from fedprior.errors import no_column, of_the_disk, unknown

TABLES = ["a/table1-x", "a/table1-y", "a/table6"]


@pytest.mark.parametrize(
    ("given", "valid", "hint"),
    [
        ("a/tabel6", TABLES, "did you mean 'a/table6'?"),
        ("a/table1", TABLES, "did you mean 'a/table1-x' or 'a/table1-y'?"),
        ("digit", ["digit_domains", "digits"], "did you mean 'digits' or 'digit_domains'?"),
        ("zzz", ["b", "a"], "choose one of: a, b."),
        ("zzz", [], "there is none to choose."),
    ],
)
def test_unknown_names_what_is_near(given: str, valid: list[str], hint: str) -> None:
    """The nearest name, or all that begin like it when it is the beginning of several."""
    assert str(unknown("table", given, valid)) == f"unknown table '{given}': {hint}"


def test_errors_of_the_disk() -> None:
    def told(number: int, *path: str) -> str:
        return str(of_the_disk(OSError(number, os.strerror(number), *path)))

    assert told(errno.ENOSPC, "x").startswith("the disk is full: make room")
    assert told(errno.EACCES, "some/where") == "'some/where' cannot be read or written: permission denied."
    assert told(errno.EIO) == "a file cannot be read or written: input/output error."


def test_a_column_is_found_whatever_its_case() -> None:
    assert "did you mean 'Hospital'?" in str(no_column("'a.csv'", "HOSPITAL", ["age", "Hospital"]))
    assert str(no_column("'a.csv'", "ward", ["age", "Hospital"])).endswith("its columns are age, Hospital.")
    two_lines = no_column("'a.xlsx'", "ward", ["A study", "unnamed: 1", "unnamed: 2"])
    assert str(two_lines).endswith("unnamed: 2. The names must be in the first row, and in no other.")
