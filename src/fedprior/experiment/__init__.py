"""Run one method, compare several, or resume either. The command line calls these three functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fedprior.data.federation import Federation
from fedprior.engine import AnyMethod
from fedprior.errors import FedpriorError, shown
from fedprior.experiment import folder as folders
from fedprior.experiment import notebook, repeated
from fedprior.experiment.assessment import Assessment
from fedprior.experiment.comparison import Comparison
from fedprior.experiment.config import Model, Settings, Setup
from fedprior.experiment.joining import join
from fedprior.experiment.journal import Observer
from fedprior.experiment.notebook import Observers
from fedprior.experiment.participation import Participation
from fedprior.experiment.placing import at_work
from fedprior.experiment.prior import load_prior
from fedprior.experiment.repeated import assess
from fedprior.experiment.result import PersonalModel, Result, load_model
from fedprior.experiment.track import Track, tracks
from fedprior.methods import build
from fedprior.options import check_names, check_truths, check_values, plain_errors
from fedprior.protocol import Method

__all__ = [
    "Assessment",
    "Comparison",
    "Participation",
    "PersonalModel",
    "Result",
    "Settings",
    "assess",
    "compare",
    "join",
    "load_model",
    "load_prior",
    "resume",
    "run",
]

BESIDE = ("local", "fedavg_ft")
"""Baselines that every comparison includes by default."""


def run(
    method: AnyMethod,
    federation: Federation,
    *,
    model: Model = None,
    out: str | Path | None = None,
    reference: Result | Literal["local"] | None = None,
    observe: Observer | None = None,
    observers: Observers | None = None,
    **settings: Any,
) -> Result:
    """Train a method on a federation.

    Args:
        method: An object such as `FedMAP(sigma2=15)`.
        federation: From `fedprior.data.load`, `from_arrays` or `from_frame`.
        model: Your own network, a name, or a section such as `{"name": "mlp", "hidden": [100]}`; by default the
            federation's recipe decides, as it does for `method.train`.
        out: A folder for checkpoints and results: the same call continues an interrupted run, and the same call with
            more rounds extends a finished one.
        reference: A finished run, or "local" to run Local first: the result then has each client's gain over it.
        observe: Called with every event of the run.
        observers: Called with a method's name and its number of rounds; returns what to observe it with.
        settings: The fields of `Settings`: `rounds`, `seed`, `participation`, `select`, `workers`, ...

    Returns:
        Each client's metrics and personal model.

    Raises:
        FedpriorError: If an option is unknown or out of range, or if the folder holds another run.

    Examples:
        >>> import fedprior
        >>> from fedprior.methods.fedmap import FedMAP
        >>> federation = fedprior.data.load("synthetic", clients=4, samples=60)
        >>> result = fedprior.run(FedMAP(sigma2=15), federation, rounds=2, workers=1)
        >>> result.clients.shape[0], result.summary["last"]["round"]
        (4, 2)
    """
    setup = Setup.of(method, federation, model, _settings(settings))
    _check_reference(reference)
    local = None
    if reference == "local":
        reference = None
        if method.about.name != "local":  # with the same training, in a folder within the run's
            local = Setup.of(build("local", train=setup.method.train), setup.federation, model, setup.settings)
    folder, observers = _place(out), observers or notebook.observers(observe)
    runs = {".": setup} | ({} if local is None else {"local": local})
    with _at_work(folder, runs, lambda place: folders.begin(setup, place, local)):
        if local is not None:
            reference = _finished(local, None if folder is None else folder / "local", None, observers)
        return _finished(setup, folder, reference, observers)


def compare(
    methods: Sequence[AnyMethod],
    federation: Federation,
    *,
    model: Model = None,
    out: str | Path | None = None,
    baselines: bool = True,
    observe: Observer | None = None,
    observers: Observers | None = None,
    **settings: Any,
) -> Comparison:
    """Train several methods, and by default Local and FedAvg-FT too, on the same partition from the same weights.

    Args:
        methods: Objects such as `[FedMAP(), FedProx()]`, each method once.
        federation: The data of all clients.
        model: As in `run`; the same network for every method.
        out: A folder with a sub-folder per method; the same call continues an interrupted comparison.
        baselines: Whether Local and FedAvg-FT are included.
        observe: Called with every event of every run.
        observers: Called with a method's name and its number of rounds; returns what to observe it with.
        settings: The fields of `Settings`, as in `run`.

    Returns:
        A mapping from names to results, with a table, gains over Local and a verdict.

    Raises:
        FedpriorError: If there is nothing to compare, or a method is listed twice.

    Examples:
        >>> import fedprior
        >>> from fedprior.methods.fedprox import FedProx
        >>> federation = fedprior.data.load("synthetic", clients=4, samples=60)
        >>> found = fedprior.compare([FedProx()], federation, rounds=1, workers=1)
        >>> list(found)
        ['local', 'fedavg_ft', 'fedprox']
    """
    checked, chosen, folder = _settings(settings), _named(methods), _place(out)
    if not chosen and not baselines:
        raise FedpriorError("there is nothing to compare: give at least one method.")
    train = methods[0].train if methods else None
    for name in BESIDE if baselines else ():
        chosen.setdefault(name, build(name) if train is None else build(name, train=train))
    ordered = sorted(chosen, key=lambda name: BESIDE.index(name) if name in BESIDE else len(BESIDE))
    setups = {name: Setup.of(chosen[name], federation, model, checked) for name in ordered}
    with _at_work(folder, setups, lambda place: folders.begin_comparison(setups, place)):
        return _carry_out(setups, folder, observers or notebook.observers(observe))


def resume(
    folder: str | Path, *, observe: Observer | None = None, observers: Observers | None = None
) -> Result | Comparison | Assessment:
    """Continue the run or comparison in a folder; the result is the same, bit for bit, as without the interruption.

    Args:
        folder: The `out` of `run`, `compare` or `assess`. In its `config.toml`, `rounds` may have been raised, and
            `workers`, `engine` and `ray_address` may have changed.
        observe: Called with every event.
        observers: Called with a method's name and its number of rounds; returns what to observe it with.

    Returns:
        What the interrupted call would have returned.

    Raises:
        FedpriorError: If the folder holds no run, or one whose data came from Python.
    """
    place, observers = _place(folder), observers or notebook.observers(observe)
    if place is None:
        raise FedpriorError("there is no folder to resume: give the output folder of a run or a comparison.")
    if (place / repeated.FILE).exists():
        return repeated.resume(place, observers)
    names = folders.compared(place)
    if names is not None:
        found = {name: folders.configuration(place / name) for name in names}
        if len({config.rounds for config in found.values()}) > 1:
            told = ", ".join(f"{config.rounds} for {name}" for name, config in found.items())
            raise FedpriorError(f"the runs compared in '{place}' differ in rounds ({told}): give all the same.")
        federation = next(iter(found.values())).load_data()
        setups = {name: config.setup(federation) for name, config in found.items()}
        with _at_work(place, setups):
            return _carry_out(setups, place, observers)
    config = folders.configuration(place)
    setup, reference = config.setup(config.load_data()), None
    runs = {".": setup}
    if (place / "local" / folders.RUN).exists():  # with as many rounds as the run itself
        own = folders.configuration(place / "local").model_copy(update={"rounds": config.rounds})
        runs["local"] = own.setup(setup.federation)
    with _at_work(place, runs, lambda place: folders.begin(setup, place, runs.get("local"))):
        if "local" in runs:
            reference = _finished(runs["local"], place / "local", None, observers)
        return _finished(setup, place, reference, observers)


@contextmanager
def _at_work(
    folder: Path | None, runs: Mapping[str, Setup], begin: Callable[[Path], bool] | None = None
) -> Iterator[None]:
    """Begin what is new, and keep other processes out while there is work to do; reading needs no lock."""
    if folder is None:
        yield
    elif all(folders.finished(folder / name, setup.settings.rounds) for name, setup in runs.items()):
        if begin is not None:
            begin(folder)
        yield
    else:
        with at_work(folder, None if begin is None else partial(begin, folder)):
            yield


def _settings(given: Mapping[str, Any]) -> Settings:
    check_names("the settings", given, Settings.model_fields)
    check_values("settings", given)
    check_truths("settings", Settings, given)
    with plain_errors("settings"):
        return Settings(**given)


def _place(out: Any) -> Path | None:
    if out is not None and (not isinstance(out, str | Path) or not str(out).strip() or "\0" in str(out)):
        raise FedpriorError(f"{shown(out)} is not a folder: give its path.")
    return None if out is None else Path(out)


def _check_reference(reference: Any) -> None:
    if not (reference is None or isinstance(reference, Result) or (type(reference), reference) == (str, "local")):
        raise FedpriorError(f'reference = {shown(reference)} is not valid: give a finished run\'s result, or "local".')


def _named(methods: Sequence[AnyMethod]) -> dict[str, AnyMethod]:
    if not isinstance(methods, list | tuple):
        raise FedpriorError(f"{shown(methods)} is not a list of methods: give objects such as [FedMAP(), FedProx()].")
    for method in methods:
        if not isinstance(method, Method):
            raise FedpriorError(f"{shown(method)} is not a method: give objects such as FedMAP(sigma2=15).")
    chosen = {method.about.name: method for method in methods}
    if len(chosen) < len(methods):
        raise FedpriorError("a method is listed twice in a comparison: compare its variants in separate runs.")
    return chosen


def _carry_out(setups: Mapping[str, Setup], folder: Path | None, observers: Observers) -> Comparison:
    results: dict[str, Result] = {}
    shared = tracks(setups)
    for name, setup in setups.items():
        place = None if folder is None else folder / name
        results[name] = _finished(setup, place, results.get("local"), observers, shared.get(name))
    return Comparison(results)


def _finished(
    setup: Setup, folder: Path | None, reference: Result | None, observers: Observers, track: Track | None = None
) -> Result:
    """Do the rest of a run; a finished one is only read, and has nothing to observe."""
    read = folder is not None and folders.finished(folder, setup.settings.rounds)
    observe = None if read else observers(setup.method.about.name, setup.settings.rounds)
    return folders.carry_out(setup, folder, reference, observe, track=track)
