"""What a statistician would fit to the same rows, with other people's code or by a direct optimisation.

    per site    scikit-learn's penalised logistic regression, or Bayesian ridge regression, at each site
    mixed       the mixed model of the pooled rows by maximum likelihood, for two classes in Laplace's approximation:
                the likelihood is written down as it is and maximised by SciPy, with gradients by differentiation

Effects that differ by site are the intercept, or the intercept and all slopes with a variance each. Every function
gives the mean over sites of the NLL on the test rows. Nothing here calls our own mixed model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import norm
from torch import Tensor

from fedprior.data.federation import Federation
from fedprior.data.target import Classes

Array = NDArray[np.float64]
Rows = list[tuple[Array, Array]]
PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
"""C of scikit-learn."""
STEPS = 30
"""Newton steps to a site's mode, at most."""


def rows(data: Federation, split: str) -> Rows:
    """x [n, d] and y [n] of each site."""
    parts = [data.split(split).client(c) for c in range(len(data))]
    return [(x.flatten(1).double().numpy(), y.double().numpy()) for x, y in parts]


def per_site(data: Federation) -> dict[str, float]:
    """At each site alone; of classes, with C chosen by the site's own validation rows, or by those of all sites."""
    train, validation, test = (rows(data, split) for split in ("train", "validation", "test"))
    if not isinstance(data.target, Classes):
        return {"per site": float(np.nanmean([_ridge(*own, *new) for own, new in zip(train, test, strict=True)]))}
    fits = [[_logistic(x, y, C) for C in PENALTIES] for x, y in train]
    seen = np.array([[_nll(fit, *new) for fit in own] for own, new in zip(fits, validation, strict=True)])
    found = np.array([[_nll(fit, *new) for fit in own] for own, new in zip(fits, test, strict=True)])
    own = [2 if np.isnan(line).any() else int(line.argmin()) for line in seen]
    common = int(np.nanmean(seen, 0).argmin())
    picked = found[np.arange(len(found)), own]
    return {"per site, own C": float(np.nanmean(picked)), "per site, one C": float(np.nanmean(found[:, common]))}


