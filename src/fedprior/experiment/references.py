"""Two references that no federation could have, since they need all rows in one place: regressions on pooled rows.

`reference_pooled` is one ridge-penalised logistic regression for all sites; `reference_site_effects` adds an intercept
per site with the same penalty, the simplest mixed model. The penalty is the one with the lowest validation NLL, as a
mean over sites. For a count both are Poisson regressions with the same penalty; for another number, Bayesian ridge
regressions, which choose it by their evidence.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.data.federation import Federation
from fedprior.data.target import Classes, Count
from fedprior.experiment.verdict import POOLED, SITE_EFFECTS
from fedprior.metrics import SELECTS, Cohort, cohort_metrics, metrics_of

PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
"""C of scikit-learn: the variance of the prior of each coefficient."""
LARGEST = 50.0
"""Log rate of a count, for inputs far from all others."""
Array = NDArray[np.float64]


def references(federation: Federation) -> dict[str, Cohort]:
    """The metrics of both on every site's test rows, by name; none for images, of which no regression is expected."""
    if len(federation.shape) > 1:
        return {}
    return {name: _test(federation, effects=name == SITE_EFFECTS) for name in (POOLED, SITE_EFFECTS)}


def _test(federation: Federation, *, effects: bool) -> Cohort:
    parts = {split: _inputs(federation, split, effects=effects) for split in ("train", "validation", "test")}
    y = np.concatenate(federation.labels("train"))
    if isinstance(federation.target, Classes):
        tries = [_classifier(np.concatenate(parts["train"]), y, federation.target.count, C) for C in PENALTIES]
    elif isinstance(federation.target, Count):
        tries = [_counter(np.concatenate(parts["train"]), y, C) for C in PENALTIES]
    else:
        tries = [_regressor(np.concatenate(parts["train"]), y)]
    scores = [_judged(federation, model, parts["validation"], "validation") for model in tries]
    means = [score.summary[SELECTS]["mean"] if score.evaluated else 0.0 for score in scores]
    return _judged(federation, tries[int(np.nanargmin(means))], parts["test"], "test")


def _inputs(federation: Federation, split: str, *, effects: bool) -> list[Array]:
    """Each site's inputs [n, d]; with `effects`, an indicator per site beside them [n, d + sites]."""
    data = federation.split(split)
    found = []
    for c in range(len(data)):
        x = data.client(c)[0].double().flatten(1).numpy()
        own = np.tile(np.eye(len(data))[c], (len(x), 1))
        found.append(np.concatenate([x, own], axis=1) if effects else x)
    return found


def _judged(federation: Federation, model: Any, inputs: list[Array], split: str) -> Cohort:
    pairs = list(zip((model(x) for x in inputs), federation.labels(split), strict=True))
    return cohort_metrics(metrics_of(federation.target), pairs)


def _classifier(x: Array, y: NDArray[Any], classes: int, C: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    present = np.unique(y)
    floor = np.full(classes, -np.inf)
    if len(present) == 1:
        floor[present[0]] = 0.0
        return lambda rows: np.tile(floor, (len(rows), 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression(C=C, max_iter=1000).fit(x, y)

    def log_probabilities(rows: Array) -> Array:
        found = np.tile(floor, (len(rows), 1))
        if len(rows):
            found[:, present] = model.predict_log_proba(rows)
        return found

    return log_probabilities


def _counter(x: Array, y: NDArray[Any], C: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import PoissonRegressor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = PoissonRegressor(alpha=1 / (C * len(y)), max_iter=1000).fit(x, y)  # theirs is a mean over rows

    def means_and_log_variances(rows: Array) -> Array:
        log_rate = np.clip(rows @ model.coef_ + model.intercept_, -LARGEST, LARGEST)
        return np.stack([np.exp(log_rate), log_rate], axis=1)

    return means_and_log_variances


def _regressor(x: Array, y: NDArray[Any]) -> Any:
    from sklearn.linear_model import BayesianRidge

    model = BayesianRidge().fit(x, y)

    def means_and_log_variances(rows: Array) -> Array:
        if not len(rows):
            return np.empty((0, 2))
        mean, deviation = model.predict(rows, return_std=True)
        return np.stack([mean, 2 * np.log(deviation)], axis=1)

    return means_and_log_variances
