"""Who takes part: sizes, laws and independence of everything but the key and the names."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedprior
from fedprior.errors import FedpriorError
from fedprior.experiment.participation import Drawn, Participation
from fedprior.methods.fedavg import FedAvg
from fedprior.rng import Key
from support import TRAIN, bound, federation, rounds

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
) -> Drawn:
    return rule.draw(root, names, number, rounds, everyone_trains=everyone_trains)


def test_all() -> None:
    assert draw(Participation()) == (list(range(20)), list(range(20)))


@pytest.mark.parametrize(
    ("rate", "clients", "least", "expected"),
    [(0.3, 20, 1, 6), (0.5, 7, 1, 4), (0.01, 20, 1, 1), (0.01, 20, 5, 5), (0.2, 3, 9, 3), (1.0, 20, 1, 20)],
)
def test_a_fraction_has_a_fixed_size(rate: float, clients: int, least: int, expected: int) -> None:
    """round(rate · N), where a half goes to the even number (3.5 -> 4); at least `least`, at most everyone."""
    rule = Participation(rule="fraction", rate=rate, min_reporters=least)
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
    rule = Participation(rule="bernoulli", rate=0.1, min_reporters=4)
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
        cohort = draw(Participation(rule="bernoulli", rate=0.01, min_reporters=10))
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


@pytest.mark.parametrize(
    "options", [{"rate": 0}, {"rate": 1.5}, {"min_reporters": 0}, {"rule": "some"}, {"newcomers": -1}]
)
def test_options_out_of_range(options: dict[str, object]) -> None:
    with pytest.raises(FedpriorError, match=next(iter(options))) as error:
        Participation(**options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


# Newcomers


RULES = [Participation(), *SAMPLED, Participation(rule="bernoulli", rate=0.3, last_round_all=True)]


@pytest.mark.parametrize("everyone_trains", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_newcomers_take_no_part(rule: Participation, everyone_trains: bool) -> None:
    """Five of twenty neither train nor report in any of forty rounds, the last one included; the others all do.

    At rate 0.3 one of the others stays away from all rounds with probability 0.7⁴⁰ = 6e-7.
    """
    late = replace(rule, newcomers=5)
    new = late.newcomer_ids(ROOT, NAMES)
    assert len(new) == 5
    assert new == sorted(set(new))
    rest = [i for i in range(20) if i not in new]
    trained, reported = set(), set()
    for number in range(40):
        cohort = draw(late, number, rounds=40, everyone_trains=everyone_trains)
        assert cohort.trainers == (rest if everyone_trains else cohort.reporters)
        trained |= set(cohort.trainers)
        reported |= set(cohort.reporters)
    assert trained == reported == set(rest)


@sampled
def test_the_others_are_drawn_as_if_they_were_all(rule: Participation) -> None:
    """Reporters are those of the same rule with the newcomers' names struck off: 0.3 of 15 is 4, not 6."""
    late = replace(rule, newcomers=5)
    rest = [i for i in range(20) if i not in late.newcomer_ids(ROOT, NAMES)]
    others = tuple(NAMES[i] for i in rest)
    for number in range(20):
        reporters = draw(late, number).reporters
        assert reporters == [rest[k] for k in draw(rule, number, names=others).reporters]
        assert rule.rule == "bernoulli" or len(reporters) == 4


def test_nobody_is_new_unless_told() -> None:
    assert Participation().newcomer_ids(ROOT, NAMES) == []


def test_newcomers_depend_on_the_seed_alone() -> None:
    """Not on the order of the clients, the rule or the round; more newcomers are the same ones and others."""
    names = {NAMES[i] for i in Participation(newcomers=5).newcomer_ids(ROOT, NAMES)}
    shuffled = tuple(NAMES[i] for i in np.random.default_rng(0).permutation(20))
    assert {shuffled[i] for i in Participation(newcomers=5).newcomer_ids(ROOT, shuffled)} == names
    for rule in RULES:
        assert {NAMES[i] for i in replace(rule, newcomers=5).newcomer_ids(ROOT, NAMES)} == names
    assert names < {NAMES[i] for i in Participation(newcomers=6).newcomer_ids(ROOT, NAMES)}


