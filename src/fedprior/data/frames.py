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
    """A federation of a table in memory, with one client per site.

    Args:
        frame: One row per case.
        site: The column that names the site.
        target: The column to predict: classes, or a number.
        group: A column; rows with the same value stay together in the splits.
        time: A column; each site's latest rows are tested on.
        missing: "fill" fills missing values in and marks them, "refuse" refuses them.
        scaling: Whether inputs are scaled by sums over all sites, or at each site by its own rows.
        kinds: Kinds of columns that are guessed wrongly, such as `{"stage": "category"}`.
        seed: Determines the splits.
        options: Those of splits: `validation`, `test`, `split`, `turn`, `keep`.

    Returns:
        The federation, as `fedprior.data.load("table", path=...)` makes it of a file.

    Raises:
        FedpriorError: If a column does not exist, or nothing is left to learn from.

    Examples:
        >>> import fedprior, pandas as pd
        >>> table = pd.DataFrame({"site": ["a", "b"] * 20, "age": [30, 50, 40, 60, 50] * 8})
        >>> table["ill"] = ["yes", "no", "no", "yes"] * 10
        >>> fedprior.data.from_frame(table, site="site", target="ill").clients
        ('a', 'b')
    """
    if not isinstance(frame, pd.DataFrame):
        raise FedpriorError(f"{shown(frame)} is not a DataFrame: give one, or use fedprior.data.load('table', path=…).")
    for what, value, valid in (("missing", missing, ("fill", "refuse")), ("scaling", scaling, ("own", "shared"))):
        if value not in valid:
            raise FedpriorError(f"{what} = {shown(value)} is not valid: give {' or '.join(valid)}.")
    own = frame.reset_index(drop=True).set_axis([str(name) for name in frame.columns], axis=1)
    table = prepared(Raw(own), target, site, group, time, missing, scaling, kinds, "the table")
    return from_table(table, seed=seed, **options)
