"""The same comparison on several splits of the same rows, in one folder, and the verdict over all of them.

Split k has test rows of its own as long as there are any (`turn`), and another seed: weights, batches and every draw.
The folder holds `assessment.toml`, a comparison in `split-1`, `split-2`, ..., and at the end `verdict.json`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

from fedprior.data.federation import Federation
from fedprior.data.frames import from_frame
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError, shown
from fedprior.experiment import config as configs
from fedprior.experiment import notebook
from fedprior.experiment.assessment import LOCAL, Assessment
from fedprior.experiment.comparison import Comparison
from fedprior.experiment.config import CUSTOM, Config, Section
from fedprior.experiment.identity import flat, refuse_another
from fedprior.experiment.placing import at_work, claim, place
from fedprior.files import write_text
from fedprior.methods import build
from fedprior.models.likelihood import likelihood_of, linear_coefficients
from fedprior.protocol import METHODS

FILE = "assessment.toml"
REPEATS = 5
USUAL = ("local", "fedavg_ft", "fedmap", "mixed", "stack")
"""What is compared where nothing is said."""
WIDE = 500
"""Coefficients of a linear model above which Mixed must be asked for: its products of matrices take too long."""
TEST = 0.2
"""The share of rows tested on, by default."""

Source = Callable[[int, int], Federation]
"""From the seed of the order of rows and the turn to the federation."""
Observers = Any


def usual(federation: Federation) -> list[str]:
    """The methods to compare by default: those of `USUAL` that suit the federation's target and number of inputs."""
    found, size = [], linear_coefficients(likelihood_of(federation.target), math.prod(federation.shape))
    for name in USUAL:
        about = METHODS[name].about
        fits = about.most_coefficients is None or size <= min(WIDE, about.most_coefficients)
        if fits and (isinstance(federation.target, Classes) or not about.needs_classes):
            found.append(name)
    return found


def assess(
    data: pd.DataFrame | str | Path,
    *,
    site: str | None = None,
    target: str,
    methods: list[str] | Mapping[str, Section] | None = None,
    splits: int = REPEATS,
    out: str | Path | None = None,
    observers: Observers = None,
    model: Section | None = None,
    train: Section | None = None,
    options: Section | None = None,
    **settings: Any,
) -> Assessment:
    """Compare methods on a table of your own over repeated splits, and say what federation does for each site.

    Args:
        data: A DataFrame, a file, a folder with one file per site, or the URL of a database.
        site: The column that names the site; not needed for a folder.
        target: The column to predict.
        methods: Names, or names with their options; by default a few that suit the target. Local is always included.
        splits: How often the rows are split anew; five splits test on every row once.
        out: A folder; the same call continues an interrupted comparison.
        observers: Called with a method's name and its number of rounds; returns what to observe it with.
        model: A section such as `{"name": "mlp"}`.
        train: A section such as `{"lr": 0.1}`.
        options: Those of the data set `table`, such as `group` or `kinds`.
        settings: The fields of `Settings`.

    Returns:
        The comparison of every split, and a verdict for each site.

    Raises:
        FedpriorError: If a column does not exist, or an option is unknown or out of range.

    Examples:
        >>> import fedprior, pandas as pd
        >>> table = pd.DataFrame({"site": ["a", "b"] * 30, "dose": [1.0, 2.0, 3.0, 4.0, 5.0] * 12})
        >>> table["ill"] = ["yes" if dose > 2.5 else "no" for dose in table["dose"]]
        >>> found = fedprior.assess(table, site="site", target="ill", methods=["fedmap"], splits=2, rounds=2, workers=1)
        >>> list(found.verdict.sites), found.best in ("local", "fedavg_ft", "fedmap")
        (['a', 'b'], True)
    """
    observers = observers or notebook.observers()
    chosen = {name: {} for name in methods} if isinstance(methods, list | tuple) else dict(methods or {})
    sections: Section = {"methods": chosen, "model": model or {}, "train": train or {}, **settings}
    if isinstance(data, pd.DataFrame):
        own = {"site": site, "target": target, **(options or {})}
        config = configs.parse(sections | {"data": {"name": CUSTOM, **own}}, several=True)
        return carry_out(config, splits, _place(out), observers, lambda s, turn: _framed(data, own, s, turn))
    given = {"path": str(data), "target": target, **({} if site is None else {"site": site}), **(options or {})}
    config = configs.parse(sections | {"data": {"name": "table", **given}}, several=True)
    return carry_out(config, splits, _place(out), observers)


def _framed(frame: pd.DataFrame, own: Section, seed: int, turn: int) -> Federation:
    if own["site"] is None:
        raise FedpriorError("which column names the site? Give site=COLUMN.")
    return from_frame(frame, seed=seed, turn=turn, **own)


def _place(out: str | Path | None) -> Path | None:
    return None if out is None else Path(out)


