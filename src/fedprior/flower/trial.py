"""A whole federation on one machine, with real processes, and whether it gives what the simulator gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedprior import tree
from fedprior.data.schema import Schema
from fedprior.data.site_table import SiteTable, pooled
from fedprior.errors import FedpriorError
from fedprior.experiment.loop import execute
from fedprior.experiment.personal import load_model
from fedprior.experiment.prior import load_prior
from fedprior.experiment.result import Result
from fedprior.experiment.seal import PRIOR
from fedprior.flower import link
from fedprior.flower.agreement import Agreement, configured
from fedprior.flower.finish import MODEL
from fedprior.flower.layout import init
from fedprior.flower.place import Place
from fedprior.flower.processes import Process, end, environment, free_port, program, start, supernode
from fedprior.flower.serve import AGREEMENT

SITES = ("north", "south", "west")
Tell = Callable[[str], None]


class Outcome(NamedTuple):
    """What came of it."""

    identical: bool
    differences: list[str]
    seconds: dict[str, float]
    clients: dict[str, dict[str, Any]]  # each site's metrics on its test rows


def write_tables(folder: Path) -> dict[str, Path]:
    """Breast-cancer data for three sites that differ in the size of the tumours they see."""
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame
    frame["target"] = np.where(frame["target"] == 0, "malignant", "benign")
    order = frame["mean radius"].rank(method="first") + 150 * np.random.default_rng(0).normal(size=len(frame))
    place = np.argsort(np.argsort(order.to_numpy())) * len(SITES) // len(frame)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {site: folder / f"{site}.csv" for site in SITES}
    for k, path in enumerate(paths.values()):
        frame[place == k].to_csv(path, index=False)
    return paths


def schema_of(paths: Mapping[str, Path], target: str) -> Schema:
    """The schema of the first site's table."""
    from fedprior.data.reading import read_file

    return Schema.inferred(read_file(next(iter(paths.values()))), target=target)


@contextmanager
def server(place: Place) -> Iterator[Process]:
    """The SuperLink with every site's key, ended when this is over."""
    process = link.launch_link(place)
    try:
        link.register(place)
        yield process
    finally:
        end(process)


@contextmanager
def nodes(place: Place, paths: Mapping[str, Path], state: Path) -> Iterator[dict[str, Process]]:
    """A SuperNode per site, ended when this is over."""
    started: dict[str, Process] = {}
    try:
        for site, table in paths.items():
            started[site] = start_node(place, site, table, state)
        yield started
    finally:
        end(*started.values())


def start_node(place: Place, site: str, table: Path, state: Path) -> Process:
    """A site's SuperNode."""
    command = supernode(place.site(site), place.address, site, table, state / site, free_port())
    return start(command, state / f"{site}.log", environment(state / site / ".flwr"))


def simulated(place: Place, paths: Mapping[str, Path]) -> Result:
    """The same experiment in the simulator, on the same tables, client by client."""
    agreement = Agreement.read(place.run.with_name(f"{place.run.name}.{AGREEMENT}"))
    config = agreement.configuration
    tables = {s: SiteTable.read(s, p, agreement.schema, agreement.reading, config.seed) for s, p in paths.items()}
    setup = config.setup(pooled(tables).to(config.settings().dtype))
    return execute(setup.method, setup.federation, setup.settings, model=setup.model)


def differences(place: Place, paths: Mapping[str, Path], state: Path) -> tuple[list[str], Result]:
    """Where a site's model or the prior is not, bit for bit, the simulator's."""
    expected, found = simulated(place, paths), []
    for site in paths:
        own = load_model(state / site / place.experiment / site / MODEL)
        theirs = expected.arrays(site)
        if own.arrays.keys() != theirs.keys():
            found.append(f"{site}: other entries")
        found += [f"{site}: {k}" for k, v in theirs.items() if not np.array_equal(own.arrays[k], v, equal_nan=True)]
    if (place.run / PRIOR).exists():
        prior = load_prior(place.run / PRIOR).server
        pairs = zip(tree.items(prior), tree.items(expected.server), strict=True)
        found += [f"the prior: {k}" for (k, v), (_, w) in pairs if not torch.equal(v, w)]
    return found, expected


def attempt(folder: Path, sections: Mapping[str, Any], tell: Tell) -> Outcome:
    """Set up, run and compare; all processes end with it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FedpriorError(f"'{folder}' is already in use: choose another folder.")
    configured(sections)  # what is refused should leave nothing behind
    program("flower-superlink")
    began = time.monotonic()
    paths = write_tables(folder / "tables")
    plan: dict[str, Any] = {"experiment": "trial", "port": free_port(), "timeout": 120, "patience": 120}
    place = init(folder / "federation", SITES, schema_of(paths, "target"), sections, **plan)
    tell(f"certificates, keys and instructions for {len(SITES)} sites are in {place.folder}")
    seconds = {"set-up": time.monotonic() - began}
    with server(place), nodes(place, paths, folder / "sites"):
        tell("the server runs with TLS; every site's key is registered")
        seconds["start"] = time.monotonic() - began - sum(seconds.values())
        link.submit(place)
        ended = link.follow(place, lambda found: tell(_line(found)))
        seconds["run"] = time.monotonic() - began - sum(seconds.values())
    if ended["state"] != "finished":
        raise FedpriorError(f"the federation failed: {ended.get('why', 'no reason known')}")
    found, expected = differences(place, paths, folder / "sites")
    seconds["comparison"] = time.monotonic() - began - sum(seconds.values())
    return Outcome(not found, found, seconds, expected.values)


def _line(found: Mapping[str, Any]) -> str:
    return f"{found['state']}, round {found['round']}" if found.get("round") else str(found["state"])
