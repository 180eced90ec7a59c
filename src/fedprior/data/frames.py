"""Federations of a DataFrame."""

from __future__ import annotations

from typing import Any, Literal

import pandas as pd

from fedprior.data.datasets import from_table
from fedprior.data.federation import Federation
from fedprior.data.own import Kinds, prepared
from fedprior.data.reading import Raw
from fedprior.errors import FedpriorError, shown


def from_frame(
    frame: pd.DataFrame,
    *,
    site: str,
    target: str,
    group: str | None = None,
    time: str | None = None,
    missing: Literal["fill", "refuse"] = "fill",
    scaling: Literal["own", "shared"] = "shared",
    kinds: Kinds = None,
    seed: int = 0,
    **options: Any,
) -> Federation:
    """A federation of a table in memory: one client per value of the column `site`, which predicts `target`.

    The same as data set `table` does with a file, whose options these are; further options are those of splits
    (`validation`, `test`, `split`, `turn`, `keep`).
    """
    if not isinstance(frame, pd.DataFrame):
        raise FedpriorError(f"{shown(frame)} is not a DataFrame: give one, or use fedprior.data.load('table', path=…).")
    for what, value, valid in (("missing", missing, ("fill", "refuse")), ("scaling", scaling, ("own", "shared"))):
        if value not in valid:
            raise FedpriorError(f"{what} = {shown(value)} is not valid: give {' or '.join(valid)}.")
    own = frame.reset_index(drop=True).set_axis([str(name) for name in frame.columns], axis=1)
    table = prepared(Raw(own), target, site, group, time, missing, scaling, kinds, "the table")
    return from_table(table, seed=seed, **options)
