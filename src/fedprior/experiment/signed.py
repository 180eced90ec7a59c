"""Safetensors files that describe themselves: named arrays, a description in JSON, and a checksum of both.

Files of format 1 have no checksum.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from fedprior.errors import FedpriorError
from fedprior.files import read_tensors

FORMAT = 2
"""Of the description; from 2 on, it begins with a checksum of all the rest."""
_SIGNED = re.compile(r'\{"sha256": "([0-9a-f]{64})", (.*)', re.DOTALL)

Arrays = Mapping[str, NDArray[Any]]


def packed(arrays: Arrays, description: Mapping[str, Any]) -> bytes:
    """The content of a file."""
    told = json.dumps({"format": FORMAT, **description})
    plain = {name: np.ascontiguousarray(values).reshape(values.shape) for name, values in arrays.items()}
    signed = f'{{"sha256": "{_checksum(plain, told)}", {told[1:]}'  # one entry: the order of several is not fixed
    return safetensors.numpy.save(plain, {"fedprior": signed})


def _checksum(arrays: Arrays, told: str) -> str:
    digest = hashlib.sha256(told.encode())
    for name in sorted(arrays):
        values = arrays[name]
        digest.update(f"\n{name} {values.dtype.str} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def read(path: Path, what: str) -> tuple[Arrays, dict[str, Any]]:
    """The entries and the description in a file, as they were written; `what` it should hold."""
    tensors, metadata = read_tensors(path)
    if "fedprior" not in metadata:
        raise FedpriorError(f"'{path}' holds no fedprior {what}: it lacks the description that ours carry.")
    try:
        about = json.loads(metadata["fedprior"])
        arrays = {name: values.numpy() for name, values in tensors.items()}
        checked = "sha256" in about or about.get("format", 1) >= FORMAT
    except (ValueError, TypeError, AttributeError) as error:
        raise unreadable(path, what, error) from None
    signed = _SIGNED.fullmatch(metadata["fedprior"])
    if checked and (signed is None or signed[1] != _checksum(arrays, "{" + signed[2])):
        raise FedpriorError(f"'{path}' is damaged (its checksum is wrong): copy or create it again.")
    return arrays, about


def unreadable(path: str | Path, what: str, error: Exception) -> FedpriorError:
    """The error for a description that is incomplete or malformed."""
    why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
    return FedpriorError(f"the description of the {what} in '{path}' cannot be read ({why}): copy or create it again.")
