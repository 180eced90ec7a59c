"""Runs with a folder: begun, continued after an interruption, or only read.

A run's folder holds `config.toml`, `events.jsonl`, `clients.csv`, `logs.csv`, `checkpoint/`, `models/`,
`predictions.safetensors` and, once it is complete, `summary.json`. A comparison's folder holds `comparison.toml` and
one run per method.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

import tomli_w

from fedprior.data.registry import DATASETS
from fedprior.engine import RunnerFactory
from fedprior.errors import FedpriorError
from fedprior.experiment import config as configs
from fedprior.experiment.checkpoint import check_run
from fedprior.experiment.config import CUSTOM, Config, Setup
from fedprior.experiment.identity import flat, identity, refuse_another
from fedprior.experiment.journal import Observer
from fedprior.experiment.loaded import load_result
from fedprior.experiment.loop import execute
from fedprior.experiment.placing import claim, place
from fedprior.experiment.result import Result
from fedprior.experiment.track import Track
from fedprior.files import write_text

RUN, COMPARISON, COMPLETE = "config.toml", "comparison.toml", "summary.json"


def begin(setup: Setup, folder: Path, local: Setup | None = None) -> bool:
    """Write the configuration of a run, and of Local beside it if given; True if the folder did not hold it already."""
    if (folder / RUN).exists():
        _continue(setup, folder)
        if local is not None:
            begin(local, folder / "local")
        return False
    claim(folder)
    beside = {} if local is None else {f"local/{RUN}": tomli_w.dumps(local.document())}
    place(beside | {RUN: tomli_w.dumps(setup.document())}, folder)
    return True


def _continue(setup: Setup, folder: Path) -> None:
    """Refuse a run that differs from the folder's; if only `rounds` has grown, write it down."""
    document = tomli_w.dumps(setup.document())
    there, here = configs.parse({}, file=folder / RUN), tomllib.loads(document)
    refuse_another(folder, flat(there.document()), flat(here))
    if setup.settings.rounds > there.rounds:
        write_text(folder / RUN, document)


def carry_out(
    setup: Setup,
    folder: Path | None,
    reference: Result | None = None,
    observe: Observer | None = None,
    runner: RunnerFactory | None = None,
    track: Track | None = None,
) -> Result:
    """Do the rest of a run, or only read a finished one; the caller holds the folder's lock.

    `runner` does the jobs of clients that are elsewhere; a `track` is shared by methods that train in the same way.
    """
    method, federation = setup.method, setup.federation
    if folder is not None and finished(folder, setup.settings.rounds):
        check_run(folder / "checkpoint", federation.fingerprint(), identity(setup))
        return load_result(folder, method, federation, reference)
    return execute(
        method,
        federation,
        setup.settings,
        model=setup.model,
        folder=folder,
        resume=folder is not None,
        reference=reference,
        observe=observe,
        runner=runner,
        track=track,
    )


def finished(folder: Path, rounds: int) -> bool:
    """Whether a folder holds a finished run of at least this many rounds."""
    if not (folder / COMPLETE).exists():
        return False
    try:
        done = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))["rounds"]
    except (ValueError, KeyError, TypeError):
        return True  # damaged, which is reported when it is read
    return not isinstance(done, int) or done >= rounds


def begin_comparison(setups: Mapping[str, Setup], folder: Path) -> bool:
    """Write the configurations of a comparison; True if the folder did not hold it already."""
    there = compared(folder)
    if there is None:
        claim(folder)
        runs = {f"{name}/{RUN}": tomli_w.dumps(setup.document()) for name, setup in setups.items()}
        place(runs | {COMPARISON: tomli_w.dumps({"methods": list(setups)})}, folder)
        return True
    if there != list(setups):
        raise FedpriorError(
            f"'{folder}' holds another comparison, of {', '.join(there)} and not of {', '.join(setups)}: choose "
            "another folder, or continue that comparison as it was begun."
        )
    for name, setup in setups.items():
        begin(setup, folder / name)
    return False


def compared(folder: Path) -> list[str] | None:
    """The methods of the comparison in a folder; None if there is no comparison."""
    if not (folder / COMPARISON).exists():
        return None
    names = configs.read(folder / COMPARISON).get("methods")
    if not isinstance(names, list) or not names:
        raise FedpriorError(f"'{folder / COMPARISON}' is damaged: it lists no methods.")
    return [str(name) for name in names]


def configuration(folder: Path) -> Config:
    """The configuration of the run in a folder."""
    if not (folder / RUN).exists():
        raise FedpriorError(
            f"'{folder}' holds no run to resume (it has no {RUN}): give the output folder of `fedprior run` or "
            "`fedprior compare`."
        )
    found = configs.parse({}, file=folder / RUN)
    if found.data["name"] not in DATASETS or found.model.get("name") == CUSTOM:
        raise FedpriorError(
            f"the data or the network of the run in '{folder}' came from Python: continue it by the same call of "
            "fedprior.run or fedprior.compare, with out=."
        )
    return found
