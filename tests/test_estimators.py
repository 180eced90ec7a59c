"""Scikit-learn's conventions, and a model per site behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from fedprior import FederatedClassifier, FederatedRegressor
from fedprior.errors import FedpriorError
from fedprior.methods.fedmap import FedMAP
from fedprior.methods.local import Local
from fedprior.training import Train

QUICK: dict[str, Any] = {"rounds": 10}


@parametrize_with_checks([FederatedClassifier("fedavg", **QUICK), FederatedRegressor("fedavg", **QUICK)])  # type: ignore[untyped-decorator]
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    """None is expected to fail: without `site`, all rows are one site's, and every check applies.

    Scikit-learn skips one itself, which needs a setting of array APIs.
    """
    check(estimator)


def table(n: int = 150, seed: int = 0) -> pd.DataFrame:
    """Site b's outcome depends on age the other way round."""
    rng = np.random.default_rng(seed)
    site = np.array(["a", "b", "c"])[np.arange(n) % 3]
    age, stage = rng.normal(size=n), rng.choice(["I", "II"], n)
    slope = np.where(site == "b", -4.0, 4.0)
    ill = rng.random(n) < 1 / (1 + np.exp(-slope * age))
    score = 10 + slope * age + 2.0 * rng.normal(size=n)
    return pd.DataFrame({"age": age, "hospital": site, "stage": stage, "outcome": ill, "score": score})


@pytest.fixture(scope="module")
def fitted() -> FederatedClassifier:
    frame = table().drop(columns="score")
    return FederatedClassifier("local", site="hospital").fit(frame, target="outcome")


def test_fitted_attributes(fitted: FederatedClassifier) -> None:
    assert fitted.classes_.tolist() == [False, True]
    assert fitted.classes_.dtype == np.bool_
    assert fitted.feature_names_in_.tolist() == ["age", "hospital", "stage"]
    assert fitted.n_features_in_ == 3
    assert fitted.sites_.tolist() == ["a", "b", "c"]
    assert fitted.method_ == "local"
    assert fitted.score_table_.index.tolist() == ["local"]
    assert {"nll", "accuracy", "validation"} <= set(fitted.score_table_)


def test_each_row_goes_to_its_sites_model(fitted: FederatedClassifier) -> None:
    rows = pd.DataFrame({"age": [2.0, 2.0, -2.0], "hospital": ["a", "b", "b"], "stage": "I"})
    assert fitted.predict(rows).tolist() == [True, False, True]
    found = fitted.predict_proba(rows)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    for k, site in enumerate(rows["hospital"]):
        np.testing.assert_allclose(found[k], fitted.result_.predict(site, rows.iloc[[k]])[0], rtol=1e-6)


def test_x_and_y_are_the_same_as_a_table_with_its_target(fitted: FederatedClassifier) -> None:
    frame = table().drop(columns="score")
    other = FederatedClassifier("local", site="hospital").fit(frame.drop(columns="outcome"), frame["outcome"])
    new = table(30, 1)[["age", "hospital", "stage"]]
    np.testing.assert_array_equal(other.predict_proba(new), fitted.predict_proba(new))


def test_the_target_may_be_in_the_table_that_is_predicted(fitted: FederatedClassifier) -> None:
    frame = table(30, 1).drop(columns="score")
    found = fitted.predict_proba(frame)
    np.testing.assert_array_equal(found, fitted.predict_proba(frame.drop(columns="outcome")))
    np.testing.assert_array_equal(found, fitted.predict_proba(frame.assign(outcome=~frame["outcome"])))


@pytest.mark.parametrize("labels", [("no", "yes"), (2, 10), (1.0, 0.0), ("10", "9")])
def test_classes_keep_their_type_and_order(labels: tuple[Any, Any]) -> None:
    """`classes_` is sorted as NumPy sorts it, and probabilities are in its order."""
    frame = table(90).drop(columns="score")
    y = np.array([labels[int(ill)] for ill in frame.pop("outcome")])
    found = FederatedClassifier("fedavg_ft", site="hospital").fit(frame, y)
    assert found.classes_.tolist() == sorted(labels)
    assert found.classes_.dtype == y.dtype
    rows = pd.DataFrame({"age": [3.0], "hospital": "a", "stage": "I"})
    probable = found.classes_[found.predict_proba(rows)[0].argmax()]
    assert probable == found.predict(rows)[0] == labels[1]


