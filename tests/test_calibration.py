"""+cal: a temperature from rows that the method was not trained on, pooled over sites."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from fedprior import tree
from fedprior.calibration import GRID
from fedprior.errors import FedpriorError
from fedprior.methods import build
from fedprior.mixture import Mixture
from fedprior.training import Train
from support import bound, federation, keys, one_round, regression, rounds, same


def calibrated(name: str, data: Any, **options: Any) -> Mixture:
    method = bound(name, data, **options)
    assert isinstance(method, Mixture)
    return method


@pytest.mark.parametrize("name", ["local", "fedavg_ft", "pfedvem"])
def test_training_is_untouched(name: str) -> None:
    """The server, the states and the inner personal models are bit-equal with and without it."""
    data = federation()
    plain, cal = rounds(bound(name, data), data), rounds(bound(f"{name}+cal", data), data)
    assert all(torch.equal(cal.server[f"experts/{name}/{path}"], leaf) for path, leaf in plain.server.items())
    assert all(torch.equal(cal.states[f"experts/{name}/{path}"], leaf) for path, leaf in plain.states.items())
    for client in data.clients:
        for path, value in plain.models[client].items():
            assert (cal.models[client][f"experts/{name}/{path}"] == value).all()


@pytest.mark.parametrize("make", [federation, regression])
def test_a_temperature_of_one_changes_nothing(make: Any) -> None:
    data = make()
    plain = rounds(bound("fedavg_ft", data), data)
    cal = rounds(bound("fedavg_ft+cal", data, cal={"temperatures": [1.0]}), data)
    for client in data.clients:
        np.testing.assert_allclose(cal.test[client], plain.test[client], rtol=1e-6, atol=1e-6)


def test_the_posterior_is_computed_by_hand() -> None:
    """ρ_k = softmax(ℓ_k + log π) with ℓ_k(T) = Σ log softmax(log p / T)_y in plain scipy; the prediction is Σ ρ p_T."""
    data = federation()
    method = calibrated("local+cal", data)
    _, down, _, updated, _ = one_round(method, data)
    pi = np.random.default_rng(0).dirichlet(np.ones(len(GRID)))
    down = down._replace(pi=torch.from_numpy(pi).expand(len(data), -1))
    shown = replace(data.train, validation=data.validation)
    personal = method.personalise(updated, down, shown, keys(data, "p"))
    inner = method.parts["local"]
    alone = inner.personalise(tree.unflatten(inner.types[1], updated.experts, "local"), None, data.train, keys(data))
    for c in range(len(data)):
        (x, y), (x_test, _) = data.validation.client(c), data.test.client(c)
        own, one = tree.index(alone, [c]), tree.index(personal, [c])
        log_p = inner.predict(own, x.unsqueeze(0), keys(data))[0].numpy()
        score = [log_softmax(log_p / t, -1)[np.arange(len(y)), y.numpy()].sum() for t in GRID]
        rho = softmax(np.array(score) + np.log(pi))
        np.testing.assert_allclose(personal.shares[c, 0].numpy(), rho, atol=1e-10)
        raw = inner.predict(own, x_test.unsqueeze(0), keys(data))[0].numpy()
        expected = sum(r * softmax(raw / t, -1) for r, t in zip(rho, GRID, strict=True))
        found = method.predict(one, x_test.unsqueeze(0), keys(data))[0].exp().numpy()
        np.testing.assert_allclose(found, expected, atol=1e-10)


def test_a_model_that_is_too_sure_is_made_less_so() -> None:
    """Local, trained for long on few rows: T above 1 at every site, and a lower NLL on test rows."""
    data = federation(sizes=(60,) * 6)
    train = Train(lr=0.3, momentum=0.9, batch_size=8, epochs=20)
    plain, cal = (rounds(bound(name, data, train), data, 12) for name in ("local", "local+cal"))
    temperature = [float(cal.models[c]["shares"][0] @ np.array(GRID)) for c in data.clients]
    assert min(temperature) > 1.5
    assert _nll(cal, data) < 0.7 * _nll(plain, data)


def _nll(trace: Any, data: Any) -> float:
    return float(
        np.mean(
            [
                -trace.test[name][np.arange(len(y)), y].mean()
                for name, y in zip(data.clients, data.labels("test"), strict=True)
            ]
        )
    )


def test_test_rows_are_not_seen() -> None:
    """Other test rows, the same temperatures; other validation rows, other temperatures."""
    data = federation()
    other = federation(seed=7)
    ours = rounds(bound("local+cal", data), data)
    tests = rounds(bound("local+cal", data), replace(data, test=other.test))
    rows = rounds(bound("local+cal", data), replace(data, validation=other.validation))
    assert all((ours.models[c]["shares"] == tests.models[c]["shares"]).all() for c in data.clients)
    assert any((ours.models[c]["shares"] != rows.models[c]["shares"]).any() for c in data.clients)


@pytest.mark.parametrize(
    ("name", "options"),
    [("stack+cal", {}), ("fedavg+cal+cal", {}), ("stack", {"experts": ["local", "fedavg_ft+cal"]})],
)
def test_rows_are_not_used_twice(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(FedpriorError, match=r"uses the validation rows, on which it would be scored: .*holdout\.$"):
        build(name, options)


def test_it_composes() -> None:
    method = build("fedavg+ft+cal", {"ft": {"steps": 3}, "cal": {"score_every": 2}})
    assert method.about.name == "fedavg+ft+cal"
    assert method.uses_validation
    options = method.hyperparameters()
    assert (options["ft"]["steps"], options["cal"]["score_every"]) == (3, 2)
    assert build("fedavg+ft+cal", options).hyperparameters() == options
    held = build("fedavg+cal", {"cal": {"scores": "holdout"}})
    assert not held.uses_validation
    data = federation()
    a, b = (rounds(bound("fedavg+cal", d, cal={"scores": "holdout"}), d) for d in (data, _wrong(data)))
    assert same(a.server, b.server)
    assert all((a.models[c]["shares"] == b.models[c]["shares"]).all() for c in data.clients)


def _wrong(data: Any) -> Any:
    """Every validation label wrong."""
    return replace(data, validation=replace(data.validation, y=(data.validation.y + 1) % 3))
