"""Tables that are damaged, packed, locked or far too large, and databases: one sentence, and nothing is changed."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedprior import room
from fedprior.data.database import from_database
from fedprior.data.reading import read_file
from fedprior.errors import FedpriorError
from hostile.cases import DRAWN, ROWS, one_sentence, refused

FRAME = pd.read_csv(io.StringIO(ROWS))


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("table.csv", content)
    return file.getvalue()


def workbook() -> bytes:
    file = io.BytesIO()
    FRAME.to_excel(file, index=False)
    return file.getvalue()


@functools.cache
def packed(ending: str) -> bytes:
    """The table in a format."""
    text = ROWS.encode()
    made: dict[str, Callable[[], bytes]] = {
        ".csv.gz": lambda: gzip.compress(text),
        ".csv.bz2": lambda: bz2.compress(text),
        ".csv.xz": lambda: lzma.compress(text),
        ".csv.zip": lambda: zipped(text),
        ".parquet": FRAME.to_parquet,
        ".xlsx": workbook,
    }
    return made[ending]()


ENDINGS = [".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zip", ".parquet", ".xlsx"]
BYTES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=5)


def read_or_refused(path: Path) -> None:
    """Damage may be of no consequence; else it is told in one sentence."""
    try:
        read_file(path)
    except FedpriorError:
        with one_sentence():
            read_file(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ending", ENDINGS)
@DRAWN
@given(BYTES, st.floats(0.05, 1))
def test_damaged_files(tmp_path: Path, ending: str, changes: list[tuple[float, int]], kept: float) -> None:
    content = bytearray(packed(ending))
    for place, value in changes:
        content[int(place * (len(content) - 1))] = value
    path = tmp_path / f"bad{ending}"
    path.write_bytes(content[: int(kept * len(content))] if kept < 0.5 else content)
    read_or_refused(path)


@functools.cache
def parts() -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(packed(".xlsx"))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.filterwarnings("ignore")
@DRAWN
@example(3, [(0.5, ord("<"))])
@given(st.integers(0, 8), BYTES)
def test_damaged_sheets(tmp_path: Path, which: int, changes: list[tuple[float, int]]) -> None:
    """Whole archives of XML that is not."""
    found = dict(parts())
    name = sorted(found)[which % len(found)]
    content = bytearray(found[name])
    for place, value in changes:
        content[int(place * (len(content) - 1))] = value
    with zipfile.ZipFile(tmp_path / "bad.xlsx", "w") as archive:
        for part, text in (found | {name: bytes(content)}).items():
            archive.writestr(part, text)
    read_or_refused(tmp_path / "bad.xlsx")


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".GZ"])
def test_a_bomb(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes that unpack to 40 MB, where 120 MB are free: formats may lie, or say nothing."""
    packs: dict[str, Callable[[bytes], bytes]] = {".bz2": bz2.compress, ".xz": lzma.compress}
    content = packs.get(ending, gzip.compress)(b"site,x,y\n" + b"a,1,0\n" * 7_000_000)
    path = tmp_path / f"bomb.csv{ending}"
    path.write_bytes(content[:-4] + bytes(4) if ending == ".gz" else content)
    monkeypatch.setattr(room, "available", lambda: 120_000_000)
    with pytest.raises(FedpriorError, match=r"bomb.csv.* would take .*memory"):
        read_file(path)


def test_the_ending_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "TABLE.CSV.GZ").write_bytes(packed(".csv.gz"))
    assert len(read_file(tmp_path / "TABLE.CSV.GZ")) == len(FRAME)


def test_a_zip_file_with_a_password(tmp_path: Path) -> None:
    content = bytearray(packed(".csv.zip"))
    for head, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(head) + flags] |= 1
    (tmp_path / "locked.csv.zip").write_bytes(content)
    with pytest.raises(FedpriorError, match=r"locked.csv.zip' cannot be unpacked: .* encrypted"):
        read_file(tmp_path / "locked.csv.zip")


