"""A site that joins a finished run gets the model that the run would have given it, and a curve over its rows."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedprior
from fedprior.data.federation import Federation, from_arrays
from fedprior.errors import FedpriorError
from fedprior.experiment import curve as curves
from fedprior.experiment.admission import Rows, admit, updates_of
from fedprior.experiment.curve import Curve, Point, Range, learning_curve, sizes
from fedprior.experiment.joining import join
from fedprior.experiment.participation import Participation
from fedprior.experiment.prior import Prior
from fedprior.experiment.result import Result
from fedprior.methods import build
from fedprior.protocol import METHODS
from support import TRAIN, federation, regression

JOINING = sorted(set(METHODS) - {"fedamp", "fedpac"})


def run(name: str, data: Federation, rounds: int = 2, **more: Any) -> Result:
    settings: dict[str, Any] = {"rounds": rounds, "eval_every": 1, "workers": 1, "precision": "float64"}
    return fedprior.run(build(name, train=TRAIN), data, model={"name": "mlp", "hidden": [4]}, **(settings | more))


def training(data: Federation, row: int) -> Rows:
    x, y = data.train.client(row)
    return x.numpy(), y.numpy()


@pytest.mark.parametrize("name", JOINING)
def test_without_updates_it_is_the_newcomer_of_the_run(name: str) -> None:
    """A run's own newcomers join in its last evaluation, and personalise without having trained."""
    data = federation((20, 9, 12))
    apart = Participation(newcomers=1, joining="first")
    result = run(name, data, participation=apart, select="last")
    uses = result.method.about.uses_validation  # then the run gives it validation rows of its own
    found = join(result.prior, training(data, 0), "site-0", updates=0, draws=0).model.arrays
    expected = result.arrays("site-0")
    assert found.keys() == expected.keys()
    for path, values in expected.items():
        assert found[path].shape == values.shape
        if not uses:
            np.testing.assert_allclose(found[path], values, rtol=1e-9, atol=1e-12)


def test_local_joins_with_the_model_that_it_would_have_had() -> None:
    """Local depends on nobody else, so joining after R rounds is training in R rounds."""
    data = federation((20, 9, 12))
    whole = run("local", data, 3, select="last")
    without = run("local", data.select([1, 2]), 3, select="last")
    found = join(without.prior, training(data, 0), "site-0", draws=0)
    assert found.updates == 3
    for path, values in whole.arrays("site-0").items():
        np.testing.assert_allclose(found.model.arrays[path], values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "updates"), [("fedavg", 0), ("fedavg_ft", 0), ("fedbabu", 0), ("fedmap", 2)])
def test_clients_without_state_need_no_updates(name: str, updates: int) -> None:
    data = federation((20, 9))
    assert updates_of(run(name, data, select="last").prior) == updates


