"""Robust aggregation and client-level differential privacy: every formula by hand, and what they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor

from fedprior.errors import FedpriorError
from fedprior.experiment import run
from fedprior.experiment.participation import Participation
from fedprior.experiment.wording import privacy
from fedprior.guards import SECRET, Krum, Median, Noisy, NormBound, Trimmed, bounded, changed, changes, epsilon, spent
from fedprior.methods import build
from fedprior.protocol import Weights
from fedprior.rng import Key
from support import bound, federation, keys

DELTA = torch.tensor([[0.0, 1.0], [1.0, 2.0], [2.0, 30.0], [100.0, 4.0]], dtype=torch.float64)


def inner() -> Any:
    return build("fedavg")


def test_a_median_by_hand() -> None:
    """Of 0, 1, 2, 100 it is 1.5, of 1, 2, 4, 30 it is 3; of three clients the middle one."""
    assert Median(inner=inner()).screen(DELTA).tolist() == [[1.5, 3.0]] * 4
    assert Median(inner=inner()).screen(DELTA[:3]).tolist() == [[1.0, 2.0]] * 3


def test_a_trimmed_mean_by_hand() -> None:
    """A quarter of four clients is one at each end: (1 + 2)/2 and (2 + 4)/2. Half of all is never dropped."""
    assert Trimmed(inner=inner(), share=0.25).screen(DELTA).tolist() == [[1.5, 3.0]] * 4
    assert Trimmed(inner=inner(), share=0.0).screen(DELTA)[0].tolist() == [25.75, 9.25]
    assert Trimmed(inner=inner(), share=0.49).screen(DELTA[:1]).tolist() == DELTA[:1].tolist()


def test_a_norm_bound_by_hand() -> None:
    """Lengths 3, 4, 5, 50: the median is 4.5, so the third is shortened to 4.5 and the last to a tenth of 45."""
    delta = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0], [30.0, 40.0]], dtype=torch.float64)
    found = NormBound(inner=inner()).screen(delta)
    assert torch.allclose(torch.linalg.vector_norm(found, dim=1), torch.tensor([3.0, 4.0, 4.5, 4.5]).double())
    assert torch.allclose(found[3], torch.tensor([2.7, 3.6]).double()), "the direction stays"
    assert bounded(torch.zeros(1, 2).double(), 1.0).tolist() == [[0.0, 0.0]]


def test_krum_by_hand() -> None:
    """Points 0, 1, 3, 10 on a line and one bad client: each has 4 - 1 - 2 = 1 nearest. Squares are 1, 1, 4, 49."""
    delta = torch.tensor([[0.0], [1.0], [3.0], [10.0]], dtype=torch.float64)
    assert Krum(inner=inner(), bad=1).screen(delta).tolist() == [[0.0]] * 4, "of equals the first"
    assert Krum(inner=inner(), bad=0).screen(delta).tolist() == [[1.0]] * 4, "two nearest: 10, 5, 13, 130"


def test_changes_there_and_back() -> None:
    w = {"b": torch.randn(3), "a": torch.randn(2, 2)}
    sent = {"b": torch.randn(4, 3), "a": torch.randn(4, 2, 2)}
    delta = changes(sent, w)
    assert delta.shape == (4, 7)
    back = changed(sent, w, delta)
    assert all(torch.allclose(back[name], sent[name]) for name in sent)


@pytest.mark.parametrize("name", ["median", "trimmed", "krum", "normbound"])
def test_one_client_that_sends_nonsense_does_no_harm(name: str) -> None:
    """A sign flip times 1000: the plain mean is thrown far away, the guarded one stays where honest clients are."""
    data = federation()
    plain, guarded = bound("fedavg", data), bound(f"fedavg+{name}", data)
    server = plain.init_server(Key.from_seed(0), len(data))
    ids = torch.arange(len(data))
    down = plain.broadcast(server, ids)
    stack = Weights({k: v.expand(len(data), *v.shape) for k, v in down.w.items()})
    _, up, _ = plain.local_update(
        plain.init_client(stack, data.train, keys(data)), stack, data.train, keys(data, "r", 0)
    )
    honest = plain.aggregate(server, up, ids).w
    bad = {k: v.clone() for k, v in up.w.items()}
    for k, v in bad.items():
        v[0] = server.w[k] - 1000 * (v[0] - server.w[k])
    poisoned = up._replace(w=bad)

    def off(method: Any) -> float:
        found = method.aggregate(server, poisoned, ids).w
        return float(torch.cat([(found[k] - honest[k]).flatten() for k in honest]).norm())

    moved = float(torch.cat([(honest[k] - server.w[k]).flatten() for k in honest]).norm())
    assert off(plain) > 20 * moved
    assert off(guarded) < 2 * moved


def test_methods_whose_server_does_more_are_refused() -> None:
    for name in (
        "fedpac+median",
        "scaffold+krum",
        "fedamp+trimmed",
        "pfedvem+dp",
        "fedavg+opt+dp",
        "fedavg+opt+median",
    ):
        with pytest.raises(FedpriorError, match="is not possible"):
            build(name)
    assert build("pfedme+median").about.name == "pfedme+median"
    assert build("pfedme+dp").about.name == "pfedme+dp"
    assert build("fedavg+median+opt").about.name == "fedavg+median+opt"


# Differential privacy


def exact(noise: float, rounds: int, delta: float) -> float:
    """Balle and Wang, ICML 2018: T Gaussian mechanisms are one with μ = √T / z, and δ(ε) has a closed form."""
    mu = rounds**0.5 / noise

    def excess(eps: float) -> float:
        return float(norm.cdf(mu / 2 - eps / mu) - np.exp(eps) * norm.cdf(-mu / 2 - eps / mu)) - delta

    return float(brentq(excess, 0, 500))


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (2.0, 10), (4.0, 50)])
def test_the_accountant_is_close_to_the_exact_answer_and_never_below(noise: float, rounds: int) -> None:
    found, least = epsilon(noise, rounds, 1e-5), exact(noise, rounds, 1e-5)
    assert least <= found <= 1.15 * least


def test_taking_part_by_chance_promises_no_more() -> None:
    """How many came is seen and divides the mean, and everyone may come in the last round: here in the only one."""
    part = Participation(rule="bernoulli", rate=0.1, last_round_all=True)
    method = build("fedavg+dp", {"dp": {"noise": 2.0}})
    result = run(method, federation((20, 20, 20)), rounds=1, workers=1, participation=part)
    least = exact(2.0, 1, 1e-5)
    assert least <= result.summary["privacy"]["epsilon_at_delta"]["1e-05"] <= 1.15 * least


def test_a_clients_change_is_bounded_and_its_size_is_not_sent() -> None:
    data = federation()
    method = bound("fedavg+dp", data, dp={"bound": 0.01})
    server = method.init_server(Key.from_seed(0), len(data))
    down = Weights({k: v.expand(len(data), *v.shape) for k, v in server.w.items()})
    state = method.init_client(down, data.train, keys(data))
    _, up, _ = method.local_update(state, down, data.train, keys(data, "round", 0))
    assert torch.linalg.vector_norm(changes(up.w, down.w), dim=1).max() <= 0.01 * (1 + 1e-9)
    assert up.n.tolist() == [1.0] * len(data)


def test_the_noise_has_its_deviation_and_is_new_every_round() -> None:
    """z C / R = 2 · 3 / 7; over the network's 51 weights and 40 rounds the deviation is within five per cent of it."""
    data = federation()
    method = bound("fedavg+dp", data, dp={"bound": 3.0, "noise": 2.0})
    server = method.init_server(Key.from_seed(1), len(data))
    ups = bound("fedavg", data).aggregate  # the plain mean of equal uplinks is themselves
    assert callable(ups)
    still = {k: v.expand(7, *v.shape).clone() for k, v in server.w.items()}
    up = method.types[3](still, torch.ones(7, dtype=torch.float64))
    draws = []
    for number in range(40):
        found = method.aggregate(Noisy(server.w, server.seed, torch.tensor(number)), up, torch.arange(7))
        draws.append(torch.cat([(found.w[k] - server.w[k]).flatten() for k in sorted(found.w)]))
    noise = torch.stack(draws)
    assert float(noise.std()) == pytest.approx(6 / 7, rel=0.05)
    assert not torch.equal(noise[0], noise[1])
    again = method.aggregate(Noisy(server.w, server.seed, torch.tensor(0)), up, torch.arange(7))
    assert torch.equal(draws[0], torch.cat([(again.w[k] - server.w[k]).flatten() for k in sorted(again.w)]))


