"""Several methods together: a table, a choice by validation alone, and words that say what is known."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedprior
from fedprior import Comparison, Result
from fedprior.data.federation import Federation, from_arrays
from fedprior.methods import build
from fedprior.protocol import METHODS
from fedprior.training import Train
from support import federation

QUICK = Train(lr=0.1, epochs=1, batch_size=8)


@pytest.fixture(scope="module")
def data() -> Federation:
    return federation(dtype=torch.float32)


@pytest.fixture(scope="module")
def found(data: Federation) -> Comparison:
    return fedprior.compare([build("fedmap", {}, QUICK)], data, rounds=3)


def changed(result: Result, split: str, nll: float | None, **scores: float) -> Result:
    """The same result, whose selected models have other means."""
    summary: dict[str, Any] = deepcopy(result.summary)
    means = summary["selected"]["personal"][split]
    for name, value in {"nll": nll, **scores}.items():
        means[name]["mean"] = value
    if split == "validation":
        summary["selected"]["cross_fitted"] = nll
    return replace(result, summary=summary)


def test_a_comparison_is_a_mapping(found: Comparison) -> None:
    assert list(found) == ["local", "fedavg_ft", "fedmap"]
    assert len(found) == 3
    assert found["fedmap"].name == "fedmap"
    assert "fedprox" not in found


def test_the_table(found: Comparison) -> None:
    """A row for each method: its means on test, its validation NLL, and its gain over Local."""
    table = found.table
    assert list(table.index) == list(found)
    for name, result in found.items():
        assert table.loc[name, "accuracy"] == result.scores["accuracy"]["mean"]
        assert table.loc[name, "validation"] == result.summary["selected"]["cross_fitted"]
    gains = ["gain", "gain_low", "gain_high", "gain_helped", "gain_harmed"]
    assert table.loc["local", gains].isna().all()
    gain = found["fedmap"].gain()
    expected = [gain.mean, gain.mean_low, gain.mean_high, gain.helped, gain.harmed]
    assert table[gains].to_numpy()[2].tolist() == pytest.approx(expected)


def test_the_table_of_clients(found: Comparison, data: Federation) -> None:
    """A row for each client, a column for each method, in accuracy."""
    assert list(found.clients.columns) == list(found)
    assert tuple(found.clients.index) == data.clients
    for name, result in found.items():
        pd.testing.assert_series_equal(found.clients[name], result.clients["accuracy"], check_names=False)


def test_the_best_is_so_on_validation_and_never_on_test(found: Comparison) -> None:
    """FedMAP is far better on test and Local on validation: Local. The other way round: FedMAP. A tie: the first."""
    local, other = found["local"], found["fedmap"]
    shown = changed(changed(other, "validation", 0.9), "test", 0.01, accuracy=1.0)
    assert Comparison({"local": changed(local, "validation", 0.5), "fedmap": shown}).best == "local"
    shown = changed(changed(other, "validation", 0.1), "test", 9.0, accuracy=0.0)
    assert Comparison({"local": changed(local, "validation", 0.5), "fedmap": shown}).best == "fedmap"
    tied = {"fedmap": changed(other, "validation", 0.5), "local": changed(local, "validation", 0.5)}
    assert Comparison(tied).best == "fedmap"


@pytest.mark.parametrize("lost", [math.nan, None])
def test_who_diverged_is_not_the_best(lost: float | None, found: Comparison) -> None:
    """`None` is how a summary on disk has it."""
    pair = {"fedmap": changed(found["fedmap"], "validation", lost), "local": changed(found["local"], "validation", 7.0)}
    assert Comparison(pair).best == "local"
    assert Comparison({name: changed(r, "validation", lost) for name, r in pair.items()}).best is None


def test_without_validation_nothing_is_recommended() -> None:
    rng = np.random.default_rng(0)
    sites = {k: (rng.normal(size=(20, 3)), np.arange(20) % 2) for k in "ab"}
    found = fedprior.compare([build("fedavg", {}, QUICK)], from_arrays(sites, validation=0), rounds=1)
    assert found.best is None
    assert found.verdict == "No method has a validation NLL to be chosen by."
    assert found.table["validation"].isna().all()
    assert "No method" in found._repr_html_()


def test_the_verdict(found: Comparison) -> None:
    """Two sentences: what validation says, and what test says of that, in numbers."""
    chosen = Comparison({**found, "fedmap": changed(found["fedmap"], "validation", 0.0)})
    gain = chosen["fedmap"].gain("nll")
    assert chosen.verdict == (
        "FedMAP has the lowest validation NLL of 3 methods. Over Local it gains "
        f"{gain.mean:+.3f} [{gain.mean_low:+.3f}, {gain.mean_high:+.3f}] in NLL per client on test; of 7 clients "
        f"it clearly helps {(gain.low > 0).sum()} and harms {(gain.high < 0).sum()}."
    )
    local = Comparison({**found, "local": changed(found["local"], "validation", 0.0)})
    assert local.verdict == "Local has the lowest validation NLL of 3 methods."


def test_a_line_is_short_however_many_methods(found: Comparison) -> None:
    assert repr(found).startswith("Comparison(custom, 7 clients, test accuracy: local ")
    long = replace(found["local"], federation=replace(found["local"].federation, name="x" * 500))
    assert len(repr(Comparison(dict.fromkeys(METHODS, long)))) < 400
    assert f"and {len(METHODS) - 6} more" in repr(Comparison(dict.fromkeys(METHODS, long)))


def test_a_page_escapes_names(found: Comparison) -> None:
    page = Comparison({"<b>x</b>": found["local"]})
    page.results["<b>x</b>"] = found["local"]
    shown = page._repr_html_()
    assert "<table" in shown
    assert "<b>" not in shown
    assert "0." in found._repr_html_()
