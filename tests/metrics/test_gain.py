"""Gain over a reference: hand examples, a naive bootstrap as oracle, and coverage by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from fedprior.data.target import Classes, Number
from fedprior.metrics import gain, metrics_of, seed_gain

Correct = NDArray[np.bool_]
ACCURACY, NLL = (metrics_of(Classes.numbered(2))[name] for name in ("accuracy", "nll"))
# Clients of unlike size and unlike P(d = -1, 0, 1), so that stratified and pooled resampling differ.
UNLIKE = ((20, (0.1, 0.3, 0.6)), (60, (0.4, 0.4, 0.2)), (200, (0.05, 0.9, 0.05)))


def pair(rng: np.random.Generator, n: int, p: Sequence[float]) -> tuple[Correct, Correct]:
    """Method and reference [n], with d = method - reference drawn from P(-1, 0, 1) = p."""
    d = rng.choice([-1, 0, 1], size=n, p=p)
    both = rng.random(n) < 0.5
    return np.where(d == 0, both, d == 1), np.where(d == 0, both, d == -1)


def unlike_clients(seed: int = 0) -> tuple[list[Correct], list[Correct]]:
    rng = np.random.default_rng(seed)
    pairs = [pair(rng, n, p) for n, p in UNLIKE]
    return [m for m, _ in pairs], [r for _, r in pairs]


def test_gain_by_hand() -> None:
    """Client 0: 3/4 against 1/4, gain 1/2. Client 1: 0/2 against 1/2, gain -1/2. Client 2: 1/1 twice, gain 0.

    Mean (1/2 - 1/2 + 0)/3 = 0; one of three helped, one harmed.
    Client 1 has d = (-1, 0), so a resampled mean is -1, -1/2, 0 with probability 1/4, 1/2, 1/4; the 2.5 % and
    97.5 % quantiles are -1 and 0. Client 2 never differs: [0, 0].
    """
    method = [np.array([1, 1, 1, 0], bool), np.array([0, 0], bool), np.array([1], bool)]
    reference = [np.array([1, 0, 0, 0], bool), np.array([1, 0], bool), np.array([1], bool)]
    result = gain(method, reference)
    assert result.clients.tolist() == [0.5, -0.5, 0]
    assert (result.mean, result.helped, result.harmed) == pytest.approx((0, 1 / 3, 1 / 3))
    assert (result.low[1], result.high[1]) == (-1, 0)
    assert (result.low[2], result.high[2]) == (0, 0)
    assert result.over == "test examples"


def test_multinomial_bootstrap_is_the_index_bootstrap() -> None:
    """Against resampling of example indices: equal up to Monte-Carlo error, a client and the stratified mean.

    A 2.5 % quantile of B = 20,000 draws has error √(0.025 · 0.975 / B) / φ(1.96) · σ ≈ 0.019 σ; two of them,
    five sigma: 0.13 σ, and a client's draws lie on a lattice of step 1/n, so one step more is allowed.
    """
    draws = 20_000
    method, reference = unlike_clients()
    result = gain(method, reference, draws=draws)
    rng = np.random.default_rng(99)
    naive = []
    for m, r in zip(method, reference, strict=True):
        index = rng.integers(len(m), size=(draws, len(m)))
        naive.append(m[index].mean(axis=1) - r[index].mean(axis=1))
    for i, resampled in enumerate(naive):
        low, high = np.quantile(resampled, [0.025, 0.975])
        step = 1 / len(method[i]) + 1e-9
        assert result.low[i] == pytest.approx(low, abs=0.13 * resampled.std() + step)
        assert result.high[i] == pytest.approx(high, abs=0.13 * resampled.std() + step)
    resampled = np.mean(naive, axis=0)
    expected = np.quantile(resampled, [0.025, 0.975])
    assert [result.mean_low, result.mean_high] == pytest.approx(expected, abs=0.13 * resampled.std())


def test_mean_interval_is_stratified() -> None:
    """Half-width 1.96 √(Σ_i var(d_i)/n_i) / N of the normal approximation, to 5 %; pooled is far off."""
    method, reference = unlike_clients()
    result = gain(method, reference, draws=20_000)
    d = [m.astype(int) - r.astype(int) for m, r in zip(method, reference, strict=True)]
    half = 1.96 * math.sqrt(sum(x.var() / x.size for x in d)) / len(d)
    pooled_half = 1.96 * np.concatenate(d).std() / math.sqrt(sum(x.size for x in d))
    assert (result.mean_high - result.mean_low) / 2 == pytest.approx(half, rel=0.05)
    assert pooled_half != pytest.approx(half, rel=0.2)


def test_level_sets_the_width() -> None:
    """Normal quantiles: the half-widths at 95 % and 50 % stand as 1.960 : 0.674 = 2.906."""
    method, reference = unlike_clients()
    wide, narrow = (gain(method, reference, draws=20_000, level=level) for level in (0.95, 0.5))
    ratio = (wide.mean_high - wide.mean_low) / (narrow.mean_high - narrow.mean_low)
    assert ratio == pytest.approx(2.906, rel=0.05)


def test_same_predictions_have_a_gain_of_exactly_zero() -> None:
    method, _ = unlike_clients()
    result = gain(method, method)
    for values in (result.clients, result.low, result.high):
        assert values.tolist() == [0, 0, 0]
    assert result[3:] == (0, 0, 0, 0, 0, "test examples")


def test_client_intervals_cover_the_truth() -> None:
    """400 clients of 100 examples, true gain 0.25 - 0.1 = 0.15: the 95 % intervals hold it in 90-99 %.

    At a true coverage of 0.94 the share has standard error √(0.94 · 0.06 / 400) = 0.012.
    """
    rng = np.random.default_rng(3)
    pairs = [pair(rng, 100, (0.1, 0.65, 0.25)) for _ in range(400)]
    result = gain([m for m, _ in pairs], [r for _, r in pairs])
    covered = np.mean((result.low <= 0.15) & (result.high >= 0.15))
    assert 0.90 <= covered <= 0.99


def test_mean_interval_covers_the_truth() -> None:
    """300 cohorts of the three unlike clients; true mean gain (0.5 - 0.2 + 0)/3 = 0.1."""
    covered = []
    for cohort in range(300):
        result = gain(*unlike_clients(seed=1000 + cohort), seed=cohort, draws=500)
        covered.append(result.mean_low <= 0.1 <= result.mean_high)
    assert 0.89 <= np.mean(covered) <= 0.99


def test_clients_keep_their_interval_in_any_company() -> None:
    method, reference = unlike_clients()
    names = ["ash", "birch", "cedar"]
    result = gain(method, reference, names=names)
    order = [2, 0, 1]
    moved = gain([method[i] for i in order], [reference[i] for i in order], names=[names[i] for i in order])
    for values, permuted in (
        (result.clients, moved.clients),
        (result.low, moved.low),
        (result.high, moved.high),
    ):
        np.testing.assert_array_equal(values[order], permuted)
    assert moved[3:8] == pytest.approx(result[3:8])
    alone = gain(method[:1], reference[:1], names=names[:1])
    assert (alone.low[0], alone.high[0]) == (result.low[0], result.high[0])
    assert gain(method[:1], reference[:1]).low[0] == gain(method, reference).low[0]  # by index


def test_draws_are_keyed_by_seed_and_differ_between_clients() -> None:
    """With shared draws the mean of two equal clients would be as wide as one; apart it is 1/√2 of that."""
    method, reference = unlike_clients()
    np.testing.assert_equal(gain(method, reference, seed=1), gain(method, reference, seed=1))
    assert gain(method, reference, seed=1).mean_low != gain(method, reference, seed=2).mean_low
    twins = gain([method[1]] * 2, [reference[1]] * 2, draws=20_000)
    ratio = (twins.mean_high - twins.mean_low) / (twins.high[0] - twins.low[0])
    assert ratio == pytest.approx(1 / math.sqrt(2), rel=0.1)


def test_client_without_test_examples_is_in_no_mean() -> None:
    method, reference = unlike_clients()
    none = np.zeros(0, bool)
    result = gain([*method, none], [*reference, none])
    assert np.isnan([result.clients[3], result.low[3], result.high[3]]).all()
    assert result[3:] == gain(method, reference)[3:]
    assert all(math.isnan(value) for value in gain([none], [none])[3:8])
    assert gain([], []).clients.shape == (0,)


def test_unpaired_input_is_refused() -> None:
    one, two = np.ones(1, bool), np.ones(2, bool)
    with pytest.raises(ValueError, match="same test examples"):
        gain([one], [two])
    with pytest.raises(ValueError, match="shorter"):
        gain([one, one], [one])
    with pytest.raises(ValueError, match="names must differ"):
        gain([one, one], [one, one], names=["ash", "ash"])
    with pytest.raises(ValueError, match="level"):
        gain([one], [one], level=95)


def test_seed_gain_by_hand() -> None:
    """Three seeds, two clients; differences 0.1, 0.2, 0.6 and -0.1, -0.1, -0.1: gains 0.3 and -0.1, mean 0.1.

    The lowest seed drawn three times has probability 1/27 = 3.7 % > 2.5 %, and so has the highest: the 95 %
    interval is the range, [0.1, 0.6] and [-0.1, -0.1], and for the mean (0, 0.05, 0.25) it is [0, 0.25].
    """
    reference = np.full((3, 2), 0.5)
    method = reference + np.array([[0.1, -0.1], [0.2, -0.1], [0.6, -0.1]])
    result = seed_gain(method, reference, metric=ACCURACY, draws=20_000)
    np.testing.assert_allclose(result.clients, [0.3, -0.1])
    np.testing.assert_allclose(result.low, [0.1, -0.1])
    np.testing.assert_allclose(result.high, [0.6, -0.1])
    assert (result.mean, result.mean_low, result.mean_high) == pytest.approx((0.1, 0, 0.25))
    assert (result.helped, result.harmed, result.over) == (0.5, 0.5, "seeds")


def test_seed_gain_keeps_the_clients_of_a_seed_together() -> None:
    """Client 1 loses what client 0 wins in every seed, so the mean over clients is 0 in every draw."""
    reference = np.zeros((4, 2))
    method = np.array([[1.0, -1.0], [2.0, -2.0], [-4.0, 4.0], [8.0, -8.0]])
    result = seed_gain(method, reference, metric=ACCURACY)
    assert result.low[0] < result.clients[0] < result.high[0]
    assert (result.mean_low, result.mean_high) == (0, 0)


def test_seed_gain_agrees_with_the_index_bootstrap() -> None:
    """Tolerance as for `gain`: five sigma of two Monte-Carlo quantiles is 0.13 σ."""
    rng = np.random.default_rng(5)
    method, reference = rng.random((12, 3)), rng.random((12, 3))
    result = seed_gain(method, reference, metric=ACCURACY, draws=20_000)
    index = rng.integers(12, size=(20_000, 12))
    resampled = (method - reference)[index].mean(axis=1)  # [draws, N]
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)
    tolerance = 0.13 * float(resampled.std(axis=0).max())
    np.testing.assert_allclose(result.low, low, atol=tolerance)
    np.testing.assert_allclose(result.high, high, atol=tolerance)
    assert result.mean_low != seed_gain(method, reference, metric=ACCURACY, draws=20_000, seed=1).mean_low
    mean = np.quantile(resampled.mean(axis=1), [0.025, 0.975])
    assert [result.mean_low, result.mean_high] == pytest.approx(mean, abs=tolerance)


def test_seed_gain_is_positive_where_lower_is_better() -> None:
    """NLL falls from 1 to 0.4 and 0.8: gains 0.6 and 0.2, mean 0.4, helped."""
    method, reference = np.array([[0.4], [0.8]]), np.ones((2, 1))
    assert seed_gain(method, reference, metric=NLL).clients[0] == pytest.approx(0.4)
    assert seed_gain(method, reference, metric=NLL).helped == 1
    assert seed_gain(method, reference, metric=ACCURACY).harmed == 1


def test_rounding_is_no_gain() -> None:
    """+1/20 in one seed and -1/20 in the other is a tie, although the floats sum to -1e-16."""
    method, reference = np.array([[0.85], [0.75]]), np.array([[0.80], [0.80]])
    result = seed_gain(method, reference, metric=ACCURACY)
    assert result.clients[0] != 0  # or this test shows nothing
    assert (result.helped, result.harmed) == (0, 0)


def test_seed_gain_leaves_out_the_untested_and_passes_on_the_diverged() -> None:
    reference = np.array([[0.5, np.nan, 0.5], [0.5, np.nan, 0.5]])
    method = np.array([[0.6, np.nan, 0.5], [0.7, np.nan, 0.5]])
    result = seed_gain(method, reference, metric=ACCURACY)
    assert (result.mean, result.helped) == pytest.approx((0.075, 0.5))
    assert math.isnan(result.clients[1])
    for diverged in (method[:1, 2], method[:, 2]):  # in one seed, in all seeds
        diverged[:] = np.nan
        assert math.isnan(seed_gain(method, reference, metric=ACCURACY).mean)
    infinite = seed_gain(np.array([[np.inf], [1.0]]), np.ones((2, 1)), metric=NLL)
    assert (infinite.mean, infinite.harmed) == (-np.inf, 1)
    assert math.isnan(infinite.low[0])
    both_ways = np.array([[np.inf, 1.0], [np.inf, 1.0]])
    assert math.isnan(seed_gain(both_ways, both_ways[:, ::-1], metric=NLL).mean)  # inf - inf, no warning


def test_seed_gain_refuses_one_seed_and_unlike_shapes() -> None:
    for method, reference in ((np.ones((1, 3)), np.ones((1, 3))), (np.ones((2, 3)), np.ones((2, 1)))):
        with pytest.raises(ValueError, match="S >= 2"):
            seed_gain(method, reference, metric=ACCURACY)


def test_seed_gain_towards_a_value() -> None:
    """A coverage should be 90 %: from 0.7 and 1.0 (off by 0.2 and 0.1) to 0.85 and 0.95 (0.05 each): 0.15 and 0.05."""
    coverage = metrics_of(Number())["coverage90"]
    result = seed_gain(np.array([[0.85], [0.95]]), np.array([[0.7], [1.0]]), metric=coverage)
    assert (result.clients[0], result.helped) == pytest.approx((0.1, 1))


# Scores that are numbers


def scores(seed: int = 0) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
    """Skewed scores of clients of unlike size."""
    rng = np.random.default_rng(seed)
    reference = [rng.normal(size=n) for n in (20, 60, 200)]
    return [
        r + shift + rng.exponential(size=len(r)) for r, shift in zip(reference, (0.2, -1.0, -2.0), strict=True)
    ], reference


def test_gain_of_scores_by_hand() -> None:
    """d = (1, 3): mean 2; a resampled mean is 1, 2, 3 with probability 1/4, 1/2, 1/4, so 95 % reach from 1 to 3."""
    result = gain([np.array([1.5, 3.5])], [np.array([0.5, 0.5])])
    assert (result.clients[0], result.low[0], result.high[0]) == (2, 1, 3)
    assert (result.mean, result.mean_low, result.mean_high, result.helped, result.harmed) == (2, 1, 3, 1, 0)


def test_gain_of_scores_agrees_with_the_naive_bootstrap() -> None:
    """Tolerance as above: five sigma of two Monte-Carlo quantiles is 0.13 σ, a client and the stratified mean."""
    draws = 20_000
    method, reference = scores()
    result = gain(method, reference, draws=draws)
    rng = np.random.default_rng(99)
    naive = np.empty((3, draws))
    for i, (m, r) in enumerate(zip(method, reference, strict=True)):
        for k in range(draws):
            chosen = rng.integers(len(m), size=len(m))
            naive[i, k] = m[chosen].mean() - r[chosen].mean()
        assert result.clients[i] == pytest.approx(m.mean() - r.mean())
        low, high = np.quantile(naive[i], [0.025, 0.975])
        assert [result.low[i], result.high[i]] == pytest.approx([low, high], abs=0.13 * naive[i].std())
    mean = naive.mean(axis=0)
    assert [result.mean_low, result.mean_high] == pytest.approx(
        np.quantile(mean, [0.025, 0.975]), abs=0.13 * mean.std()
    )


def test_right_and_wrong_as_numbers_have_the_same_gain() -> None:
    """0 and 1 as floats go the way of all scores: equal gains, and intervals that differ by Monte-Carlo error alone."""
    method, reference = unlike_clients()
    whole = gain(method, reference, draws=20_000)
    parts = gain([m.astype(float) for m in method], [r.astype(float) for r in reference], draws=20_000)
    np.testing.assert_allclose(parts.clients, whole.clients, atol=1e-15)
    width = whole.mean_high - whole.mean_low
    assert [parts.mean_low, parts.mean_high] == pytest.approx([whole.mean_low, whole.mean_high], abs=0.05 * width)


def test_more_examples_than_fit_at_once() -> None:
    """Of 300,000 examples three draws are made at a time: the interval is ±1.96 σ/√n, here to 15 % with 400 draws."""
    d = np.random.default_rng(0).normal(size=300_000)
    result = gain([d], [np.zeros_like(d)], draws=400)
    assert (result.high[0] - result.low[0]) / 2 == pytest.approx(1.96 * d.std() / math.sqrt(d.size), rel=0.15)


@pytest.mark.parametrize("whose", ["method", "reference", "both"])
def test_a_client_that_diverged_has_no_gain_and_leaves_none_to_the_mean(whose: str) -> None:
    """Right and wrong of those who are fine are booleans; the diverged have nan, in the method or in the reference."""
    given: dict[str, list[NDArray[np.bool_] | NDArray[np.float64]]]
    given = {"method": [np.ones(4, bool), np.ones(3, bool)], "reference": [np.zeros(4, bool), np.zeros(3, bool)]}
    for name in ("method", "reference") if whose == "both" else (whose,):
        given[name][1] = np.full(3, np.nan)
    result = gain(given["method"], given["reference"])
    assert (result.clients[0], result.low[0], result.high[0]) == (1, 1, 1)
    assert np.isnan([result.clients[1], result.low[1], result.high[1]]).all()
    assert np.isnan([result.mean, result.mean_low, result.mean_high]).all()
    assert (result.helped, result.harmed) == (0.5, 0)


def test_infinite_scores_have_a_gain_and_no_interval() -> None:
    """A label that the reference gave no probability: gain inf. Where both gave it none, inf - inf is no number."""
    fine, hopeless = np.array([-1.0, -1.0]), np.array([-1.0, -np.inf])
    better = gain([fine], [hopeless])
    assert (better.clients[0], better.mean, better.helped) == (np.inf, np.inf, 1)
    assert np.isnan([better.low[0], better.high[0], better.mean_low]).all()
    assert gain([hopeless], [fine]).harmed == 1
    assert math.isnan(gain([hopeless], [hopeless]).mean)
    both_ways = gain([fine, hopeless], [hopeless, fine])
    assert both_ways.clients.tolist() == [np.inf, -np.inf]
    assert math.isnan(both_ways.mean)