@pytest.mark.parametrize("guard", ["median", "trimmed", "normbound", "krum"])
def test_a_guard_and_noise_are_not_combined(guard: str) -> None:
    """One client moves a median by more than C / R: the ε of a mean would not hold for it."""
    for name in (f"fedavg+{guard}+dp", f"fedavg+{guard}+ft+dp", f"fedavg+dp+{guard}"):
        with pytest.raises(FedpriorError, match="is not possible"):
            build(name)


def one_step(name: str, sent: list[float], n: list[float], **options: Any) -> Tensor:
    """The change of every weight at the server, [D], where all of a client's weights change by what it `sent`."""
    method = bound(name, federation(), dp={"bound": 3.0, "noise": 2.0}, **options)
    server = method.init_server(Key.from_seed(1), len(sent))
    own = {k: torch.stack([v + change for change in sent]) for k, v in server.w.items()}
    found = method.aggregate(
        server, method.types[3](own, torch.tensor(n, dtype=torch.float64)), torch.arange(len(sent))
    )
    return torch.cat([(found.w[k] - server.w[k]).flatten() for k in sorted(found.w)])


@pytest.mark.parametrize("name", ["fedavg", "pfedme", "pfedbred"])
def test_the_servers_step_sees_the_noisy_mean_alone(name: str) -> None:
    """A step of β = 2 gives 2 (mean + noise); with noise added after it, ε would be that of half the noise."""
    sent, ones = [1.0, 2.0, 6.0], [1.0, 1.0, 1.0]
    once, twice = one_step(f"{name}+dp", sent, ones), one_step(f"{name}+server_step+dp", sent, ones)
    assert torch.allclose(twice, 2 * once)
    noise = one_step(f"{name}+dp", [0.0, 0.0, 0.0], ones)
    assert torch.allclose(once, 3 + noise)


