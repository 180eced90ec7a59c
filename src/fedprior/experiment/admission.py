"""New sites under a run's prior: their rows checked and prepared, and their personal models.

A newcomer does what a client does: it joins with the prior's message, trains under it, and personalises. Nothing that
it learns is sent, so the federation stays as it is. It takes as many local updates as there were rounds up to the one
whose prior this is; where a method's clients keep no state, training before personalising has no effect and is left
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fedprior import tree
from fedprior.data.client import ClientData
from fedprior.data.pictures import labelled
from fedprior.data.reading import read_file
from fedprior.data.schema import Schema
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError
from fedprior.experiment.prior import Prior
from fedprior.rng import Key, Keys

HELD_BACK = 5
"""One row of so many is for validation, where a method's personal model needs such rows."""
Rows = tuple[NDArray[Any], NDArray[Any]]
"""Raw inputs [n, ...] and labels [n]."""


def checked(prior: Prior, rows: pd.DataFrame | Rows) -> Rows:
    """A site's raw inputs and labels, as the prior's method takes them."""
    if isinstance(rows, pd.DataFrame):
        schema = _schema(prior)
        rows = schema.matrix(rows), schema.labels(rows)
    x, y = np.asarray(rows[0]), np.asarray(rows[1])
    if not len(y) or len(x) != len(y):
        raise FedpriorError(f"a site joins with its rows, but there are {len(x)} inputs and {len(y)} labels.")
    if x.shape[1:] != prior.shape:
        raise FedpriorError(f"the inputs have shape {list(x.shape[1:])} where the run's have {list(prior.shape)}.")
    return x, prior.target.check("the new site", y)


def read_rows(prior: Prior, place: Path) -> pd.DataFrame | Rows:
    """A site's rows from a file or, of a run on images, from a folder with CLASS/*.png."""
    encoder = prior.preparation.common
    if encoder is not None and encoder.takes_pixels:
        assert isinstance(prior.target, Classes), "folders name classes"
        return labelled(place, prior.shape, prior.target.levels)
    _schema(prior)
    return read_file(place)


def _schema(prior: Prior) -> Schema:
    if prior.preparation.schema is None:
        raise FedpriorError("the run was trained on arrays, not on a table: join from Python with arrays (x, y).")
    return prior.preparation.schema


def updates_of(prior: Prior) -> int:
    """How often a newcomer trains before it personalises."""
    x = torch.zeros(2, *prior.shape, dtype=prior.method.task.dtype)
    blank = ClientData.single(x, torch.zeros(2, dtype=prior.target.dtype))
    keys = Keys.of(Key.from_seed(prior.seed), [""])
    state = prior.method.init_client(tree.expand(prior.down(), 1), blank, keys)
    idle = prior.method.hints.fixed_state or not tree.leaves(state)
    return 0 if idle else prior.round


def admit(prior: Prior, sites: Sequence[Rows], names: Sequence[str], updates: int) -> Any:
    """The personal models P [C, ...] of new sites; inputs are prepared by the site's own rows or the shared sums."""
    method, data = prior.method, _stacked(prior, sites)
    keys = Keys.of(Key.from_seed(prior.seed), names)
    down = tree.expand(prior.down(), len(data))
    client = method.init_client(down, data, keys.fold("join"))
    for number in range(updates):
        client, _, _ = method.local_update(client, down, data, keys.fold("round", number))
    return method.personalise(client, down, data, keys.fold("evaluation", prior.round).fold("personalise"))


def _stacked(prior: Prior, sites: Sequence[Rows]) -> ClientData:
    """Training rows of all; where the method uses validation rows, a part of each site's is kept for that."""
    encoded = [(encoded_inputs(prior, x, x), y) for x, y in sites]
    if not prior.method.uses_validation:
        return _data(prior, encoded)
    cuts = [max(1, len(y) // HELD_BACK) if len(y) > 1 else 0 for _, y in encoded]
    own = [(x[cut:], y[cut:]) for (x, y), cut in zip(encoded, cuts, strict=True)]
    held = [(x[:cut], y[:cut]) for (x, y), cut in zip(encoded, cuts, strict=True)]
    return replace(_data(prior, own), validation=_data(prior, held))


def encoded_inputs(prior: Prior, x: NDArray[Any], training: NDArray[Any]) -> NDArray[Any]:
    """Raw inputs as a network takes them, at a site with these raw training inputs."""
    encoder = prior.preparation.encoder(training)
    found = x if encoder is None else encoder(x)
    if not np.isfinite(found).all():
        row = int(np.isfinite(found).reshape(len(found), -1).all(1).argmin())
        raise FedpriorError(f"row {row + 1} of the new site has a missing or infinite input: fill it in or drop it.")
    return found


def _data(prior: Prior, sites: Sequence[Rows]) -> ClientData:
    sizes = tuple(len(y) for _, y in sites)
    starts = tuple(int(a) for a in np.cumsum([0, *sizes[:-1]]))
    dtype = prior.method.task.dtype
    x = torch.as_tensor(np.concatenate([x for x, _ in sites]), dtype=dtype)
    y = torch.as_tensor(np.concatenate([y for _, y in sites]))
    return ClientData(x, y.to(dtype) if y.is_floating_point() else y, starts, sizes)
