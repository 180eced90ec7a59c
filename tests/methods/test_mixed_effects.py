"""What the mixed model says about itself: in the target's unit, by name, in Python, in files and on the screen."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console
from scipy import stats
from sklearn.linear_model import LinearRegression
from statsmodels.discrete.discrete_model import MNLogit

import fedprior
from fedprior.bayes.effects import UNFINISHED
from fedprior.data.federation import Federation, from_arrays
from fedprior.data.naming import names_of
from fedprior.errors import FedpriorError
from fedprior.methods import build
from fedprior.report.explained import explained

Floats = NDArray[np.float64]


def data(*, spread: float, standardise: bool = True, number: bool = True) -> Federation:
    """y = 30 + 2 x₁ + u_k + noise of deviation ½; x₂ is noise; sites share a scaling."""
    rng, clients = np.random.default_rng(0), {}
    for k in range(8):
        x = rng.normal(size=(60, 2)) * [3, 10] + [5, 0]
        eta = 2 * x[:, 0] + spread * rng.normal()
        y = 30 + eta + rng.normal(size=60) / 2 if number else (rng.random(60) < 1 / (1 + np.exp(10 - eta))).astype(int)
        clients[f"site-{k}"] = (x, y)
    scaled = {"standardise": standardise, "scaling": "shared"}
    kind = {"target": "number"} if number else {"classes": 2}
    return from_arrays(clients, **scaled, **kind)  # type: ignore[arg-type]


def test_effects_are_in_the_units_of_the_table(tmp_path: Path) -> None:
    """Per unit as least squares has it on raw rows; per deviation times the deviation; the noise and σ of the truth."""
    federation = data(spread=2.0)
    result = fedprior.run(build("mixed"), federation, model="softmax", rounds=30, out=tmp_path, workers=1)
    fixed, between, sites = (
        result.explanation.tables[key].reset_index() for key in ("fixed effects", "deviations between sites", "sites")
    )
    assert list(fixed["input"]) == ["intercept", "x1", "x2"]
    assert fixed["per_unit"][1] == pytest.approx(2, abs=0.05)
    deviation = names_of(federation).units[0]
    assert fixed["estimate"][1] == pytest.approx(fixed["per_unit"][1] * deviation, rel=1e-2)
    assert fixed["estimate"][0] == pytest.approx(30 + 2 * 5, abs=2.5)
    assert 4 < fixed["df"][0] < 12  # eight sites: at most 7 degrees, and what the prior adds
    np.testing.assert_allclose(
        fixed["high"] - fixed["low"], 2 * stats.t.ppf(0.975, fixed["df"]) * fixed["std_error"], rtol=1e-9
    )
    assert fixed["t"][1] == pytest.approx(fixed["estimate"][1] / fixed["std_error"][1])
    assert abs(fixed["t"][2]) < 4
    assert list(between["input"]) == ["intercept", "x1", "x2", "residual"]
    assert between["deviation"].iloc[-1] == pytest.approx(0.5, rel=0.15)
    assert between["deviation"][0] == pytest.approx(2, rel=0.6)
    own = sites[sites["input"] == "intercept"]
    x, y = federation.train.x.numpy(), federation.train.y.numpy()
    residual = y - LinearRegression().fit(x, y).predict(x)
    means = [part.mean() for part in np.split(residual, np.cumsum(federation.train.size)[:-1])]
    np.testing.assert_allclose(own["estimate"], means - np.mean(means), atol=0.5)
    assert set(result.effects["part"]) == set(result.explanation.tables)
    summary = json.loads((tmp_path / "summary.json").read_text())["explanation"]["tables"]
    assert summary["fixed effects"][1]["estimate"] == pytest.approx(fixed["estimate"][1])
    again = fedprior.run(build("mixed"), federation, model="softmax", rounds=30, out=tmp_path, workers=1)
    assert again.effects.equals(result.effects)
    console = Console(width=120, file=io.StringIO())
    for table in explained(result.explanation):
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "fixed effects" in text
    assert "std_error" in text


def test_a_fit_that_has_not_converged_says_so() -> None:
    """Too few rounds: a sentence, on the screen and in the summary; none once it has converged."""
    for rounds, told in ((2, [UNFINISHED]), (30, [])):
        result = fedprior.run(build("mixed"), data(spread=1.0), model="softmax", rounds=rounds, workers=1)
        assert list(result.explanation.sentences) == told
        assert result.summary["explanation"]["sentences"] == told


def test_sites_with_their_own_scaling_have_no_common_unit() -> None:
    federation = data(spread=1.0, number=False)
    pairs = {
        client: (federation.train.client(k)[0].numpy(), federation.train.client(k)[1].numpy())
        for k, client in enumerate(federation.clients)
    }
    own = from_arrays(pairs, classes=2, standardise=True)
    result = fedprior.run(build("mixed"), own, model="softmax", rounds=30, workers=1)
    fixed = result.explanation.tables["fixed effects"].reset_index()
    assert fixed["per_unit"].isna().all()
    assert fixed["estimate"][1] > 1


def regression_of_classes(x: Floats, y: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """statsmodels' coefficients [3, inputs + 1] and standard errors, turned from class 0 to the mean of all classes."""
    fit = MNLogit(y, np.column_stack([np.ones(len(x)), x])).fit(disp=False)
    turn = np.kron((np.eye(3) - 1 / 3)[:, 1:], np.eye(x.shape[1] + 1))
    errors = np.sqrt(np.diag(turn @ np.asarray(fit.cov_params()) @ turn.T))
    return (turn @ np.asarray(fit.params).T.ravel()).reshape(3, -1), errors.reshape(3, -1)