def test_auto_is_chosen_on_validation() -> None:
    found = FederatedClassifier(site="hospital", rounds=5).fit(table(90).drop(columns="score"), target="outcome")
    assert len(found.score_table_) > 2
    assert found.method_ == found.score_table_["validation"].idxmin()


def test_a_method_with_options() -> None:
    frame = table(90).drop(columns="score")
    found = FederatedClassifier(FedMAP(sigma2=3.0), site="hospital", **QUICK).fit(frame, target="outcome")
    assert found.result_.summary["method"]["sigma2"] == 3.0


def test_a_number() -> None:
    frame = table().drop(columns="outcome")
    found = FederatedRegressor("local", site="hospital").fit(frame, target="score")
    mean, sd = found.predict(frame.drop(columns="score"), return_std=True)
    assert (sd > 0).all()
    np.testing.assert_array_equal(mean, found.predict(frame.drop(columns="score")))
    assert found.score(frame.drop(columns="score"), frame["score"]) > 0.6  # the best possible R² is 16 / (16 + 4)
    assert "rmse" in found.score_table_


def test_clone_and_grid_search() -> None:
    frame = table(90).drop(columns="score")
    y = frame.pop("outcome")
    own = FederatedClassifier("fedmap", site="hospital", **QUICK)
    copied = clone(own)
    assert copied.get_params() == own.get_params()
    assert copied.set_params(rounds=3).rounds == 3
    search = GridSearchCV(own, {"method": ["local", "fedavg"]}, cv=2, n_jobs=1).fit(frame, y)
    assert search.best_params_["method"] in ("local", "fedavg")


def test_models_that_diverged_are_refused() -> None:
    frame = table(60).drop(columns="outcome")
    steep = Local(train=Train(lr=1e4, steps=5))
    with pytest.raises(ValueError, match="no method has a finite validation NLL"):
        FederatedRegressor(steep, site="hospital", **QUICK).fit(frame, target="score")


def test_a_site_that_was_not_there() -> None:
    frame = table(90).drop(columns="score")
    new = pd.DataFrame({"age": [1.0], "hospital": "z", "stage": "I"})
    own = FederatedClassifier("fedavg", site="hospital", **QUICK).fit(frame, target="outcome")
    with pytest.raises(ValueError, match="no model for the site 'z'"):
        own.predict(new)
    shared = own.set_params(new_sites="shared").predict_proba(new)
    np.testing.assert_allclose(shared, own.predict_proba(new.assign(hospital="a")), rtol=1e-5)  # FedAvg: one for all
    alone = FederatedClassifier("local", site="hospital", new_sites="shared", **QUICK).fit(frame, target="outcome")
    with pytest.raises(ValueError, match="Local has no shared model"):
        alone.predict(new)


def test_what_is_wrong_is_a_value_error_in_one_sentence() -> None:
    frame = table(30).drop(columns="score")
    own = FederatedClassifier("fedavg", site="hospital", **QUICK)
    with pytest.raises(NotFittedError):
        own.predict(frame)
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: own.fit(frame), "give y, or target="),
        (lambda: own.fit(frame, frame["outcome"], target="outcome"), "given twice"),
        (lambda: own.fit(frame, target="nothing"), "no column 'nothing'"),
        (lambda: own.fit(frame.drop(columns="hospital"), target="outcome"), "no column 'hospital'"),
        (lambda: own.fit(frame.assign(outcome=1), target="outcome"), "only one class"),
        (lambda: FederatedClassifier("fedmop").fit(frame, target="outcome"), "fedmap"),
        (lambda: FederatedClassifier("fedavg", random_state=-1).fit(frame, target="outcome"), "random_state"),
    ]
    for call, told in wrong:
        with pytest.raises(ValueError, match=told) as error:
            call()
        assert isinstance(error.value, FedpriorError)
        assert "\n" not in str(error.value)