def test_a_client_that_claims_many_rows_counts_as_one() -> None:
    """Otherwise one client could give all weight to another one's change, for which the noise is too small."""
    honest = one_step("fedavg+dp", [1.0, 2.0, 6.0], [1.0, 1.0, 1.0])
    assert torch.equal(one_step("fedavg+dp", [1.0, 2.0, 6.0], [1.0, 1e9, -1.0]), honest)


def test_summary_and_report_say_what_was_spent(tmp_path: Path) -> None:
    data = federation((20, 20, 20))
    part = Participation(rule="bernoulli", rate=0.5)
    result = run(build("fedavg+dp+ft", {"dp": {"noise": 2.0}}), data, rounds=3, workers=1, participation=part)
    told = result.summary["privacy"]["epsilon_at_delta"]
    assert told["1e-05"] == pytest.approx(epsilon(2.0, 3, 1e-5))
    assert told["1e-06"] > told["1e-05"]
    assert spent(build("fedavg"), 3) is None
    (sentence,) = privacy(result.summary)
    assert f"ε = {told['1e-05']:.3g} at δ = 1e-05" in sentence
    assert sentence in result.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert privacy({}) == []


def test_a_run_does_not_write_down_what_its_noise_follows_from(tmp_path: Path) -> None:
    """Journals and reports are handed on; the checkpoint, which must hold it, is not."""
    data = federation((20, 20, 20))
    method = bound("fedavg+dp", data)
    result = run(build("fedavg+dp"), data, rounds=2, workers=1, out=tmp_path / "run")
    seed = int(method.init_server(Key.from_seed(result.summary["seed"]), 3).seed)
    assert seed
    for name in ("events.jsonl", "summary.json"):
        assert str(seed) not in (tmp_path / "run" / name).read_text()
    assert str(seed) not in result.report(tmp_path / "report.html").read_text(encoding="utf-8")


def test_running_statistics_are_refused() -> None:
    from fedprior.models import build as build_model

    data = federation()
    module = build_model("mlp", {"hidden": (6,), "norm_layer": "batch"}, data.shape, 3)
    method = bound("fedavg+dp", data, module=module)
    with pytest.raises(FedpriorError, match="without batch norm"):
        method.init_server(Key.from_seed(0), len(data))


def test_noise_depends_on_a_secret_and_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites know the run's seed, and a site that joins later gets the server's state."""
    method = bound("fedavg+dp", federation())
    known = method.init_server(Key.from_seed(0), 3)
    monkeypatch.setenv(SECRET, "of the server")
    hidden = method.init_server(Key.from_seed(0), 3)
    assert int(known.seed) != int(hidden.seed)
    assert int(method.shareable(hidden).seed) == 0
