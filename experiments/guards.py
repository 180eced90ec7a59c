"""Accuracy with bad clients and with differential privacy, on ten sites of the digits.

    .venv/bin/python experiments/guards.py --out docs/results/guards.md

Poison: k of 10 clients flip their labels (y -> 9 - y), send the opposite of their change, or send ten times their
change; the accuracy is the mean over the personal models of the honest ones. Privacy: FedAvg with +dp at several z, all
clients in every round, with 10 and with 100 clients. Three seeds; mean and range.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

import fedprior
from fedprior.data.federation import Federation
from fedprior.files import write_text
from fedprior.guards import changed, changes
from fedprior.methods import build
from fedprior.protocol import About, AnyMethod
from fedprior.wrapping import Wrapper

ROUNDS, SEEDS = 20, (0, 1, 2)
GUARDS = ("", "+median", "+trimmed", "+normbound", "+krum")
ATTACKS = ("labels", "sign", "scale")


@dataclass(frozen=True, kw_only=True)
class Poisoned(Wrapper):
    """The first `bad` clients by name send the opposite of their change, or ten times it."""

    inner: AnyMethod
    attack: Annotated[Literal["sign", "scale"], Field(description="what they send")] = "sign"
    bad: int = 0

    def describe(self, inner: About) -> About:
        """Bad clients."""
        return inner

    def aggregate(self, server: Any, ups: Any, ids: torch.Tensor) -> Any:
        """As if the bad clients had sent something else."""
        delta = changes(ups.w, server.w)
        delta[ids < self.bad] *= -1.0 if self.attack == "sign" else 10.0
        return self.inner.aggregate(server, ups._replace(w=changed(ups.w, server.w, delta)), ids)

    def personalise(self, client: Any, down: Any, data: Any, keys: Any) -> Any:
        """The inner method's."""
        return self.inner.personalise(client, down, data, keys)


def sites(clients: int, seed: int) -> Federation:
    return fedprior.data.load("digits", partition="iid", clients=clients, seed=seed)


def flipped(data: Federation, bad: int) -> Federation:
    """The first `bad` clients by name learn 9 - y."""
    y = data.train.y.clone()
    for row in sorted(range(len(data)), key=lambda i: data.clients[i])[:bad]:
        own = slice(data.train.start[row], data.train.start[row] + data.train.size[row])
        y[own] = 9 - y[own]
    return replace(data, train=replace(data.train, y=y))


def honest(result: Any, bad: int) -> float:
    names = sorted(result.federation.clients)[bad:]
    return float(np.mean([result.values[name]["accuracy"] for name in names]))


def poisoned(attack: str, bad: int, guard: str, seed: int) -> float:
    data = sites(10, seed)
    method: Any = build(f"fedavg{guard}")
    if attack == "labels":
        data = flipped(data, bad)
    elif bad:
        method = Poisoned(inner=method, attack=attack, bad=bad)  # type: ignore[arg-type]
    found = fedprior.run(method, data, rounds=ROUNDS, seed=seed, workers=1, select="last")
    return honest(found, bad)


def private(noise: float | None, clients: int, seed: int) -> tuple[float, float]:
    data = sites(clients, seed)
    method = build("fedavg") if noise is None else build("fedavg+dp", {"dp": {"noise": noise, "bound": 1.0}})
    found = fedprior.run(method, data, rounds=ROUNDS, seed=seed, workers=1, select="last")
    spent = found.summary.get("privacy", {"epsilon_at_delta": {"1e-05": float("inf")}})
    return found.mean("accuracy"), spent["epsilon_at_delta"]["1e-05"]


def cell(values: list[float]) -> str:
    return f"{100 * np.mean(values):.1f} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def lines() -> Iterator[str]:
    yield "# Guards: accuracy with bad clients and with differential privacy"
    yield ""
    yield (
        f"Digits, iid, FedAvg, {ROUNDS} rounds, last round, test accuracy in %: mean over {len(SEEDS)} seeds (range). "
        "`experiments/guards.py` makes this page."
    )
    yield ""
    yield "## Bad clients among 10: accuracy of the honest ones"
    yield ""
    yield "| attack | bad | plain | " + " | ".join(f"`{guard}`" for guard in GUARDS[1:]) + " |"
    yield "| --- |" + " --- |" * (len(GUARDS) + 1)
    for attack in ATTACKS:
        for bad in range(4):
            found = [cell([poisoned(attack, bad, guard, seed) for seed in SEEDS]) for guard in GUARDS]
            yield f"| {attack} | {bad} | " + " | ".join(found) + " |"
    yield ""
    yield "## Differential privacy, C = 1, every client in every round, δ = 1e-5"
    yield ""
    yield "| clients | z | ε | accuracy |"
    yield "| --- | --- | --- | --- |"
    for clients in (10, 100):
        for noise in (None, 0.1, 0.5, 1.0, 2.0, 5.0):
            pairs = [private(noise, clients, seed) for seed in SEEDS]
            yield f"| {clients} | {noise or 'none'} | {pairs[0][1]:.3g} | {cell([accuracy for accuracy, _ in pairs])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    write_text(parser.parse_args().out, "\n".join(lines()) + "\n")


if __name__ == "__main__":
    main()