def carry_out(
    config: Config,
    splits: int,
    out: Path | None,
    observers: Observers = None,
    source: Source | None = None,
    told: Callable[[Federation], None] | None = None,
) -> Assessment:
    """Do what is left of an assessment: all, some or nothing of it; `told` sees the first split before training."""
    if type(splits) is not int or not 1 <= splits <= 1000:
        raise FedpriorError(f"splits = {shown(splits)} is not valid: give a whole number from 1 to 1000.")
    load = source or (lambda seed, turn: _loaded(config, seed, turn))
    first = load(*_turn(config, 0)).to(config.settings().dtype)
    config = completed(config, first)
    if told is not None:
        told(first)
    if out is None:
        return _assessed(config, splits, None, observers, load, first)
    with at_work(out, partial(_begin, config, splits, out)):
        found = _assessed(config, _splits(out), out, observers, load, first)
        found.verdict.write(out)
    return found


def resume(folder: Path, observers: Observers = None) -> Assessment:
    """Continue an assessment of a table that lies in files."""
    document = configs.read(folder / FILE)
    splits = document.pop("splits", None)
    config = configs.parse(document, several=True)
    if config.data["name"] == CUSTOM:
        raise FedpriorError(
            f"the table of the comparison in '{folder}' came from Python: continue it by the same call, with out=."
        )
    return carry_out(config, splits, folder, observers)


def completed(config: Config, federation: Federation) -> Config:
    """The configuration with the methods and settings that the data recommend, where it has none of its own."""
    named: dict[str, Section] = dict(config.methods or {name: {} for name in usual(federation)})
    known = federation.recipe.get("methods", {})
    ordered = [LOCAL, *(name for name in named if name != LOCAL)]
    named = {name: {**known.get(name, {}), **named.get(name, {})} for name in ordered}
    for name, own in named.items():
        build(name, own)  # a wrong one should be told before the first is trained
    ours = {k: v for k, v in federation.recipe.get("settings", {}).items() if k not in config.model_fields_set}
    return config.model_copy(update={"methods": named, **ours})


def _loaded(config: Config, seed: int, turn: int) -> Federation:
    data = {**config.data, "seed": seed, **({"turn": turn} if turn else {})}
    return config.model_copy(update={"data": data}).load_data()


def federation_of(config: Config, k: int) -> Federation:
    """Split k of the data in files, in the run's precision."""
    return _loaded(config, *_turn(config, k))


def _turn(config: Config, k: int) -> tuple[int, int]:
    """Split k's seed and turn: the rows get a new order once each of them has been tested on."""
    test = config.data.get("test", TEST)
    turns = max(1, int(1 / test + 1e-9)) if isinstance(test, float) and 0 < test < 1 else 1
    return config.seed + k // turns, k % turns


def _begin(config: Config, splits: int, folder: Path) -> bool:
    """Write down what is to be done; whether the folder did not hold this very assessment already."""
    plain = {key: value for key, value in config.document().items() if key != "method"}
    document = {"splits": splits, **plain, "methods": config.methods}
    if not (folder / FILE).exists():
        claim(folder)
        place({FILE: tomli_w.dumps(document)}, folder)
        return True
    there = configs.read(folder / FILE)
    refuse_another(folder, _identity(there), _identity(document))
    if splits > there.get("splits", 0):
        write_text(folder / FILE, tomli_w.dumps(document))
    return False


def _identity(document: Mapping[str, Any]) -> Section:
    """All that makes an assessment what it is; there may be more splits."""
    return flat({k: v for k, v in document.items() if k != "splits"}) | {"methods": list(document.get("methods", {}))}


def _splits(folder: Path) -> int:
    return int(configs.read(folder / FILE)["splits"])


def _assessed(
    config: Config, splits: int, out: Path | None, observers: Observers, load: Source, first: Federation
) -> Assessment:
    found = {}
    for k in range(splits):
        federation = first if k == 0 else load(*_turn(config, k))
        name = f"split-{k + 1}"
        told = None if observers is None else _numbered(observers, f"split {k + 1}/{splits}")
        found[name] = _compared(config, k, federation, None if out is None else out / name, told)
    return Assessment(found)


def _numbered(observers: Observers, split: str) -> Observers:
    """Observers that tell the runs of one split from those of another."""
    return lambda name, rounds: observers(f"{split} {name}", rounds)


def _compared(config: Config, k: int, federation: Federation, out: Path | None, observers: Observers) -> Comparison:
    from fedprior import experiment

    own = config.model_copy(update={"seed": config.seed + k})
    setups = [own.of_method(name, options).setup(federation) for name, options in config.methods.items()]
    return experiment.compare(
        [setup.method for setup in setups],
        federation,
        model=setups[0].model,
        out=out,
        baselines=False,
        observers=observers,
        **dict(own.settings()),
    )
