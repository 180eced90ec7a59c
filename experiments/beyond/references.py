"""Models that see all rows in one place: what a federation is measured against on tables."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.data.federation import Federation

Predictions = dict[str, list[NDArray[Any]]]
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)


def _rows(data: Federation, split: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """x [n, d], y [n] and the site of every row."""
    parts = [data.split(split).client(c) for c in range(len(data))]
    site = np.repeat(np.arange(len(data)), [len(y) for _, y in parts])
    x = np.concatenate([x.flatten(1).double().numpy() for x, _ in parts])
    return x, np.concatenate([y.numpy() for _, y in parts]), site


def _by_site(data: Federation, split: str, p: NDArray[Any]) -> list[NDArray[Any]]:
    log_p = np.log(np.clip(np.stack([1 - p, p], 1), 1e-12, 1)).astype(np.float32)
    return np.split(log_p, np.cumsum(data.split(split).size)[:-1])


def pooled(data: Federation) -> Predictions:
    """Logistic regression on pooled rows with an intercept per site; its strength by validation NLL."""
    from sklearn.linear_model import LogisticRegression

    def inputs(split: str) -> tuple[NDArray[Any], NDArray[Any]]:
        x, y, site = _rows(data, split)
        return np.hstack([x, np.eye(len(data))[site]]), y

    (x, y), (x_val, y_val) = inputs("train"), inputs("validation")
    fits = [LogisticRegression(C=c, max_iter=5000).fit(x, y) for c in STRENGTHS]

    def loss(fit: Any) -> float:
        p = np.clip(fit.predict_proba(x_val)[np.arange(len(y_val)), y_val], 1e-12, 1)
        return -float(np.log(p).mean())

    best = min(fits, key=loss)
    return {s: _by_site(data, s, best.predict_proba(inputs(s)[0])[:, 1]) for s in ("validation", "test")}


def mixed_model(data: Federation) -> Predictions:
    """A logistic mixed model with a random intercept per site, variational (statsmodels), predicting with its means."""
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

    x, y, site = _rows(data, "train")
    kept = np.flatnonzero(x.std(0) > 1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        design = np.hstack([np.ones((len(x), 1)), x[:, kept]])
        model = BinomialBayesMixedGLM(y, design, np.eye(len(data))[site], np.zeros(len(data), dtype=int))
        fit = model.fit_vb()

    def predict(split: str) -> NDArray[Any]:
        x, _, site = _rows(data, split)
        return 1 / (1 + np.exp(-(fit.fe_mean[0] + x[:, kept] @ fit.fe_mean[1:] + fit.vc_mean[site])))

    return {s: _by_site(data, s, predict(s)) for s in ("validation", "test")}


REFERENCES: dict[str, Callable[[Federation], Predictions]] = {
    "pooled + site intercept": pooled,
    "pooled mixed model": mixed_model,
}
