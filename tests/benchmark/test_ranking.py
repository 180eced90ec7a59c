"""What cells say together: means over seeds, ranks, intervals over federations, harmed sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedprior.benchmark import Line, ranking
from fedprior.report.benchmark import best_markdown, never_markdown, rank_markdown

PLACES = ("digits iid", "digits 2 labels", "breast cancer iid")


def line(federation: str, method: str, nll: float | None, seed: int = 0, **more: Any) -> Line:
    found = {"accuracy": None if nll is None else 1 - nll, "ece": 0.1, "worst": 0.5, "sites": [0.5, 0.8], **more}
    return Line(federation, seed, method, 1, 10, nll=nll, validation=nll, **found)


def test_ranks_by_hand() -> None:
    """a is first, first, second; b second, second, first; c third each time: means 4/3, 5/3, 3."""
    values = {"a": (0.1, 0.2, 0.3), "b": (0.2, 0.3, 0.1), "c": (0.5, 0.6, None)}
    lines = [line(p, m, v) for m, each in values.items() for p, v in zip(PLACES, each, strict=True)]
    found = ranking(lines).ranks
    assert found["rank"].to_dict() == pytest.approx({"a": 4 / 3, "b": 5 / 3, "c": 3.0})
    assert found["wins"].to_dict() == {"a": 2, "b": 1, "c": 0}
    assert list(found.index) == ["a", "b", "c"]
    assert (found["low"] <= found["rank"]).all()
    assert (found["rank"] <= found["high"]).all()
    assert (found["low"]["c"], found["high"]["c"]) == (3.0, 3.0)


def test_an_interval_is_the_bootstrap_of_its_ranks() -> None:
    """Ranks 1 and 2 in n = 10 federations each half: the mean of a resample is 1 + Binomial(n, ½)/n.

    Its 2.5 % and 97.5 % quantiles are 1.2 and 1.8: P(X ≤ 1) = 0.011, P(X ≤ 2) = 0.055.
    """
    from fedprior.benchmark.ranking import _interval

    assert _interval(np.array([1.0, 2.0] * 5)) == pytest.approx((1.2, 1.8), abs=1e-9)


def test_equal_methods_share_a_rank_and_a_diverged_one_is_last() -> None:
    """1.5, 1.5 and 3."""
    lines = [line("digits iid", "a", 0.1), line("digits iid", "b", 0.1), line("digits iid", "c", None)]
    assert ranking(lines).ranks["rank"].to_dict() == {"a": 1.5, "b": 1.5, "c": 3.0}


def test_seeds_are_averaged_first_and_only_common_ones() -> None:
    """a has seeds 0 and 1, b only 0: both are judged by seed 0, where a is better."""
    lines = [line("digits iid", "a", 0.1), line("digits iid", "a", 0.9, seed=1), line("digits iid", "b", 0.2)]
    found = ranking(lines)
    assert found.figures.loc[("digits iid", "a"), "nll"] == pytest.approx(0.1)
    assert found.figures["seeds"].tolist() == [1, 1]
    assert found.ranks.index[0] == "a"


def test_harmed_sites_are_more_than_a_point_below_local() -> None:
    """Local 0.9, 0.8, 0.7, undefined; the other 0.895 (within a point), 0.6, 0.9, 0.5: one of three."""
    lines = [
        line("digits iid", "local", 0.1, sites=[0.9, 0.8, 0.7, None]),
        line("digits iid", "a", 0.1, sites=[0.895, 0.6, 0.9, 0.5]),
    ]
    found = ranking(lines).figures["harmed"]
    assert found["digits iid", "a"] == pytest.approx(1 / 3)
    assert found["digits iid", "local"] == 0


def test_refused_methods_are_named_and_not_ranked() -> None:
    lines = [line("digits iid", "a", 0.1), Line("digits iid", 0, "m", 1, 10, refused="too large.")]
    found = ranking(lines)
    assert list(found.ranks.index) == ["a"]
    assert found.refused == {"m": "too large."}


def test_one_kind_of_federation() -> None:
    lines = [line(p, m, v) for p, v in zip(PLACES, (0.1, 0.2, 0.3), strict=True) for m in "ab"]
    assert ranking(lines, kind="tables").ranks["federations"].tolist() == [1, 1]
    assert "Tables with few columns: 1 federation, 1 seed." in rank_markdown(lines, "tables")


def test_never_level_with_the_best() -> None:
    """a and b are within 0.02 in NLL or a point of accuracy somewhere; c nowhere."""
    values = {"fedavg": 0.1, "local": 0.11, "ditto": 0.5}
    lines = [line("digits iid", m, v) for m, v in values.items()]
    assert never_markdown(lines) == "Ditto."
    assert "| digits iid | FedAvg 0.100 | Local | 0.110 | 0.100 |" in best_markdown(lines)
