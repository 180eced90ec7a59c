"""Finished cells: one line of JSON each, so that a benchmark goes on where it stopped."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedprior.errors import FedpriorError

FILE = "cells.jsonl"


@dataclass(frozen=True)
class Line:
    """What one method did on one federation and seed, on test rows; or why it could not be run there."""

    federation: str
    seed: int
    method: str
    tries: int
    rounds: int
    options: dict[str, Any] = field(default_factory=dict)  # of the best try on validation
    rate: float = 1.0  # its multiple of the recipe's learning rate
    validation: float | None = None  # its mean validation NLL
    accuracy: float | None = None  # means over sites; None: a model diverged
    nll: float | None = None
    ece: float | None = None
    worst: float | None = None  # mean accuracy of the worst tenth of the sites
    sites: list[float | None] = field(default_factory=list)  # each site's accuracy
    cpu_seconds: float = 0.0  # of the best try
    bytes: int = 0  # sent in both directions by all sites, until the last round
    refused: str | None = None

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)


_LINE = TypeAdapter(Line)


def read_lines(folder: Path) -> list[Line]:
    """All finished cells of a folder; a last line that was cut off is not one."""
    path = folder / FILE
    if not path.exists():
        return []
    found = []
    *whole, _ = path.read_bytes().split(b"\n")
    for number, text in enumerate(whole, 1):
        try:
            found.append(_LINE.validate_json(text, strict=True))
        except ValidationError:
            raise FedpriorError(
                f"line {number} of '{path}' is not a finished cell: remove it, or choose another folder."
            ) from None
    return found


def add_line(folder: Path, line: Line) -> None:
    """Append a finished cell, after anything that a crash cut off has been dropped."""
    path = folder / FILE
    with path.open("a+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
            file.truncate(whole)
        file.write((json.dumps(asdict(line), ensure_ascii=False, allow_nan=False) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
