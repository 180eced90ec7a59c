"""Who takes part: sizes, laws and independence of everything but the key and the names."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedprior.errors import FedpriorError
from fedprior.experiment.participation import Cohort, Participation
from fedprior.options import plain_errors
from fedprior.rng import Key

NAMES = tuple(f"site-{k}" for k in range(20))
ROOT = Key.from_seed(3)
SAMPLED = [Participation(rule="fraction", rate=0.3), Participation(rule="bernoulli", rate=0.3)]
sampled = pytest.mark.parametrize("rule", SAMPLED, ids=lambda rule: str(rule.rule))


def draw(
    rule: Participation,
    number: int = 0,
    *,
    names: tuple[str, ...] = NAMES,
    root: Key = ROOT,
    rounds: int = 10_000,
    everyone_trains: bool = False,
) -> Cohort:
    return rule.draw(root, names, number, rounds, everyone_trains=everyone_trains)


def test_all() -> None:
    assert draw(Participation()) == (list(range(20)), list(range(20)))


@pytest.mark.parametrize(
    ("rate", "clients", "least", "expected"),
    [(0.3, 20, 1, 6), (0.5, 7, 1, 4), (0.01, 20, 1, 1), (0.01, 20, 5, 5), (0.2, 3, 9, 3), (1.0, 20, 1, 20)],
)
def test_a_fraction_has_a_fixed_size(rate: float, clients: int, least: int, expected: int) -> None:
    """round(rate · N), where a half goes to the even number (3.5 -> 4); at least `least`, at most everyone."""
    rule = Participation(rule="fraction", rate=rate, least=least)
    for number in range(20):
        reporters = draw(rule, number, names=NAMES[:clients]).reporters
        assert len(reporters) == expected
        assert reporters == sorted(set(reporters))


def test_bernoulli_sizes_vary() -> None:
    """Twenty clients with probability 0.3 each: 40 rounds of one size would be a miracle."""
    assert len({len(draw(SAMPLED[1], number).reporters) for number in range(40)}) > 3


@sampled
def test_a_draw_is_a_function_of_the_key_and_the_round(rule: Participation) -> None:
    cohorts = [draw(rule, number).reporters for number in range(20)]
    assert cohorts == [draw(rule, number).reporters for number in range(20)]
    assert len({tuple(c) for c in cohorts}) > 15, "rounds differ"
    others = [draw(rule, number, root=Key.from_seed(4)).reporters for number in range(20)]
    assert sum(a == b for a, b in zip(cohorts, others, strict=True)) < 3, "seeds differ"


@sampled
def test_a_draw_does_not_depend_on_the_order_of_clients(rule: Participation) -> None:
    order = np.random.default_rng(0).permutation(20)
    shuffled = tuple(NAMES[i] for i in order)
    for number in range(20):
        ours = {NAMES[i] for i in draw(rule, number).reporters}
        theirs = {shuffled[i] for i in draw(rule, number, names=shuffled).reporters}
        assert ours == theirs


@sampled
def test_clients_report_equally_often(rule: Participation) -> None:
    """1000 rounds at rate 0.3: 6 of 20 on average, and every client in 0.3 of them.

    Standard errors: √(20·0.3·0.7/1000) = 0.065 for the mean size, √(0.3·0.7/1000) = 0.0145 for a client's share;
    five of them are allowed. Redrawing an empty round (probability 0.7²⁰ = 0.0008) shifts the mean by 0.005.
    """
    took_part = np.zeros((1000, 20))
    for number in range(1000):
        took_part[number, draw(rule, number).reporters] = 1
    assert abs(took_part.sum(1).mean() - 6) < 0.33
    assert (abs(took_part.mean(0) - 0.3) < 0.073).all()


def test_bernoulli_redraws_until_there_are_enough() -> None:
    """Binomial(20, 0.1) given at least 4: never fewer, and its mean is Σ_{k≥4} k P(k) / Σ_{k≥4} P(k) = 4.44.

    The conditional standard deviation is 0.74, so the mean of 300 rounds lies within 5·0.74/√300 = 0.21.
    """
    rule = Participation(rule="bernoulli", rate=0.1, least=4)
    sizes = [len(draw(rule, number).reporters) for number in range(300)]
    p = {k: math.comb(20, k) * 0.1**k * 0.9 ** (20 - k) for k in range(4, 21)}
    expected = sum(k * q for k, q in p.items()) / sum(p.values())
    assert expected == pytest.approx(4.44, abs=0.01)
    assert min(sizes) == 4
    assert np.mean(sizes) == pytest.approx(expected, abs=0.21)


def test_bernoulli_does_not_draw_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten of twenty at rate 0.01 come up once in 10¹⁵ draws: an error or ten reporters, but not an endless loop."""
    fold = Key.fold

    def counted(self: Key, *tags: str | int) -> Key:
        if tags[0] == "attempt" and int(tags[1]) > 2000:
            pytest.fail("still drawing after 2000 attempts")
        return fold(self, *tags)

    monkeypatch.setattr(Key, "fold", counted)
    try:
        cohort = draw(Participation(rule="bernoulli", rate=0.01, least=10))
    except FedpriorError:
        return
    assert len(cohort.reporters) >= 10


@sampled
def test_last_round_all(rule: Participation) -> None:
    """Everyone reports in the last round, and only there."""
    last = Participation(rule=rule.rule, rate=rule.rate, last_round_all=True)
    assert draw(last, 9, rounds=10).reporters == list(range(20))
    assert draw(last, 8, rounds=10) == draw(rule, 8, rounds=10)
    assert len(draw(last, 8, rounds=10).reporters) < 20


@sampled
def test_everyone_trains(rule: Participation) -> None:
    """All train, and those report who would have reported anyway; otherwise trainers and reporters are the same."""
    plain, all_train = draw(rule, 4), draw(rule, 4, everyone_trains=True)
    assert all_train == (list(range(20)), plain.reporters)
    assert plain.trainers == plain.reporters


@pytest.mark.parametrize("options", [{"rate": 0}, {"rate": 1.5}, {"least": 0}, {"rule": "some"}])
def test_options_out_of_range(options: dict[str, object]) -> None:
    with pytest.raises(FedpriorError, match=next(iter(options))), plain_errors("participation"):
        Participation(**options)  # type: ignore[arg-type]
