"""Raw tables from files of many formats, from a folder with one file per site, or from a database."""

from __future__ import annotations

import bz2
import csv as dialects
import gzip
import io
import lzma
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedprior import room
from fedprior.data.columns import repeated, text
from fedprior.errors import FedpriorError, FedpriorWarning, cut, readable
from fedprior.room import check_room, gib

SEPARATORS = (",", ";", "\t", "|")
TEXT = (".csv", ".tsv", ".txt")
PACKED = (".gz", ".bz2", ".xz", ".zip")
PARQUET, EXCEL = (".parquet", ".pq"), (".xlsx", ".xlsm")
DECIMAL_POINT = r"\s*[-+]?\d+(\.\d*)?([eE][-+]?\d+)?\s*"
DECIMAL_COMMA = r"\s*[-+]?\d+(,\d+)?([eE][-+]?\d+)?\s*"
MISSING = ["", "?", ".", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null"]
"""Cells that are empty. `None` may be a level of a category; among numbers it is empty too."""
PANDAS = "Error tokenizing data. C error: "
"""How its parser begins the sentence that says which line is wrong."""
GROWTH = 12
"""Memory that reading a text file takes at most, in units of its size: its text, its cells and the table."""
CELL = 100
"""Bytes that a cell of a sheet takes at most while it is read, an empty one among others too."""
BLOCK = 1 << 20


class Raw(NamedTuple):
    """A table as it was read, and the file name of each row if there is one file per site."""

    frame: pd.DataFrame
    files: NDArray[np.object_] | None = None


def read(path: str, sql: str | None = None) -> Raw:
    """A table from a file, a folder with one file per site, or a database given by its URL."""
    if "://" in path:
        from fedprior.data.database import from_database

        return Raw(from_database(path, sql))
    if sql is not None:
        raise FedpriorError(f"'{cut(path)}' is not the URL of a database: leave out the query.")
    place = Path(path)
    return read_folder(place) if place.is_dir() else Raw(read_file(place))


def read_file(path: Path) -> pd.DataFrame:
    """One table; its format is told by the ending of its name, and is CSV without a known one."""
    if path.is_dir():
        raise FedpriorError(f"'{path}' is a folder: give one CSV, Parquet or Excel file.")
    if not path.is_file():
        raise FedpriorError(f"there is no file '{path}': give a CSV, Parquet or Excel file, or a folder of them.")
    reader = _parquet if path.suffix.lower() in PARQUET else _excel if path.suffix.lower() in EXCEL else _text_file
    frame = reader(path)
    frame.columns = frame.columns.map(str)
    if (name := repeated(str(name) for name in frame.columns)) is not None:
        raise FedpriorError(f"'{path}' has two columns '{name}': rename one.")
    if frame.empty:
        raise FedpriorError(f"'{path}' has a header but no rows: add some.")
    return frame


def read_folder(path: Path) -> Raw:
    """All files concatenated, and the file name of each row. The columns must be the same, in any order."""
    files = sorted(file for file in path.iterdir() if file.is_file() and _stem(file) is not None)
    if not files:
        raise FedpriorError(f"the folder '{path}' has no .csv files, nor other tables: add one per site.")
    stems = [str(_stem(file)) for file in files]
    if (name := repeated(stems)) is not None:
        raise FedpriorError(f"the folder '{path}' has two tables of the site '{name}': rename or remove one.")
    frames = [read_file(file) for file in files]
    for file, frame in zip(files, frames, strict=True):
        for column in sorted(set(frame.columns) ^ set(frames[0].columns)):
            raise FedpriorError(
                f"only one of '{files[0]}' and '{file}' has a column '{column}': all sites need the same columns."
            )
    names = np.repeat(np.array(stems, dtype=object), [len(frame) for frame in frames])
    return Raw(pd.concat(frames, keys=[str(file) for file in files]), names)


def _stem(file: Path) -> str | None:
    """The name of a table without its endings; None if it is no table."""
    name = file.name
    if file.suffix.lower() in PACKED:
        name = name[: -len(file.suffix)]
    ending = Path(name).suffix
    known = (*TEXT[:2], *(PARQUET + EXCEL if name == file.name else ()))
    return name[: -len(ending)] if ending.lower() in known and not name.startswith((".", "~$")) else None


def _parquet(path: Path) -> pd.DataFrame:
    _needs("pyarrow", "a Parquet file", "parquet")
    from pyarrow import parquet  # type: ignore[import-untyped]

    with readable(f"'{path}' is not a Parquet file that can be read"):
        about = parquet.read_metadata(path)
        size = sum(about.row_group(k).total_byte_size for k in range(about.num_row_groups))
        check_room(f"reading '{path}'", max(size, 8 * about.num_rows * about.num_columns) * 2, "give fewer rows")
        return pd.read_parquet(path, engine="pyarrow")


def _excel(path: Path) -> pd.DataFrame:
    _needs("openpyxl", "an Excel file", "excel")
    with readable(f"'{path}' is not an Excel file that can be read"):
        check_room(f"reading '{path}'", GROWTH // 2 * _unpacked_size(path), "give fewer rows")
        with pd.ExcelFile(path, engine="openpyxl") as book:
            first, *others = book.sheet_names
            _check_sheet(path, book.book[first])
            frame = pd.read_excel(book, sheet_name=first, header=None, keep_default_na=False, na_values=MISSING)
    if frame.empty:
        raise FedpriorError(f"'{path}' is empty: give a sheet with a header and rows.")
    if others:
        told = f"'{path}' has {1 + len(others)} sheets: only the first, '{first}', is read."
        warnings.warn(told, FedpriorWarning, stacklevel=5)
    table = frame.iloc[1:].reset_index(drop=True).infer_objects()
    table = table.apply(_numbers, commas=False)
    table.columns = pd.Index([f"unnamed: {k}" if pd.isna(name) else text(name) for k, name in enumerate(frame.iloc[0])])
    return table


def _check_sheet(path: Path, sheet: Any) -> None:
    """Refuse a sheet that is small as a file but huge as a table, since something stands in a cell far away."""
    sheet.reset_dimensions()  # what the file says of them may be wrong
    rows = columns = 0
    for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
        filled = [k for k, cell in enumerate(row, 1) if cell not in (None, "")]
        if filled:
            rows, columns = number, max(columns, filled[-1])
    told = f"reading the {rows:,} rows and {columns:,} columns of '{path}'"
    check_room(told, CELL * rows * columns, "clear the cells that stand far from the table")


def _needs(module: str, what: str, extra: str) -> None:
    if find_spec(module) is None:
        raise FedpriorError(f"reading {what} needs the package {module}: pip install 'fedprior[{extra}]'.")


def _text_file(path: Path) -> pd.DataFrame:
    check_room(f"reading '{path}'", GROWTH * _unpacked_size(path), "give fewer rows or columns")
    content = _text(path)
    if not content.strip():
        raise FedpriorError(f"'{path}' is empty: give a CSV file with a header and rows.")
    try:
        return _read(content, _separator(path, content))
    except pd.errors.ParserWarning:
        raise FedpriorError(f"the rows of '{path}' have more cells than its header: name every column.") from None
    except (ValueError, dialects.Error) as error:  # pandas' parser errors are ValueErrors
        why = str(error).strip().removeprefix(PANDAS)
        raise FedpriorError(f"'{path}' is not a CSV file that can be read: {why}: correct or drop it.") from None


def _read(content: str, separator: str) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # that cells are dropped
        frame = pd.read_csv(
            io.StringIO(content),
            sep=separator,
            low_memory=False,
            index_col=False,
            keep_default_na=False,
            na_values=MISSING,
        )
    return frame.apply(_numbers, commas=separator != ",")


def _numbers(column: pd.Series[Any], *, commas: bool) -> pd.Series[Any]:
    """A column of numbers with `None` among them, or with decimal commas, as numbers; any other as it is."""
    if pd.api.types.is_numeric_dtype(column) or not (commas or (column == "None").any()):
        return column
    given = column.astype(object).where(column != "None", np.nan)
    cells = given.dropna().astype(str)
    marks = (DECIMAL_POINT, DECIMAL_COMMA) if commas else (DECIMAL_POINT,)
    if not len(cells) or not any(cells.str.fullmatch(pattern).all() for pattern in marks):
        return column
    return pd.to_numeric(given.where(given.isna(), given.astype(str).str.replace(",", ".")))


def _text(path: Path) -> str:
    """The text of a file, with or without a byte order mark, compressed or not."""
    with readable(f"'{path}' cannot be unpacked"):
        content = _content(path)
    try:
        found, wrong = content.decode("utf-8-sig"), content.find(0)
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong >= 0:
        line = content.count(b"\n", 0, wrong) + 1
        raise FedpriorError(f"'{path}' is not UTF-8 text, first in line {line}: save it as a CSV file in UTF-8.")
    return found


def _content(path: Path) -> bytes:
    """What a file holds, unpacked as long as there is room for it: a few bytes can stand for terabytes."""
    openers: Mapping[str, Callable[[Path], Any]] = {
        ".gz": gzip.open,
        ".bz2": bz2.open,
        ".xz": lzma.open,
        ".zip": _member,
    }
    free, found = room.available(), bytearray()
    with openers.get(path.suffix.lower(), _plain)(path) as file:
        while block := file.read(BLOCK):
            found += block
            if free is not None and GROWTH * len(found) > free:
                told = f"reading '{path}' would take more than the {gib(free)} of memory that are free"
                raise FedpriorError(f"{told}: give fewer rows or columns.")
    return bytes(found)


def _unpacked_size(path: Path) -> int:
    """Bytes of a file's content, as far as its format says."""
    size, ending = path.stat().st_size, path.suffix.lower()
    if ending == ".gz" and size >= 4:
        with path.open("rb") as file:
            file.seek(-4, 2)
            return max(size, int.from_bytes(file.read(), "little"))
    if ending in (".zip", *EXCEL):
        with suppress(Exception), zipfile.ZipFile(path) as archive:  # what is damaged is told when it is read
            return sum(entry.file_size for entry in archive.infolist())
    return size


def _plain(path: Path) -> IO[bytes]:
    return path.open("rb")


@contextmanager
def _member(path: Path) -> Iterator[IO[bytes]]:
    """The only file in an archive."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len(names) != 1:
            raise ValueError(f"it holds {len(names)} files and should hold one")
        with archive.open(names[0]) as file:
            yield file


def _separator(path: Path, content: str) -> str:
    """The separator that splits the header into most columns; their names must differ."""
    headers = [next(dialects.reader(io.StringIO(content.lstrip("\r\n")), delimiter=sep)) for sep in SEPARATORS]
    chosen = max(range(len(headers)), key=lambda k: len(headers[k]))  # of equals the first
    name = repeated(name for name in headers[chosen] if name)
    if name is not None:
        raise FedpriorError(f"'{path}' has two columns '{name}': rename one.")
    return SEPARATORS[chosen]