def classes(spread: float, n: int) -> Federation:
    """Four sites of n rows with three classes; inputs are standardised over all rows."""
    rng, clients = np.random.default_rng(0), {}
    beta = rng.normal(size=(3, 3))
    for k in range(4):
        x = rng.normal(size=(n, 2))
        eta = np.column_stack([np.ones(n), x]) @ (beta + spread * rng.normal(size=(3, 3))).T
        clients[f"site-{k}"] = (x, (eta + rng.gumbel(size=(n, 3))).argmax(1))
    every = np.concatenate([x for x, _ in clients.values()])
    clients = {name: ((x - every.mean(0)) / every.std(0), y) for name, (x, y) in clients.items()}
    return from_arrays(clients, tests=clients, classes=3, validation=0.0)


def test_several_classes_are_relative_to_their_mean() -> None:
    """With many rows and one slope for all sites, its errors are statsmodels'; with slopes apart, each site's are.

    A constant added to all classes changes nothing, so the data say nothing of it: it is no part of an effect's error.
    """
    one = classes(0.0, 600)
    fixed = fedprior.run(build("mixed", {"effects": "intercept"}), one, rounds=30, workers=1).explanation.tables
    x, y = one.train.x.numpy(), one.train.y.numpy()
    estimate, error = regression_of_classes(x, y)
    for name, expected in (("estimate", estimate), ("std_error", error)):
        found = fixed["fixed effects"][name].to_numpy().reshape(3, -1)
        np.testing.assert_allclose(found[:, 1:], expected[:, 1:], rtol=0.02)
    apart = classes(1.0, 3000)
    sites = fedprior.run(build("mixed"), apart, rounds=60, workers=1).explanation.tables["sites"].reset_index()
    for k, name in enumerate(apart.clients):
        own, rows = sites[sites["site"] == name], apart.train.client(k)
        estimate, error = regression_of_classes(*(part.numpy() for part in rows))
        np.testing.assert_allclose(own["coefficient"], estimate.ravel(), atol=0.03)
        np.testing.assert_allclose(own["coefficient_error"], error.ravel(), rtol=0.05)
    np.testing.assert_allclose(sites.groupby(["site", "input"])["estimate"].sum(), 0, atol=1e-9)


def test_other_methods_have_no_effects() -> None:
    result = fedprior.run(build("fedavg"), data(spread=1.0), model="softmax", rounds=1, workers=1)
    assert not result.explanation.tables
    with pytest.raises(FedpriorError, match="does not say what"):
        _ = result.effects
