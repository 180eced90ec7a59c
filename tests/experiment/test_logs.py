"""`logs.csv`: what a method says of each client's last update, at every evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import fedprior
from fedprior.data.federation import Federation
from fedprior.experiment.journal import Event
from fedprior.experiment.result import Result
from fedprior.methods import build
from fedprior.training import Train
from support import federation

QUICK = Train(lr=0.05, epochs=1, batch_size=8)
HALF = {"rule": "fraction", "rate": 0.4}


@pytest.fixture(scope="module")
def data() -> Federation:
    return federation(dtype=torch.float32)


def run(name: str, data: Federation, **more: Any) -> Result:
    settings: dict[str, Any] = {"rounds": 4, "eval_every": 2, "model": {"name": "mlp", "hidden": [5]}} | more
    return fedprior.run(build(name, {}, QUICK), data, **settings)


@pytest.mark.parametrize(
    ("name", "logged"),
    [
        ("pfedvem", {"tau", "rho"}),
        ("fedmap", {"log_omega"}),
        ("pfedfda", {"beta"}),
        ("fedbps", {"mask_share"}),
    ],
)
def test_what_methods_log_of_clients(name: str, logged: set[str], data: Federation, tmp_path: Path) -> None:
    """A row for each client and evaluation, all of this round when everyone takes part, and finite numbers."""
    run(name, data, out=tmp_path / "run")
    found = pd.read_csv(tmp_path / "run" / "logs.csv")
    assert logged | {"loss"} <= set(found.columns)
    assert list(zip(found["round"], found["client"], strict=True)) == [(r, c) for r in (2, 4) for c in data.clients]
    assert (found["updated"] == found["round"]).all()
    assert found[sorted(logged)].notna().all(axis=None)
    assert (found.groupby("round")["loss"].nunique() == len(data)).all(), "each client has its own"


def test_the_latest_update_of_each_client(data: Federation, tmp_path: Path) -> None:
    """Three of seven take part in a round: at round 4 a client has the log of the last round in which it did.

    Those rounds are told by the loss: an observer sees none of single clients, so that the rounds are drawn again here.
    """
    result = run("fedmap", data, out=tmp_path / "run", participation=HALF, seed=3)
    rule, root = fedprior.Participation(**HALF), fedprior.rng.Key.from_seed(3)  # type: ignore[arg-type]
    drawn = [rule.draw(root, data.clients, k, 4, everyone_trains=False).trainers for k in range(4)]
    assert {len(rows) for rows in drawn} == {3}
    for done in (2, 4):
        last = {data.clients[i]: k + 1 for k in range(done) for i in drawn[k]}
        found = {row["client"]: row for row in result.journal.logs if row["round"] == done}
        assert {client: row["updated"] for client, row in found.items()} == last
    early = {row["client"]: row for row in result.journal.logs if row["round"] == 2}
    late = {row["client"]: row for row in result.journal.logs if row["round"] == 4}
    stayed = [client for client, row in late.items() if row["updated"] <= 2]
    moved = [client for client, row in late.items() if row["updated"] > 2 and client in early]
    assert stayed
    assert moved
    for client in stayed:
        assert late[client]["log_omega"] == early[client]["log_omega"]
    for client in moved:
        assert late[client]["log_omega"] != early[client]["log_omega"]


@pytest.mark.parametrize("name", ["fedmap", "pfedvem"])
def test_logs_survive_an_interruption(name: str, data: Federation, tmp_path: Path) -> None:
    """Byte for byte, with clients whose last update lies before the checkpoint."""

    def stop(event: Event) -> None:
        if (event["kind"], event["round"]) == ("round", 4):
            raise KeyboardInterrupt

    settings = {"participation": HALF, "checkpoint_every": 1, "seed": 3}
    run(name, data, out=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        run(name, data, out=tmp_path / "cut", observe=stop, **settings)
    run(name, data, out=tmp_path / "cut", **settings)
    assert (tmp_path / "cut" / "logs.csv").read_bytes() == (tmp_path / "whole" / "logs.csv").read_bytes()
