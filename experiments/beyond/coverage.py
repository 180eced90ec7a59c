"""Do the intervals of the mixed model cover the truth? 90 % intervals of coefficients in simulated federations.

    python experiments/beyond/coverage.py [--federations 300] [--first 5000] [--sites 8 15 60] [--kinds poisson]

Every site has 40 rows, an intercept and a slope that differ by site (deviations 0.6 and 0.5). Three likelihoods, three
priors; the fixed effects γ, each site's own coefficients θ_k, and its deviations θ_k - γ. In brackets: normal intervals
that take the estimated variances as known (for θ_k - γ: with the same standard errors). The intervals were chosen on
federations 1000 to 1299.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fedprior import tree
from fedprior.bayes.lda import unpack
from fedprior.bayes.mixed import degrees
from fedprior.data.federation import Federation, from_arrays
from fedprior.methods import build
from fedprior.models import build as build_model
from fedprior.models.likelihood import likelihood_of
from fedprior.models.task import Task
from fedprior.rng import Key, Keys
from fedprior.training import Train

ROWS, LEVEL = 40, 0.9
GAMMA, SIGMA = np.array([0.4, -0.8]), np.array([0.6, 0.5])
KINDS: dict[str, dict[str, Any]] = {
    "logistic": {"classes": 2},
    "linear": {"target": "number"},
    "poisson": {"target": "count"},
}
Shares = NDArray[np.float64]


def drawn(rng: np.random.Generator, eta: NDArray[np.float64], kind: str) -> NDArray[Any]:
    """Labels by their linear predictor."""
    if kind == "linear":
        return np.asarray(eta + rng.normal(size=len(eta)))
    if kind == "poisson":
        return rng.poisson(np.exp(eta))
    return np.asarray(rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(int)


def simulated(seed: int, sites: int, kind: str) -> tuple[Federation, NDArray[np.float64]]:
    """A federation, and the truth [sites, 2] for standardised inputs."""
    rng = np.random.default_rng(seed)
    truth = GAMMA + SIGMA * rng.normal(size=(sites, 2))
    clients: dict[str, Any] = {}
    for k in range(sites):
        x = rng.normal(size=(ROWS, 1))
        eta = truth[k, 0] + x[:, 0] * truth[k, 1]
        clients[f"site-{k:02d}"] = (x, drawn(rng, eta, kind))
    return from_arrays(clients, tests=clients, validation=0.0, **KINDS[kind]).to(torch.float64), truth


def fitted(data: Federation, prior: str) -> tuple[Any, Any, Any]:
    """The method, the server and the personal models after the last round, without an engine, which is faster."""
    likelihood = likelihood_of(data.target)
    task = Task(build_model("softmax", {}, data.shape, likelihood.outputs), likelihood, dtype=torch.float64, shape=(1,))
    method: Any = build("mixed", {"prior": prior}).bind(task, Train())
    ids, keys = torch.arange(len(data)), Keys.of(Key(0), data.clients)
    server = method.init_server(Key.from_seed(0), len(data))
    for _ in range(60):
        down = tree.expand(method.broadcast(server, ids), len(data))
        _, up, _ = method.local_update(method.init_client(down, data.train, keys), down, data.train, keys)
        server = method.aggregate(server, up, ids)
        if method.converged(server):
            break
    down = tree.expand(method.broadcast(server, ids), len(data))
    return method, server, method.personalise(method.init_client(down, data.train, keys), down, data.train, keys)


def hits(seed: int, sites: int, prior: str, kind: str) -> Shares:
    """The shares of intervals that cover: of γ, θ_k and θ_k - γ; Student's, and normal with known variances, [3, 2]."""
    data, truth = simulated(seed, sites, kind)
    method, server, personal = fitted(data, prior)
    unit, origin = method.unit
    to_scaled = np.array([[1.0, server.mean.item()], [0.0, 1 / server.scale.item()]]) / unit
    shift = np.array([origin / unit, 0.0])
    gamma, own = (torch.from_numpy(part @ to_scaled.T - shift) for part in (GAMMA, truth))
    variance, plain = (unpack(part, 2).diagonal(dim1=-2, dim2=-1) for part in (server.uncertainty, personal.covariance))
    freedom = degrees(variance, server.sway)
    normal = torch.full_like(personal.freedom, torch.inf)
    return np.array(
        [
            [_share(server.point.gamma - gamma, variance.sqrt(), df) for df in (freedom, normal[0])],
            [
                _share(personal.theta - own, personal.error, personal.freedom),
                _share(personal.theta - own, plain.sqrt(), normal),
            ],
            [
                _share(personal.deviation - (own - gamma), personal.deviation_error, df)
                for df in (personal.deviation_freedom, normal)
            ],
        ]
    )


def _share(gap: Tensor, error: Tensor, freedom: Tensor) -> float:
    half = torch.from_numpy(stats.t.ppf((1 + LEVEL) / 2, freedom.numpy())) * error
    return float((gap.abs() < half).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage of the mixed model's intervals.")
    parser.add_argument("--federations", type=int, default=300)
    parser.add_argument("--first", type=int, default=5000, help="seed of the first one")
    parser.add_argument("--sites", type=int, nargs="+", default=[8, 15, 60])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(given.first, given.first + given.federations)
    print(f"{len(seeds)} federations, {ROWS} rows per site; coverage of 90 % intervals in %, ± standard error")
    for sites in given.sites:
        for kind in given.kinds:
            for prior in ("rayleigh", "ml", "reml"):
                found = np.array([hits(seed, sites, prior, kind) for seed in seeds])  # [F, 3, 2]
                mean, error = 100 * found.mean(0), 100 * found.std(0, ddof=1) / len(seeds) ** 0.5
                told = [
                    f"{what} {mean[k, 0]:.1f} ± {error[k, 0]:.1f} [{mean[k, 1]:.1f}]"
                    for k, what in enumerate(("γ", "θ_k", "θ_k - γ"))
                ]
                print(f"{sites:3} sites, {kind:8} {prior:8}  {'   '.join(told)}", flush=True)


if __name__ == "__main__":
    main()
