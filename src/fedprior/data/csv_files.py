"""The user's own tables: a CSV file with a column that names the site, or a folder with one file per site."""

from __future__ import annotations

import bz2
import csv as dialects
import gzip
import io
import lzma
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedprior.data.columns import Kind, repeated
from fedprior.data.schema import Schema
from fedprior.data.table import Recipe, Table
from fedprior.errors import FedpriorError, FedpriorWarning

RECIPE: Recipe = {
    "model": {"name": "mlp", "hidden": [16]},
    "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.5, "batch_size": 16, "epochs": 5},
}
SEPARATORS = (",", ";", "\t")


def csv(
    path: Path,
    target: str,
    client: str | None = None,
    missing: Literal["refuse", "median"] = "refuse",
    scaling: Literal["own", "shared"] = "own",
    target_kind: Literal["auto", "classes", "number"] = "auto",
    indicators: bool = False,
    kinds: Mapping[str, Kind] | None = None,
) -> Table:
    """Your own CSV data, one file or a folder with one per site: `target` to predict, `client` the site's column.

    Columns are numbers, categories or yes/no, as declared in `kinds` or inferred from their values; keys, dates and
    constants are left out. Missing values are refused, or become the median of the site's own training examples (with
    `scaling=shared`, the mean over all sites); `indicators` adds inputs that mark where.
    """
    frame, files = _folder(path) if path.is_dir() else (_file(path), None)
    for column in (target, client):
        if column is not None and column not in frame:
            raise FedpriorError(f"'{path}' has no column '{column}': its columns are {', '.join(frame.columns)}.")
    if files is None and client is None:
        raise FedpriorError(f"data 'csv' needs the option 'client': which column of '{path}' names the site?")
    told = {**(kinds or {}), **({} if target_kind == "auto" else {target: target_kind})}
    schema = Schema.inferred(frame, target=target, site=client, kinds=told, indicators=indicators, where=f"'{path}'")
    _check(path, schema)
    sites = files if client is None else frame[client].to_numpy()
    x, y = schema.matrix(frame, f"'{path}'"), schema.labels(frame)
    columns = {client or "file": np.asarray(sites)}
    fill = missing == "median"
    return Table(x, y, schema.target, RECIPE, columns, standardise=True, impute=fill, schema=schema, scaling=scaling)


def _check(path: Path, schema: Schema) -> None:
    """Check that there is an input, and report the columns that are not used."""
    if not schema.columns:
        raise FedpriorError(f"'{path}' has no columns besides the target and the site: add the inputs of the model.")
    told = "; ".join(f"'{name}' ({note})" for name, note in schema.left_out.items())
    if not schema.used:
        raise FedpriorError(f"no column of '{path}' can be an input: {told}.")
    if told:
        warnings.warn(
            f"not used as inputs: {told}. To use one, declare it, as in data.kinds.NAME=number.",
            FedpriorWarning,
            stacklevel=3,
        )


def read_table(path: Path) -> pd.DataFrame:
    """One table, as it lies in a file."""
    if not path.is_file():
        raise FedpriorError(f"there is no file '{path}': give the path of a table.")
    return _file(path)


def _file(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise FedpriorError(f"there is no file '{path}': give data.path a CSV file, or a folder of them.")
    content = _text(path)
    if not content.strip():
        raise FedpriorError(f"'{path}' is empty: give a CSV file with a header and rows.")
    try:
        frame = _read(content, _separator(path, content))
    except pd.errors.ParserWarning:
        raise FedpriorError(f"the rows of '{path}' have more cells than its header: name every column.") from None
    except (ValueError, dialects.Error) as error:  # pandas' parser errors are ValueErrors
        raise FedpriorError(f"'{path}' is not a CSV file that can be read: {str(error).strip()}.") from None
    if frame.empty:
        raise FedpriorError(f"'{path}' has a header but no rows: add some.")
    return frame


def _read(content: str, separator: str) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # that cells are dropped
        return pd.read_csv(io.StringIO(content), sep=separator, low_memory=False, index_col=False)


def _text(path: Path) -> str:
    """The text of a file, with or without a byte order mark, compressed or not."""
    unpack: Mapping[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.decompress,
        ".bz2": bz2.decompress,
        ".xz": lzma.decompress,
        ".zip": _unzipped,
    }
    try:
        return unpack.get(path.suffix, bytes)(path.read_bytes()).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FedpriorError(f"'{path}' is not UTF-8 text: save it as a CSV file in UTF-8.") from None
    except (OSError, EOFError, ValueError, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise FedpriorError(f"'{path}' cannot be unpacked: {error}.") from None


def _unzipped(content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        if len(names) != 1:
            raise ValueError(f"it holds {len(names)} files and should hold one")
        return archive.read(names[0])


def _separator(path: Path, content: str) -> str:
    """The separator that splits the header into most columns; their names must differ."""
    headers = [next(dialects.reader(io.StringIO(content.lstrip("\r\n")), delimiter=sep)) for sep in SEPARATORS]
    chosen = max(range(len(headers)), key=lambda k: len(headers[k]))  # of equals the first
    name = repeated(name for name in headers[chosen] if name)
    if name is not None:
        raise FedpriorError(f"'{path}' has two columns '{name}': rename one.")
    return SEPARATORS[chosen]


def _folder(path: Path) -> tuple[pd.DataFrame, NDArray[np.object_]]:
    """All files concatenated, and the file name of each row. The columns must be the same, in any order."""
    files = sorted([*path.glob("*.csv"), *path.glob("*.csv.gz")])
    if not files:
        raise FedpriorError(f"the folder '{path}' has no .csv files: add one per site.")
    frames = [_file(file) for file in files]
    for file, frame in zip(files, frames, strict=True):
        for column in sorted(set(frame.columns) ^ set(frames[0].columns)):
            raise FedpriorError(
                f"only one of '{files[0]}' and '{file}' has a column '{column}': all sites need the same columns."
            )
    stems = [file.name.removesuffix(".gz").removesuffix(".csv") for file in files]
    names = np.repeat(np.array(stems, dtype=object), [len(frame) for frame in frames])
    return pd.concat(frames, keys=[str(file) for file in files]), names
