"""Nothing is pooled: of a site's table, only the sums of shared scaling and the method's messages leave it.

Two tables differ at one site in what its sums do not tell: its labels change rows. Every other site must then see the
same inputs, bit for bit, and with a method that sends nothing have the same model.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedprior
from fedprior.data import from_frame
from fedprior.data.federation import SPLITS, Federation
from fedprior.data.sums import Sums
from fedprior.methods import build


def table(order: int) -> pd.DataFrame:
    """Three sites with whole numbers, whose sums are exact; the rows of site `a` depend on `order`."""
    rng = np.random.default_rng(0)
    parts = []
    for site, n in (("a", 40), ("b", 30), ("c", 4)):
        own = pd.DataFrame({"x": rng.integers(0, 64, n), "z": rng.integers(0, 64, n), "ill": rng.integers(0, 2, n)})
        parts.append(own.assign(site=site))
    mixed = np.random.default_rng(order)
    rows = np.arange(40)
    test = from_frame(pd.concat(parts), site="site", target="ill").tested[0]
    kept = np.setdiff1d(rows, test)  # rows that are trained or validated on
    parts[0].loc[kept, "ill"] = mixed.permutation(parts[0].loc[kept, "ill"].to_numpy())
    return pd.concat(parts, ignore_index=True)


def federation(order: int) -> Federation:
    return from_frame(table(order), site="site", target="ill")


def inputs(data: Federation, site: str) -> bytes:
    c = data.clients.index(site)
    return b"".join(data.split(split).client(c)[0].numpy().tobytes() for split in SPLITS)


def test_other_sites_see_nothing_but_sums() -> None:
    one, other = federation(1), federation(2)
    assert one.fingerprint() != other.fingerprint()  # the labels of site a differ
    for site in ("b", "c"):
        assert inputs(one, site) == inputs(other, site)
    local = [fedprior.run(build("local"), data, rounds=2, workers=1) for data in (one, other)]
    for site in ("b", "c"):
        first, second = (result.arrays(site) for result in local)
        assert all((first[name] == second[name]).all() for name in first)
    assert any((local[0].arrays("a")[name] != local[1].arrays("a")[name]).any() for name in local[0].arrays("a"))


def test_values_that_change_rows_leave_the_sums_as_they_were() -> None:
    x = np.random.default_rng(0).integers(0, 64, (32, 2)).astype(np.float64)
    mixed = np.stack([np.random.default_rng(k).permutation(column) for k, column in enumerate(x.T)], axis=1)
    for told, again in zip(Sums.of(x).guarded(), Sums.of(mixed).guarded(), strict=True):
        np.testing.assert_array_equal(told, again)


@pytest.mark.parametrize(("method", "copies"), [("local", 0), ("fedavg", 1), ("fedmap", 1)])
def test_every_byte_is_declared(method: str, copies: int, tmp_path: Path) -> None:
    """32 bytes per input before the first round; then the method's messages: 2 · (2 + 1) weights of 4 bytes.

    FedAvg adds its number of rows and FedMAP the log of its weight, in double precision. Validation and test rows are
    evaluated where they are.
    """
    data = federation(1)
    assert data.setup_bytes == 2 * 32
    result = fedprior.run(build(method), data, rounds=3, workers=1, out=tmp_path / "run")
    weights = copies * (2 * 3 * 4 + 8)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    sent = [event["bytes_up"] for event in events if event["kind"] == "round"]
    assert sent == [len(data) * weights] * 3
    assert result.summary["bytes"]["up"] == 3 * len(data) * weights


def test_a_site_of_four_rows_says_nothing() -> None:
    """Its sums are zeros: the scaling is the same without it."""
    frame = table(1)
    without = from_frame(frame[frame["site"] != "c"], site="site", target="ill")
    assert inputs(federation(1), "b") == inputs(without, "b")
