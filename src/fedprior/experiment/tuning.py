"""Settings of methods, searched on validation NLL with Optuna: the same number of tries and the same time for each.

A method declares what is searched (`Method.space`); its first try is its default. Tries are kept in `study.db` of the
output folder, so that the same call goes on where it was stopped. Test rows have no say.
"""

from __future__ import annotations

import errno
import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedprior.data.federation import Federation
from fedprior.errors import FedpriorError
from fedprior.experiment.config import Config, Section
from fedprior.experiment.repeated import completed, federation_of
from fedprior.experiment.selection import compared_by
from fedprior.files import folder_lock, write_text
from fedprior.protocol import METHODS, Space

STUDY, TUNED = "study.db", "tuned.toml"
OPTIONS, SEAL, SETTINGS = "options", "seal", "settings"
FULL = "disk is full"
"""What SQLite says."""


class Tuned(NamedTuple):
    """A method's best options, their validation NLL and that of its defaults, and the number of tries."""

    options: Section
    score: float
    before: float
    tries: int


def tune(
    config: Config,
    out: Path,
    *,
    tries: int = 20,
    minutes: float = 10.0,
    splits: int = 2,
    tell: Callable[[str, int, float], None] | None = None,
) -> dict[str, Tuned]:
    """Search each method's declared space for the lowest validation NLL, a mean over sites and splits.

    Leaves `tuned.toml`, which `fedprior compare --config` takes. Each method has so many tries and minutes.
    """
    if find_spec("optuna") is None:
        raise FedpriorError("tuning needs the package optuna: pip install 'fedprior[tune]'.")
    if not (1 <= tries <= 10_000 and 0 < minutes < math.inf and 1 <= splits <= 100):
        raise FedpriorError("tuning needs at least one try, a positive number of minutes and at least one split.")
    federations = [federation_of(config, k) for k in range(splits)]
    config = completed(config, federations[0])
    with folder_lock(out):
        out.mkdir(parents=True, exist_ok=True)
        found = {name: _tuned(config, name, federations, out, tries, minutes, tell) for name in config.methods}
        write_text(out / TUNED, tomli_w.dumps({"methods": {name: best.options for name, best in found.items()}}))
    return found


def _tuned(
    config: Config,
    name: str,
    federations: list[Federation],
    out: Path,
    tries: int,
    minutes: float,
    tell: Callable[[str, int, float], None] | None,
) -> Tuned:
    import optuna

    space, given = METHODS[name.split("+", maxsplit=1)[0]].space, config.methods[name]
    with _kept(out):
        study = _study(out, name)
        _same(study, out, config, given, len(federations))
        done = _completed(study)
    end = time.monotonic() + 60 * minutes
    while len(done) < (tries if space else 1) and (not done or time.monotonic() < end):
        with _kept(out):
            study.sampler = optuna.samplers.TPESampler(seed=(config.seed + len(done)) % 2**32)  # also after a stop
            trial = study.ask()
            own = _drawn(trial, space) if done else {}
        score = _score(config, name, {**given, **own}, federations)
        with _kept(out):
            trial.set_user_attr(OPTIONS, own)
            trial.set_user_attr(SEAL, _seal(own, trial.params, score))
            study.tell(trial, score)
            done = _completed(study)
        if tell is not None:
            tell(name, len(done), score)
    best = min(done, key=lambda trial: float(trial.value))  # the first of equals
    return Tuned({**given, **best.user_attrs[OPTIONS]}, best.value, float(done[0].value), len(done))


@contextmanager
def _kept(out: Path) -> Iterator[None]:
    """Refuse a study that is damaged: Optuna and what it uses then raise errors of every class."""
    try:
        yield
    except (FedpriorError, MemoryError):
        raise
    except Exception as error:
        if FULL in str(error.__cause__ or error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise _damaged(out) from None


def _damaged(out: Path) -> FedpriorError:
    return FedpriorError(
        f"'{out / STUDY}' is damaged or is not a study of this program, or it cannot be written: delete it, or choose "
        "another folder."
    )


def _study(out: Path, name: str) -> Any:
    """A method's study in the folder's data base; the path is not part of a URL, in which `?` would end it."""
    import optuna
    from sqlalchemy.pool import NullPool

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    place = {"creator": partial(sqlite3.connect, out / STUDY, timeout=60.0), "poolclass": NullPool}
    storage = optuna.storages.RDBStorage("sqlite://", engine_kwargs=place)
    study = optuna.create_study(study_name=name, storage=storage, direction="minimize", load_if_exists=True)
    if study.direction.name != "MINIMIZE":
        raise _damaged(out)
    return study


def _completed(study: Any) -> list[Any]:
    """The tries that came to an end, in order; one that was killed counts for nothing, a changed one is refused."""
    found = [trial for trial in study.trials if trial.value is not None]
    for trial in found:
        if trial.user_attrs[SEAL] != _seal(trial.user_attrs[OPTIONS], trial.params, trial.value):
            raise ValueError("a try is not what it was")
    return found


def _seal(options: Section, drawn: Section, score: float) -> str:
    """A checksum of a try."""
    return sha256(json.dumps([options, drawn, score], sort_keys=True).encode()).hexdigest()


def _same(study: Any, out: Path, config: Config, given: Section, splits: int) -> None:
    """Refuse tries of other data or settings, whose scores cannot be compared with ours."""
    plain = config.model_dump(mode="json", exclude={"method", "methods", "workers", "engine", "ray_address"})
    here = json.loads(json.dumps({**plain, "given": given, "splits": splits}, default=str))
    if study.trials and SETTINGS not in study.user_attrs:
        raise _damaged(out)
    if study.user_attrs.get(SETTINGS, here) != here:
        raise FedpriorError(
            f"'{out}' holds tries of {study.study_name} with other data or settings: choose another folder, or go on "
            "as it was begun."
        )
    study.set_user_attr(SETTINGS, here)


def _drawn(trial: Any, space: Mapping[str, Space]) -> Section:
    """One point of the space: a number on a logarithmic scale, or one of several values."""
    found: Section = {}
    for option, values in space.items():
        if isinstance(values, tuple):
            found[option] = trial.suggest_float(option, *values, log=True)
        else:
            found[option] = values[trial.suggest_int(option, 0, len(values) - 1)]
    return found


def _score(config: Config, name: str, options: Section, federations: list[Federation]) -> float:
    """The cross-fitted validation NLL, a mean over splits; a large number if a model diverged."""
    from fedprior import experiment

    scores = []
    for k, federation in enumerate(federations):
        own = config.model_copy(update={"seed": config.seed + k})
        setup = own.of_method(name, options).setup(federation)
        result = experiment.run(setup.method, federation, model=setup.model, **dict(own.settings()))
        scores.append(compared_by(result.summary))
    mean = sum(scores) / len(scores)
    return mean if math.isfinite(mean) else 1e9