def _logistic(x: Array, y: Array, C: float) -> Any:
    """P(y = 1 | x); of a site with one class, the rate with half a case added to both."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(y)) < 2:
        rate = (y.sum() + 0.5) / (len(y) + 1)
        return lambda new: np.full(len(new), rate)
    model = LogisticRegression(C=C, max_iter=3000).fit(x, y)
    return lambda new: model.predict_proba(new)[:, 1]


def _nll(fit: Any, x: Array, y: Array) -> float:
    if not len(y):
        return float("nan")
    p = np.clip(fit(x), 1e-12, 1 - 1e-12)
    return -float(np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))


def _ridge(x: Array, y: Array, new: Array, truth: Array) -> float:
    from sklearn.linear_model import BayesianRidge

    if not len(truth):
        return float("nan")
    model = BayesianRidge().fit(x, y)
    mean, deviation = model.predict(new, return_std=True)
    return -float(norm.logpdf(truth, mean, deviation).mean())


def mixed(data: Federation, *, slopes: bool) -> float:
    """The mixed model of the pooled rows; inputs that never vary are left out."""
    train, test = rows(data, "train"), rows(data, "test")
    kept = np.flatnonzero(np.concatenate([x for x, _ in train]).std(0) > 1e-9)
    own, new = ([(np.hstack([np.ones((len(x), 1)), x[:, kept]]), y) for x, y in part] for part in (train, test))
    return _linear(own, new, slopes) if not isinstance(data.target, Classes) else _laplace(own, new, slopes)


def _linear(train: Rows, test: Rows, slopes: bool) -> float:
    """y_k ~ N(X γ, s² (I + Z Z')), Z = σ x: maximum likelihood over γ, log σ and log s; predictions are conditional."""
    x, y, real = _padded(train)
    chosen, d, n = _random(train) if slopes else [0], x.shape[2], float(real.sum())
    unit = torch.from_numpy(np.concatenate([label for _, label in train]))
    y = (y - unit.mean()) / unit.std() * real

    def objective(flat: Array) -> tuple[float, Array]:
        given = torch.tensor(flat, requires_grad=True)
        rest = (y - x @ given[:d]) * real
        mode, shrunk = _conditional(given[d:-1].exp(), x, rest, chosen)
        square = (rest.square().sum(1) - (shrunk[1] * mode).sum(1)).sum()
        value = n * given[-1] + 0.5 * torch.linalg.slogdet(shrunk[0])[1].sum() + 0.5 * square * (-2 * given[-1]).exp()
        (slope,) = torch.autograd.grad(value, given)
        return float(value.detach()), slope.numpy()

    start = np.concatenate([np.zeros(d), np.full(len(chosen), -1.0), [0.0]])
    bounds = [(None, None)] * d + [(-6.0, 6.0)] * (len(chosen) + 1)
    best = torch.from_numpy(minimize(objective, start, jac=True, bounds=bounds, method="L-BFGS-B").x)
    gamma, sigma, noise = best[:d], best[d:-1].exp(), float(best[-1].exp())
    modes, (precision, _) = _conditional(sigma, x, (y - x @ gamma) * real, chosen)
    losses = []
    for k, (new, truth) in enumerate(test):
        if len(truth):
            z = torch.from_numpy(new)[:, chosen] * sigma
            mean = (torch.from_numpy(new) @ gamma + z @ modes[k]) * unit.std() + unit.mean()
            spread = (1 + (z @ torch.linalg.inv(precision[k]) * z).sum(1)).sqrt() * noise * unit.std()
            losses.append(-float(norm.logpdf(truth, mean.numpy(), spread.numpy()).mean()))
    return float(np.mean(losses))


def _conditional(sigma: Tensor, x: Tensor, rest: Tensor, chosen: Sequence[int]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """u_k = P⁻¹ Z'r [K, r], with P = I + Z'Z and Z'r."""
    z = x[..., list(chosen)] * sigma
    precision = torch.eye(len(chosen), dtype=torch.float64) + z.transpose(1, 2) @ z
    pull = (z * rest.unsqueeze(-1)).sum(1)
    return torch.linalg.solve(precision, pull), (precision, pull)


def _random(train: Rows) -> list[int]:
    """The intercept, and the inputs that vary within most sites."""
    varies = np.array([x.std(0) > 1e-9 for x, _ in train]).mean(0) > 0.5
    return [0, *(j for j in range(1, len(varies)) if varies[j])]


def _laplace(train: Rows, test: Rows, slopes: bool) -> float:
    """log Z_k = log p(y | γ + b) - ½ Σ b²/σ² - ½ log |I + σ H σ| at the mode b, maximised over γ and log σ."""
    x, y, real = _padded(train)
    chosen = _random(train) if slopes else [0]
    d = x.shape[2]

    def objective(flat: Array) -> tuple[float, Array]:
        given = torch.tensor(flat, requires_grad=True)
        value = (
            -_evidence(given[:d], given[d:].exp(), x, y, real, chosen)[0].sum() + 0.5 * (given[:d] / 10).square().sum()
        )
        (slope,) = torch.autograd.grad(value, given)
        return float(value.detach()), slope.numpy()

    start = np.concatenate([np.zeros(d), np.full(len(chosen), np.log(0.5))])
    bounds = [(None, None)] * d + [(-6.0, 3.0)] * len(chosen)
    best = torch.from_numpy(minimize(objective, start, jac=True, bounds=bounds, method="L-BFGS-B").x)
    with torch.no_grad():
        modes = _evidence(best[:d], best[d:].exp(), x, y, real, chosen)[1]
    losses = []
    for k, (new, truth) in enumerate(test):
        if len(truth):
            eta = new @ best[:d].numpy() + new[:, chosen] @ modes[k].numpy()
            losses.append(float(np.mean(np.logaddexp(0, eta) - truth * eta)))
    return float(np.mean(losses))


def _padded(train: Rows) -> tuple[Tensor, Tensor, Tensor]:
    most, d = max(len(y) for _, y in train), train[0][0].shape[1]
    x, y, real = np.zeros((len(train), most, d)), np.zeros((len(train), most)), np.zeros((len(train), most))
    for k, (own, label) in enumerate(train):
        x[k, : len(label)], y[k, : len(label)], real[k, : len(label)] = own, label, 1.0
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(real)


def _evidence(
    gamma: Tensor, sigma: Tensor, x: Tensor, y: Tensor, real: Tensor, chosen: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """log Z_k [K], and the modes σ u_k [K, r]; the last Newton step is differentiated, which makes gradients exact."""
    z, fixed = x[..., list(chosen)] * sigma, x @ gamma
    u = torch.zeros(len(x), len(chosen), dtype=torch.float64)
    with torch.no_grad():
        for _ in range(STEPS):
            step = _newton(u, z, fixed, y, real)
            u = u + step * (2 / step.norm(dim=1, keepdim=True).clamp(min=2))
            if float(step.abs().max()) < 1e-10:
                break
    u = u + _newton(u, z, fixed, y, real)
    eta = fixed + (z @ u.unsqueeze(-1)).squeeze(-1)
    fits = ((y * eta - torch.nn.functional.softplus(eta)) * real).sum(1)
    return fits - 0.5 * u.square().sum(1) - 0.5 * torch.linalg.slogdet(_curvature(eta, z, real))[1], u * sigma


def _newton(u: Tensor, z: Tensor, fixed: Tensor, y: Tensor, real: Tensor) -> Tensor:
    eta = fixed + (z @ u.unsqueeze(-1)).squeeze(-1)
    slope = (z * ((y - eta.sigmoid()) * real).unsqueeze(-1)).sum(1) - u
    return torch.linalg.solve(_curvature(eta, z, real), slope)


def _curvature(eta: Tensor, z: Tensor, real: Tensor) -> Tensor:
    weight = eta.sigmoid() * (1 - eta.sigmoid()) * real
    eye = torch.eye(z.shape[2], dtype=torch.float64)
    return eye + z.transpose(1, 2) @ (z * weight.unsqueeze(-1))