def test_clients_are_new_equally_often() -> None:
    """Five of twenty in 1000 seeds: each client in a quarter, ± 5·√(0.25·0.75/1000) = 0.068."""
    new = np.zeros((1000, 20))
    for seed in range(1000):
        new[seed, Participation(newcomers=5).newcomer_ids(Key.from_seed(seed), NAMES)] = 1
    assert (new.sum(1) == 5).all()
    assert (abs(new.mean(0) - 0.25) < 0.068).all()


def test_the_first_newcomers_are_the_first_by_name() -> None:
    """Whatever the seed and the order; so that a skew of the data may be theirs alone."""
    rule, shuffled = Participation(newcomers=3, joining="first"), list(reversed(NAMES))
    for seed in (0, 1):
        assert [NAMES[i] for i in rule.newcomer_ids(Key.from_seed(seed), NAMES)] == sorted(NAMES)[:3]
        assert sorted(shuffled[i] for i in rule.newcomer_ids(Key.from_seed(seed), shuffled)) == sorted(NAMES)[:3]
    assert not set(draw(rule).trainers) & set(rule.newcomer_ids(ROOT, NAMES))


@pytest.mark.parametrize("newcomers", [20, 21])
def test_somebody_must_be_there_from_the_start(newcomers: int) -> None:
    with pytest.raises(FedpriorError, match=f"newcomers = {newcomers} leaves none of 20 clients to train: lower it"):
        draw(Participation(newcomers=newcomers))
    assert len(draw(Participation(newcomers=19)).trainers) == 1


def test_too_many_newcomers_write_nothing(tmp_path: Path) -> None:
    data = fedprior.data.load("synthetic", samples=20)
    with pytest.raises(FedpriorError, match="newcomers = 10 leaves none of 10 clients"):
        fedprior.run(FedAvg(), data, out=tmp_path / "new", participation={"newcomers": 10})
    assert not (tmp_path / "new").exists()


def test_a_federation_learns_nothing_from_newcomers() -> None:
    """FedAvg with two newcomers gives them the model of a federation that lacks them; when they train, another."""
    data, late = federation(), Participation(newcomers=2)
    new = late.newcomer_ids(Key.from_seed(5), data.clients)
    fewer = data.select([i for i in range(len(data)) if i not in new])
    ours = rounds(bound("fedavg", data), data, participation=late)
    theirs = rounds(bound("fedavg", fewer), fewer)
    others = rounds(bound("fedavg", data), data)
    joined = data.clients[new[0]]
    for path, weights in theirs.models[fewer.clients[0]].items():
        np.testing.assert_allclose(ours.models[joined][path], weights, rtol=1e-9, atol=1e-12)
        assert abs(ours.models[joined][path] - others.models[joined][path]).max() > 1e-6


def test_a_run_names_its_newcomers_and_measures_them() -> None:
    """Seven clients, two of them new: five train in every round, and all seven are evaluated."""
    data = federation()
    result = fedprior.run(FedAvg(train=TRAIN), data, rounds=2, seed=4, participation=Participation(newcomers=2))
    new = Participation(newcomers=2).newcomer_ids(Key.from_seed(4), data.clients)
    assert result.summary["newcomers"] == [data.clients[i] for i in new]
    assert result.summary["participation"]["newcomers"] == 2
    trained = [e for e in result.journal.events if e["kind"] == "round"]
    assert [(e["trainers"], e["reporters"]) for e in trained] == [(5, 5), (5, 5)]
    assert list(result.clients.index) == list(data.clients)
    assert result.clients["accuracy"].notna().all()
