"""Does FedBPS choose the same weights by the empirical Fisher as by the exact curvature of the expected loss (GGN)?

    .venv/bin/python experiments/masks.py

Digits over 20 clients, 3 labels each and Dirichlet 0.3, two seeds, 20 rounds of FedBPS with p = 0.7 by the Fisher.
After every round both masks are computed from the same clients, for four p. The script prints the share of one mask
that is in the other: the smallest of all rounds, and that of the last. The network has ReLUs, so its output is
piecewise linear in each single weight, and the diagonal of the GGN is that of the Hessian itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

import fedprior
from fedprior import tree
from fedprior.experiment import Settings
from fedprior.experiment.config import Setup
from fedprior.methods.fedbps import FedBPS
from fedprior.rng import Key, Keys

ROUNDS, SEEDS, SHARES = 20, (0, 1), (0.3, 0.5, 0.7, 0.9)
PARTITIONS: dict[str, dict[str, Any]] = {
    "3 labels": {"partition": "labels", "labels": 3},
    "Dirichlet 0.3": {"partition": "dirichlet", "alpha": 0.3},
}


def overlaps(partition: dict[str, Any], seed: int) -> Iterator[list[float]]:
    """After every round, the overlap of the two masks for each of `SHARES`."""
    data = fedprior.data.load("digits", clients=20, seed=seed, **partition)
    method = Setup.of(FedBPS(p=0.7), data, None, Settings()).method
    assert isinstance(method, FedBPS)
    exact = replace(method, curvature="ggn")
    root, ids = Key.from_seed(seed), torch.arange(len(data))
    keys = Keys.of(root, data.clients)
    server = method.init_server(root, len(data))
    client = None
    for number in range(ROUNDS):
        down = tree.expand(method.broadcast(server, ids), len(data))
        client = client or method.init_client(down, data.train, keys)
        client, ups, _ = method.local_update(client, down, data.train, keys.fold("round", number))
        w = tree.average(ups.w, ups.n)
        by_fisher = method.scores(server, ups, w)
        by_ggn = method.scores(server, ups._replace(v=exact.variances(client.w, data.train)), w)
        masks = [[replace(method, p=p).choose(scores) for scores in (by_fisher, by_ggn)] for p in SHARES]
        yield [float((a & b).sum() / a.sum()) for a, b in masks]
        server = method.aggregate(server, ups, ids)


if __name__ == "__main__":
    print("p", *(f"{p:.0%}" for p in SHARES), sep="\t")
    for name, partition in PARTITIONS.items():
        for seed in SEEDS:
            found = torch.tensor(list(overlaps(partition, seed)))
            for what, row in (("smallest", found.min(0).values), ("last", found[-1])):
                print(f"{name}, seed {seed}, {what}", *(f"{x:.3f}" for x in row.tolist()), sep="\t")
