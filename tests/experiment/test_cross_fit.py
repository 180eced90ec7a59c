"""Methods are compared by validation scores in which no client's rows choose the round that they are scored in."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedprior
from fedprior.experiment.selection import CrossFit, Selection, compared_by
from fedprior.methods.fedmap import FedMAP
from support import federation


def fitted(rounds: list[list[float | None]]) -> CrossFit:
    found = CrossFit()
    for scores in rounds:
        found.take(scores)
    return found


def naive(rounds: list[list[float | None]]) -> list[float]:
    """The definition: for each client with rows, its score where the mean over all others is lowest."""
    scores = []
    there = [k for k, value in enumerate(rounds[0]) if value is not None]
    for k in there:
        others = [j for j in there if j != k] or [k]
        means = [np.mean([values[j] for j in others]) for values in rounds]
        scores.append(rounds[int(np.argmin(means))][k])
    return scores  # type: ignore[return-value]


def test_by_hand() -> None:
    """Scores of three clients in two rounds: (1, 4, 4) and (3, 2, 3).

    The mean over all is 3 and 8/3: round 2 is selected. Without the first client the others have 4 and 2.5: round 2,
    and the first scores 3. Without the second: 2.5 and 3, round 1, and it scores 4. Without the third: 2.5 and 2.5, the
    first of the two, and it scores 4. The mean is 11/3, one more than the selected round's 8/3.
    """
    found = fitted([[1.0, 4.0, 4.0], [3.0, 2.0, 3.0]])
    assert found.scores.tolist() == [3.0, 4.0, 4.0]
    assert found.lowest.tolist() == [2.5, 2.5, 2.5]
    assert found.mean([7, 7, 7]) == pytest.approx(11 / 3)


def test_few_examples_count_less() -> None:
    """Scores 3, 4 and 4 with 10, 30 and no examples weigh 1/2, 3/4 and 0: (3/2 + 3) / (5/4) = 18/5."""
    found = CrossFit(np.ones(3), np.array([3.0, 4.0, 4.0]))
    assert found.mean([10, 30, 0]) == pytest.approx(18 / 5)
    assert found.mean([0, 0, 0]) is None
    assert CrossFit().mean([4, 1, 0]) is None


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.tuples(
            st.lists(st.booleans(), min_size=n, max_size=n),
            st.lists(st.lists(st.integers(0, 50), min_size=n, max_size=n), min_size=1, max_size=6),
        )
    )
)
def test_equals_the_definition(drawn: tuple[list[bool], list[list[int]]]) -> None:
    """With clients that have no validation rows among them. In whole numbers, in which ties are ties."""
    there, rounds = drawn
    values = [[64.0 * v if here else None for v, here in zip(row, there, strict=True)] for row in rounds]
    found = fitted(values)
    assert [score for score, here in zip(found.scores.tolist(), there, strict=True) if here] == naive(values)


def test_a_round_in_which_another_client_diverged_is_not_chosen() -> None:
    """In round 2 the third client's model is not finite: the first two stay in round 1, the third is in round 2."""
    found = fitted([[1.0, 1.0, 1.0], [0.5, 0.5, math.nan]])
    assert found.scores[:2].tolist() == [1.0, 1.0]
    assert math.isnan(found.scores[2])
    assert math.isnan(found.mean([1, 1, 1]) or 0.0)


def test_one_client_chooses_for_itself() -> None:
    assert fitted([[1.0], [0.5], [2.0]]).mean([3]) == 0.5
    assert fitted([[1.0, None], [0.5, None], [2.0, None]]).mean([3, 0]) == 0.5


def test_a_round_that_was_not_chosen_replaces_those_before() -> None:
    """As with a method that has converged, or where the last round was asked for."""
    found = fitted([[1.0, 1.0], [0.5, 0.5]])
    found.take([3.0, 5.0], chosen=False)
    assert found.mean([1, 1]) == 4.0


def test_noise_gains_nothing() -> None:
    """Scores that are noise of mean 0: the best of 30 rounds flatters, the cross-fitted score does not.

    Over 400 repetitions with 5 clients the lowest mean of 30 is about -2 / √5 = -0.9; the cross-fitted mean is 0 with a
    standard error of about 1 / √(400 × 5) = 0.022.
    """
    rng = np.random.default_rng(0)
    lowest, crossed = [], []
    for _ in range(400):
        scores = rng.normal(size=(30, 5))
        lowest.append(scores.mean(1).min())
        crossed.append(fitted(scores.tolist()).mean([1] * 5))
    assert np.mean(lowest) < -0.8
    assert abs(np.mean(crossed)) < 4 * 0.022  # type: ignore[arg-type]


def test_a_snapshot_continues() -> None:
    rounds: list[list[float | None]] = [[3.0, 2.0, 5.0], [1.0, 4.0, 4.0], [2.0, 2.0, 2.0]]
    whole, first, second = Selection(), Selection(), Selection()
    for scores in rounds:
        whole.cross_fit.take(scores)
    first.take(1, 3.0, {"test": [np.zeros((1, 2), np.float32)]})
    for scores in rounds[:2]:
        first.cross_fit.take(scores)
    second.restore(first.snapshot(), ("test",))
    second.cross_fit.take(rounds[2])
    assert second.cross_fit.scores.tolist() == whole.cross_fit.scores.tolist()
    assert second.cross_fit.lowest.tolist() == whole.cross_fit.lowest.tolist()


def test_a_run_says_what_it_is_compared_by(tmp_path: Path) -> None:
    """From the journal by the definition; a run of which the last round was asked for has that round's score."""
    data = federation((30, 40, 50, 30))
    found = fedprior.run(FedMAP(), data, rounds=6, eval_every=1, out=tmp_path / "run")
    rows = [[found.journal.values(r, "validation")[c]["nll"] for c in data.clients] for r in range(1, 7)]
    n = np.array(data.validation.size)
    weights = n / (n + 10)
    assert compared_by(found.summary) == pytest.approx(np.average(naive(rows), weights=weights))
    last = fedprior.run(FedMAP(), data, rounds=6, eval_every=1, select="last")
    assert compared_by(last.summary) == pytest.approx(np.average(rows[-1], weights=weights))  # type: ignore[arg-type]
