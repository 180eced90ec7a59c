"""How a run's records are written and read: events as lines of JSON, clients' metrics and logs as CSV.

Files are read line by line, so that a long history takes no memory. A last line that a crash cut off is dropped.
A metric that is undefined for a client is an empty cell; that of a model that diverged is `nan`. Columns are found by
their headers, so files of runs with other metrics stay readable.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedprior.errors import FedpriorError
from fedprior.metrics import Value
from fedprior.names import csv_cell, from_csv_cell

Event = dict[str, Any]
TEXT, WHOLE = ("model", "split", "client"), ("round", "examples", "updated")
"""The columns that are not metrics or logs."""


def jsonable(value: Any) -> Any:
    """Plain JSON: nan and infinities become null, because JSON has none."""
    if isinstance(value, dict):
        return {k: jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, np.generic | np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def as_json(events: Iterable[Event]) -> str:
    """Events as lines."""
    return "".join(json.dumps(jsonable(event)) + "\n" for event in events)


def as_csv(rows: Iterable[Event], header: list[str], *, first: bool = True) -> str:
    """Rows as lines, the `first` of which is the header."""
    lines = [",".join(map(_cell, header))] if first else []
    lines += [",".join([_cell(row.get(column)) for column in header]) for row in rows]
    return "".join(f"{line}\n" for line in lines)


def _cell(value: Any) -> str:
    """One cell; text is quoted where needed, including for line breaks that the `csv` module would not quote."""
    if type(value) is not str:
        return "" if value is None else str(value)
    cell = csv_cell(value)
    quoted = any(special in cell for special in ',"\r\n')
    return '"' + cell.replace('"', '""') + '"' if quoted else cell


def columns(rows: Iterable[Event]) -> list[str]:
    """Every key that occurs, in the order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def header(path: Path) -> list[str]:
    """The columns of a table; none if there is no such file."""
    return [from_csv_cell(cell) for cell in next(csv.reader(_lines(path)), [])]


def read_events(path: Path) -> Iterator[Event]:
    """Events in a file."""
    for line in _lines(path, errors="replace"):
        try:
            yield json.loads(line)
        except ValueError:
            return


def read_rows(path: Path, round: int | None = None) -> Iterator[Event]:
    """The rows of a table, or only those of one round, which is much faster."""
    try:
        lines = csv.reader(_lines(path))
        names = [from_csv_cell(cell) for cell in next(lines, [])]
        where = names.index("round") if round is not None and "round" in names else None
        for cells in lines:
            if len(cells) != len(names):
                return  # cut off within a quoted name that has a line break
            if where is None or cells[where] == str(round):
                yield _parsed(dict(zip(names, cells, strict=True)))
    except UnicodeDecodeError:
        raise FedpriorError(f"'{path}' is damaged (it is not UTF-8): start the run again in a new folder.") from None
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise FedpriorError(f"'{path}' is damaged ({error}): start the run again in a new folder.") from None


def _lines(path: Path, errors: str = "strict") -> Iterator[str]:
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):  # otherwise it was cut off by a crash
                    yield line.decode(errors=errors)


def _parsed(row: dict[str, str]) -> Event:
    parsed: Event = {k: int(v) if k in WHOLE else from_csv_cell(v) if k in TEXT else _value(v) for k, v in row.items()}
    parsed["round"], parsed["client"]
    if parsed.get("examples") == 0:  # older files have nan there
        parsed |= {k: None for k in parsed if k not in (*TEXT, *WHOLE)}
    return parsed


def _value(cell: str) -> Value:
    return float(cell) if cell else None
