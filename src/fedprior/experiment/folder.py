"""Runs that live in a folder: started from a config, and taken up again after an interruption.

A run's folder holds `config.toml`, `events.jsonl`, `clients.csv`, `checkpoint/`, `models/`, `predictions.safetensors`
and, once it is complete, `summary.json`. A comparison's folder holds `comparison.toml` and one run a method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedprior import methods
from fedprior.data.federation import Federation
from fedprior.errors import FedpriorError
from fedprior.experiment import config as configs
from fedprior.experiment.checkpoint import check_data
from fedprior.experiment.config import Config, Section
from fedprior.experiment.journal import Observer
from fedprior.experiment.loop import execute
from fedprior.experiment.result import Result, load_result
from fedprior.files import alone, write_text
from fedprior.rng import Key

Observers = Callable[[Config], Observer | None]
"""Gives each run of a folder its observer."""

RUN, COMPARISON, COMPLETE = "config.toml", "comparison.toml", "summary.json"
BESIDE = ("local", "fedavg_ft")


def claim(folder: Path) -> None:
    """Refuse a folder that something lies in already."""
    if folder.exists() and not folder.is_dir():
        raise FedpriorError(f"'{folder}' is a file: choose another --out.")
    if folder.is_dir() and any(folder.iterdir()):
        raise FedpriorError(
            f"the output folder '{folder}' is already in use: choose another --out, or continue it with "
            f"`fedprior resume {folder}`."
        )


def start(config: Config, folder: Path, observers: Observers, *, reference: bool) -> Result:
    """Run a config in a new folder, with Local in `folder/local` as its reference if asked."""
    _check_method(config.method)
    federation = config.load_data()
    complete = config.resolved(federation)  # says what is wrong before anything is written
    config.participation.late(Key.from_seed(config.seed), federation.clients)
    claim(folder)
    if reference and config.method["name"] != "local":
        configs.write(_as_method(config, "local").resolved(federation), folder / "local" / RUN)
    configs.write(complete, folder / RUN)
    return proceed(folder, observers, federation)


def proceed(folder: Path, observers: Observers, federation: Federation, reference: Result | None = None) -> Result:
    """Do what is left of a run: all of it, some of it, or nothing but reading it."""
    config = configs.parse({}, file=folder / RUN)
    if (folder / "local" / RUN).exists():
        reference = proceed(folder / "local", observers, federation)
    method = config.build_method(federation)
    if (folder / COMPLETE).exists():
        check_data(folder / "checkpoint", federation.fingerprint())
        return load_result(folder, method, federation, reference)
    with alone(folder):
        return execute(
            method,
            federation,
            config.settings(),
            model=config.build_model(federation),
            folder=folder,
            resume=True,
            reference=reference,
            observe=observers(config),
        )


def compare(
    shared: Config, wanted: Mapping[str, Section], folder: Path, observers: Observers, *, baselines: bool
) -> dict[str, Result]:
    """Run several methods on one federation from the same weights, each in a sub-folder."""
    chosen = dict(wanted) | ({n: shared.methods.get(n, {}) for n in BESIDE if n not in wanted} if baselines else {})
    for name, options in chosen.items():
        _check_method({"name": name, **options})
    federation = shared.load_data()
    ordered = sorted(chosen, key=lambda name: BESIDE.index(name) if name in BESIDE else len(BESIDE))
    complete = {name: _as_method(shared, name, chosen[name]).resolved(federation) for name in ordered}
    shared.participation.late(Key.from_seed(shared.seed), federation.clients)
    claim(folder)
    for name, config in complete.items():
        configs.write(config, folder / name / RUN)
    write_text(folder / COMPARISON, tomli_w.dumps({"methods": ordered}))
    return _proceed_comparison(folder, ordered, observers, federation)


def resume(folder: Path, observers: Observers) -> dict[str, Result]:
    """Take up whatever the folder holds; returns the results by method."""
    if (folder / COMPARISON).exists():
        names = configs.read(folder / COMPARISON).get("methods")
        if not isinstance(names, list) or not names:
            raise FedpriorError(f"'{folder / COMPARISON}' is damaged: it lists no methods.")
        federation = configs.parse({}, file=folder / names[0] / RUN).load_data()
        return _proceed_comparison(folder, names, observers, federation)
    if not (folder / RUN).exists():
        raise FedpriorError(f"'{folder}' holds no run to resume: it has no {RUN}.")
    config = configs.parse({}, file=folder / RUN)
    result = proceed(folder, observers, config.load_data())
    return {result.name: result}


def _proceed_comparison(
    folder: Path, names: Iterable[str], observers: Observers, federation: Federation
) -> dict[str, Result]:
    results: dict[str, Result] = {}
    for name in names:
        results[name] = proceed(folder / name, observers, federation, results.get("local"))
    return results


def _check_method(section: Section) -> None:
    """A wrong method should not wait for the data to load."""
    options = dict(section)
    methods.build(options.pop("name"), options)


def _as_method(config: Config, name: str, options: Mapping[str, Any] | None = None) -> Config:
    return config.model_copy(update={"method": {"name": name, **(options or {})}})
