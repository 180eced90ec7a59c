"""Do the intervals of the mixed model cover the truth? 90 % intervals of coefficients in simulated federations.

    python experiments/beyond/coverage.py [--federations 200] [--sites 15]

Every site has 40 rows, an intercept and a slope that differ by site (deviations 0.6 and 0.5). Two
likelihoods, both priors; the fixed effects γ, and each site's own coefficients θ_k.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedprior.data.federation import Federation, from_arrays
from fedprior.engine import Engine
from fedprior.methods import build
from fedprior.models import build as build_model
from fedprior.models.likelihood import likelihood_of
from fedprior.models.task import Task
from fedprior.training import Train

ROWS, Z = 40, 1.6448536
GAMMA, SIGMA = np.array([0.4, -0.8]), np.array([0.6, 0.5])


def simulated(seed: int, sites: int, *, number: bool) -> tuple[Federation, NDArray[np.float64]]:
    """A federation, and the truth [sites, 2] for standardised inputs."""
    rng = np.random.default_rng(seed)
    truth = GAMMA + SIGMA * rng.normal(size=(sites, 2))
    clients: dict[str, Any] = {}
    for k in range(sites):
        x = rng.normal(size=(ROWS, 1))
        eta = truth[k, 0] + x[:, 0] * truth[k, 1]
        y = eta + rng.normal(size=ROWS) if number else (rng.random(ROWS) < 1 / (1 + np.exp(-eta))).astype(int)
        clients[f"site-{k:02d}"] = (x, y)
    kind: dict[str, Any] = {"target": "number"} if number else {"classes": 2}
    return from_arrays(clients, tests=clients, validation=0.0, **kind).to(torch.float64), truth


def hits(seed: int, sites: int, prior: str, *, number: bool) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each interval covers: of γ [2], and of θ_k [sites, 2]."""
    data, truth = simulated(seed, sites, number=number)
    likelihood = likelihood_of(data.target)
    task = Task(build_model("softmax", {}, data.shape, likelihood.outputs), likelihood, dtype=torch.float64, shape=(1,))
    method = build("mixed", {"prior": prior}).bind(task, Train())
    with Engine(method, data, 0) as engine:
        for number_of_round in range(60):
            engine.round(number_of_round, engine.everyone, engine.everyone)
            if method.converged(engine.server):
                break
        engine.evaluate(60, ("test",))
        server, personal = engine.server, engine.memory.personal
        unit, origin = (data.target.deviation, data.target.mean) if number else (1.0, 0.0)  # type: ignore[attr-defined]
        mean, scale = server.mean.item(), server.scale.item()
        to_scaled = np.array([[1.0, mean], [0.0, 1 / scale]]) / unit
        shift = np.array([origin / unit, 0.0])
        fixed = np.abs(server.point.gamma.numpy() + shift - to_scaled @ GAMMA)
        own = np.abs(personal.theta.numpy() + shift - truth @ to_scaled.T)
        errors = np.sqrt(server.uncertainty.numpy()[[0, 2]]), np.sqrt(personal.covariance.numpy()[:, [0, 2]])
        return fixed < Z * errors[0], own < Z * errors[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage of the mixed model's intervals.")
    parser.add_argument("--federations", type=int, default=200)
    parser.add_argument("--sites", type=int, default=15)
    given = parser.parse_args()
    count, sites = given.federations, given.sites
    torch.set_num_threads(1)
    print(f"{count} federations of {sites} sites with {ROWS} rows; coverage of 90 % intervals, in %, ± standard error")
    for number in (False, True):
        for prior in ("rayleigh", "ml"):
            found = [hits(seed, sites, prior, number=number) for seed in range(count)]
            told = []
            for part in (0, 1):
                shares = np.array([pair[part].mean() for pair in found])
                told.append(f"{100 * shares.mean():.1f} ± {100 * shares.std(ddof=1) / count**0.5:.1f}")
            print(f"{'linear' if number else 'logistic':9} {prior:9} γ {told[0]}   θ_k {told[1]}", flush=True)


if __name__ == "__main__":
    main()
