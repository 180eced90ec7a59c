"""The folder of personal models: one file per client, and `index.json`, which maps clients to files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedprior import tree
from fedprior.data.encoder import Encoder
from fedprior.errors import FedpriorError
from fedprior.experiment.personal import Outline, check, packed, read_model
from fedprior.files import new_folder
from fedprior.names import file_name, file_names, on_screen

INDEX = "index.json"
TOLD = 500
"""Number of models between two progress reports."""


def write_models(
    folder: Path,
    models: Any,  # P [N, ...]
    clients: Sequence[str],
    encoders: Sequence[Encoder | None],
    about: Mapping[str, Any],
    tell: Callable[[int], None],
) -> None:
    """Write all models or none; `tell` is called now and then with the number written so far."""
    leaves = {path: leaf.numpy(force=True) for path, leaf in tree.items(models)}
    files = {client: f"{name}.safetensors" for client, name in file_names(clients).items()}
    with new_folder(folder) as new:
        for row, client in enumerate(clients):
            own = {path: leaf[row] for path, leaf in leaves.items()}
            (new / files[client]).write_bytes(packed(client, own, encoders[row] if encoders else None, about))
            if (row + 1) % TOLD == 0:
                tell(row + 1)
        (new / INDEX).write_bytes((json.dumps(files, indent=0) + "\n").encode())


def read_models(folder: Path, clients: Sequence[str], kind: Any, expected: Outline) -> Any:
    """All clients' models as a stack, after checking every entry."""
    files = _files(folder, clients)
    rows = []
    for client in clients:
        path = folder / files[client]
        arrays, about = read_model(path)
        check(path, arrays, expected)
        if about.get("client") != client:
            told = f"'{on_screen(about.get('client'))}' and not to '{on_screen(client)}'"
            raise FedpriorError(f"the model in '{path}' belongs to {told}: copy the run's folder again.")
        rows.append(arrays)
    stacked = {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in expected}
    return tree.unflatten(kind, stacked)


def _files(folder: Path, clients: Sequence[str]) -> dict[str, str]:
    """Client -> file; older folders have no index, and files are named after the clients."""
    path = folder / INDEX
    if not path.exists():
        return {client: f"{file_name(client)}.safetensors" for client in clients}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        files = {client: str(found[client]) for client in clients}
    except (ValueError, KeyError, TypeError):
        raise FedpriorError(f"'{path}' is damaged (it does not name every client's file): copy it again.") from None
    if any(Path(file).name != file for file in files.values()):
        raise FedpriorError(f"'{path}' is damaged (it names a file in another folder): copy it again.")
    return files