def test_a_cell_far_away(tmp_path: Path) -> None:
    """One cell in the last corner makes a sheet of 17 billion."""
    book = openpyxl.Workbook()
    for row in [("site", "x", "y"), ("a", 1, 0), ("a", 2, 1)]:
        book.active.append(row)
    book.active["XFD1048576"] = 1
    book.save(tmp_path / "far.xlsx")
    with pytest.raises(FedpriorError, match=r"1,048,576 rows and 16,384 columns .* would take about"):
        read_file(tmp_path / "far.xlsx")


def test_years_as_headings(tmp_path: Path) -> None:
    FRAME.rename(columns={"age": 2024, "dose": 0.5}).astype({2024: float}).to_excel(tmp_path / "y.xlsx", index=False)
    assert list(read_file(tmp_path / "y.xlsx")) == ["site", "2024", "0.5", "class"]


# Databases


@pytest.fixture
def database(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "x.db") as connection:
        FRAME.to_sql("visits", connection, index=False)
    connection.close()
    return tmp_path / "x.db"


@pytest.mark.parametrize(
    "statement",
    [
        "WITH t AS (SELECT 1) DELETE FROM visits",
        "WITH t AS (SELECT 1) INSERT INTO visits SELECT 'x', 1, 2, 'y'",
        "WITH t AS (SELECT 1) UPDATE visits SET age = 0",
        "SELECT 1; DROP TABLE visits",
        "DROP TABLE visits",
        "visits; DROP TABLE visits",
    ],
)
def test_no_statement_changes_a_database(database: Path, statement: str) -> None:
    before = database.read_bytes()
    with one_sentence():
        from_database(f"sqlite:///{database}", statement)
    assert database.read_bytes() == before


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@h/db?password=topsecret",
        "mssql+pyodbc://u@h/db?PWD=topsecret",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3DX%3BPWD%3Dtopsecret",
        "postgresql://u:topsecret@h/db",
    ],
)
def test_passwords_are_not_written_down(url: str) -> None:
    with pytest.raises(FedpriorError, match="has a password") as error:
        from_database(url)
    assert "topsecret" not in str(error.value)


@DRAWN
@example("mysql://h:abc/db")
@example("sqlite:///x.db?timeout=abc")
@example("://")
@given(
    st.builds(
        "{}://{}{}".format,
        st.sampled_from(["sqlite", "mysql", "postgresql", "http", "x", "", "sqlite+nope"]),
        st.sampled_from(["", "h", "h:abc", "u@h:1", "[::1", "/", "//"]),
        st.text(max_size=20).map("/{}".format),
    )
)
def test_addresses(url: str) -> None:
    with one_sentence():
        from_database(url)


@DRAWN
@given(st.text(max_size=40))
def test_statements(tmp_path_factory: pytest.TempPathFactory, statement: str) -> None:
    path = tmp_path_factory.getbasetemp() / "statements.db"
    if not path.exists():
        with sqlite3.connect(path) as connection:
            FRAME.to_sql("visits", connection, index=False)
        connection.close()
    for prefix in ("", "select ", "WITH t AS (SELECT 1) SELECT "):
        with one_sentence():
            from_database(f"sqlite:///{path}", f"{prefix}:{statement}")


def test_names_that_no_file_can_hold(tmp_path: Path) -> None:
    """Half of a surrogate pair, as a column, a level or a class: refused before training."""
    from fedprior.data.columns import Column
    from fedprior.data.target import Classes

    half = "\ud800"
    for make in (
        lambda: Column(half, "number"),
        lambda: Column("a", "category", (half,)),
        lambda: Classes(("a", half)),
    ):
        with one_sentence():
            make()
    assert np.array_equal(Classes(("é", "東")).levels, ("é", "東"))


def test_the_command_says_it_too(tmp_path: Path) -> None:
    content = bytearray(packed(".csv.gz"))
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "bad.csv.gz").write_bytes(content)
    given = [str(tmp_path / "bad.csv.gz"), "--site", "site", "--target", "class"]
    assert "cannot be unpacked" in refused(["compare", *given, "--out", str(tmp_path / "out")], tmp_path)