@pytest.fixture(scope="module")
def flipped() -> tuple[Prior, Rows]:
    """The prior of sites where class 1 lies to the right, and a site where it lies to the left."""

    def site(seed: int, sign: int, n: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        y = np.arange(n) % 2
        return np.random.default_rng(seed).normal(size=(n, 2)) + sign * (2 * y - 1)[:, None], y

    data = from_arrays({f"s{k}": site(k, 1, 40) for k in range(3)}, classes=2)
    result = fedprior.run(build("fedmap", {"sigma2": 10.0}, TRAIN), data, model="softmax", rounds=8, workers=1)
    return result.prior, site(9, -1, 90)


def test_a_site_unlike_the_others_soon_beats_the_shared_model(flipped: tuple[Prior, Rows]) -> None:
    prior, rows = flipped
    found = join(prior, rows, "left", draws=8)
    assert found.curve is not None
    assert found.curve.held_out == 30
    assert [point.rows for point in found.curve.points] == [5, 10, 20, 50, 60]
    assert found.curve.since(clearly=True) in (5, 10, 20)
    last = found.curve.points[-1]
    assert found.curve.shared is not None
    assert last.gain is not None
    assert last.better == 1.0
    assert last.gain.mean == pytest.approx(found.curve.shared.mean - last.nll.mean)
    assert last.metric > 0.8
    assert found.curve.shared_metric is not None
    assert found.curve.shared_metric < 0.3
    right = found.model.predict(np.array([[-2.0, -2.0], [2.0, 2.0]])).argmax(1)
    assert right.tolist() == [1, 0]


def test_the_same_call_gives_the_same_curve(flipped: tuple[Prior, Rows]) -> None:
    prior, rows = flipped
    documents = [json.dumps(join(prior, rows, "left", draws=2).document()) for _ in range(2)]
    assert documents[0] == documents[1]


def test_no_row_is_both_trained_on_and_tested_on(flipped: tuple[Prior, Rows], monkeypatch: pytest.MonkeyPatch) -> None:
    prior, (x, y) = flipped
    seen: list[tuple[set[float], set[float]]] = []
    own = curves._personal

    def watched(prior: Prior, parts: Any, tests: Any, *rest: Any) -> Any:
        seen.extend(({*a[0][:, 0]}, {*b[0][:, 0]}) for a, b in zip(parts, tests, strict=True))
        return own(prior, parts, tests, *rest)

    monkeypatch.setattr(curves, "_personal", watched)
    learning_curve(prior, (x, y), "left", 1, 3)
    assert len(seen) == 15
    assert all(part and test and not part & test for part, test in seen)


def test_a_number_has_a_curve_too() -> None:
    data = regression((30, 20, 25))
    prior = run("fedmap", data.select([1, 2]), 2).prior
    found = join(prior, training(data, 0), "new", draws=3)
    assert found.curve is not None
    assert found.curve.metric == "rmse"
    assert all(math.isfinite(point.nll.mean) for point in found.curve.points)


def test_a_method_without_a_shared_model_has_no_gain() -> None:
    data = federation((20, 9, 30))
    found = join(run("local", data.select([0, 1])).prior, training(data, 2), "new", draws=2).curve
    assert found is not None
    assert found.shared is None
    assert found.points[0].gain is None
    assert "no shared model" in found.text


def point(rows: int, mean: float, low: float) -> Point:
    return Point(rows, Range(0.5, 0.4, 0.6), 0.8, Range(mean, low, 1.0), 0.5)


def curve(*points: Point) -> Curve:
    return Curve(points, Range(0.6, 0.5, 0.7), 0.7, "accuracy", 20, 30)


@pytest.mark.parametrize(
    ("points", "mean", "clear", "told"),
    [
        ([(5, -1, -2), (10, 1, -1), (20, 1, 0.5)], 10, 20, "From 10 rows on, .* on average, from 20 rows on in at"),
        ([(5, 1, 0.1), (10, -1, -2), (20, 1, 0.5)], 20, 20, "From 20 rows on, .* model in at least 95 % of draws"),
        ([(5, 1, 0.1), (10, 1, -0.1)], 5, None, "From 5 rows on, .* on average, but not in 95 % of draws"),
        ([(5, 1, 0.1), (10, -1, -2)], None, None, "With up to 10 rows .* is not better"),
        ([(5, 1, 0.1), (10, math.nan, math.nan)], None, None, "is not better"),
    ],
)
def test_from_how_many_rows_on(points: list[Any], mean: int | None, clear: int | None, told: str) -> None:
    """It must be better at that size and at all larger ones."""
    found = curve(*(point(*given) for given in points))
    assert found.since(clearly=False) == mean
    assert found.since(clearly=True) == clear
    assert re.search(told, found.text)


def test_the_range_over_draws() -> None:
    """Of 0, 1, …, 100 the mean is 50 and the middle 90 % lie between 5 and 95."""
    assert Range.of(np.arange(101.0)) == Range(50.0, 5.0, 95.0)
    assert math.isnan(Range.of(np.array([1.0, np.nan])).mean)


def test_numbers_of_rows() -> None:
    assert sizes(6) == [5, 6]
    assert sizes(5) == [5]
    assert sizes(3) == [3]
    assert sizes(250) == [5, 10, 20, 50, 100, 200, 250]


def test_a_site_of_few_rows_has_a_model_and_no_curve(flipped: tuple[Prior, Rows]) -> None:
    prior, (x, y) = flipped
    found = join(prior, (x[:8], y[:8]), "tiny")
    assert found.curve is None
    assert found.rows == 8
    assert np.isfinite(found.model.predict(x)).all()


def test_what_cannot_join_is_told(flipped: tuple[Prior, Rows]) -> None:
    prior, (x, y) = flipped
    for rows, told in [
        ((x[:0], y[:0]), "0 inputs"),
        ((x, y[:5]), "90 inputs and 5 labels"),
        ((x[:, :1], y), r"shape \[1\]"),
        ((x, y - 1), "labels other than 0"),
        ((np.where(x > 0, np.nan, x), y), "missing or infinite input"),
    ]:
        with pytest.raises(FedpriorError, match=told):
            join(prior, rows, "new")


def test_the_file_loads_alone(flipped: tuple[Prior, Rows], tmp_path: Path) -> None:
    prior, (x, y) = flipped
    found = join(prior, (x, y), "../=cmd\x1b[31m", draws=2)
    path = found.save(tmp_path / "joined")
    assert path.parent == tmp_path / "joined"
    alone = fedprior.load_model(path)
    np.testing.assert_array_equal(alone.predict(x), found.model.predict(x))
    assert alone.client == "../=cmd\x1b[31m"
    assert json.loads(path.with_suffix(".json").read_text())["rows"] == 90


def test_sites_admitted_together_are_those_admitted_alone(flipped: tuple[Prior, Rows]) -> None:
    prior, (x, y) = flipped
    names = ["a", "b"]
    both = admit(prior, [(x[:20], y[:20]), (x[20:50], y[20:50])], names, 2)
    for k, rows in enumerate([(x[:20], y[:20]), (x[20:50], y[20:50])]):
        alone = admit(prior, [rows], [names[k]], 2)
        for path in both.w:
            np.testing.assert_allclose(both.w[path][k], alone.w[path][0], rtol=1e-5, atol=1e-6)
