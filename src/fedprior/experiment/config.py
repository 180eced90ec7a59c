"""A run as a document: typed, checked, written to TOML and read back.

The Python API, the TOML file and the command line (`method.sigma2=15`) use the same names. Whatever a run does not
specify comes from the recipe of its data set.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import nn

from fedprior import methods, models
from fedprior.data import datasets
from fedprior.data.federation import Federation
from fedprior.engine import AnyMethod
from fedprior.errors import FedpriorError, cut, shown
from fedprior.experiment.sections import meant
from fedprior.experiment.settings import Settings
from fedprior.models.likelihood import likelihood_of
from fedprior.models.task import Task
from fedprior.models.trial import try_network
from fedprior.options import check_names, check_truths, check_values, names, plain_errors
from fedprior.protocol import Method
from fedprior.rng import Key
from fedprior.training import AUTO, Train

__all__ = [
    "CUSTOM",
    "Config",
    "Model",
    "Section",
    "Settings",
    "Setup",
    "build_model",
    "data_section",
    "parse",
    "read",
]

Section = dict[str, Any]
Model = nn.Module | Mapping[str, Any] | str | None
"""A network, its section or its name; None: the model of the federation's recipe."""
NAMED = ("method", "data", "model")
LARGEST = 1 << 20
"""Maximum size of a configuration file in bytes."""
CUSTOM = "custom"
"""The name of data and networks that were passed from Python and cannot be loaded by name."""


class Config(Settings):
    """A whole run: the settings, and one section each for the method, the data, the model and the local training."""

    data: Section
    method: Section = Field(default_factory=dict)
    methods: dict[str, Section] = Field(default_factory=dict)
    model: Section = Field(default_factory=dict)
    train: Section = Field(default_factory=dict)

    def settings(self) -> Settings:
        """The settings alone."""
        return Settings(**{k: getattr(self, k) for k in Settings.model_fields})

    def load_data(self) -> Federation:
        """The federation in the run's precision; `data.seed` sets the partition independently of the run's seed."""
        options = dict(self.data)
        name, seed = options.pop("name"), options.pop("seed", self.seed)
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise FedpriorError(f"data.seed = {shown(seed)} is not valid: give a whole number from 0 on.")
        return datasets.load(name, seed=seed, **options).to(self.settings().dtype)

    def build_model(self, federation: Federation) -> Section:
        """The model section, complete."""
        recipe = dict(federation.recipe.get("model", {"name": "softmax"}))
        if "name" in self.model and self.model["name"] != recipe["name"]:
            recipe = {}
        return recipe | self.model

    def build_train(self, federation: Federation) -> Train:
        """The local training: the recipe's, with the run's changes."""
        check_names("train", self.train, names(Train))
        recipe = dict(federation.recipe.get("train", {}))
        if self.train.get("optimizer", recipe.get("optimizer")) != recipe.get("optimizer"):
            recipe.pop("momentum", None)
        with plain_errors("train"):
            return Train(**(recipe | self.train))

    def build_method(self, train: Train = AUTO) -> AnyMethod:
        """The method, not yet bound to a task."""
        options = dict(self.method)
        return methods.build(options.pop("name"), options, train)

    def of_method(self, name: str, options: Mapping[str, Any]) -> Config:
        """The same run of another method."""
        return self.model_copy(update={"method": {"name": name, **options}})

    def document(self) -> Section:
        """The content of a config file."""
        document: Section = _plain(self.model_dump(exclude_none=True, exclude={"methods"}))
        return document

    def setup(self, federation: Federation) -> Setup:
        """The run on its federation, ready to go."""
        method = self.build_method(self.build_train(federation))
        return Setup.of(method, federation, self.build_model(federation), self.settings())


@dataclass(frozen=True)
class Setup:
    """A run that is ready to start: the method is bound to its task, the data are in the run's precision."""

    method: AnyMethod
    federation: Federation
    model: Section
    settings: Settings

    @classmethod
    def of(cls, method: AnyMethod, federation: Federation, model: Model, settings: Settings) -> Setup:
        """Bind a method; where no model or local training is given, the federation's recipe decides."""
        _check_kinds(method, federation, model)
        data, likelihood = federation.to(settings.dtype), likelihood_of(federation.target)
        if isinstance(model, nn.Module):
            spec: Section = {"name": CUSTOM, "parameters": sum(p.numel() for p in model.parameters())}
            module = model
            try_network(module, federation.shape, likelihood)
        else:
            named = {"name": model} if isinstance(model, str) else model
            spec = dict(named or federation.recipe.get("model", {"name": "softmax"}))
            module = build_model(spec, federation.shape, likelihood.outputs)
            spec = models.defaults(spec)
        task = Task(module, likelihood, dtype=settings.dtype, mixed=settings.mixed, shape=federation.shape)
        settings.participation.newcomer_ids(Key.from_seed(settings.seed), federation.clients)  # refuses too many
        return cls(method.bind(task, Train(**federation.recipe.get("train", {}))), data, spec, settings)

    def document(self) -> Section:
        """The content of the run's config file, including all defaults, so that it stays the same when they change."""
        document: Section = _plain(
            {
                **self.settings.model_dump(),
                "method": {"name": self.method.about.name, **self.method.hyperparameters()},
                "model": self.model,
                "data": data_section(self.federation, self.settings.seed),
                "train": asdict(self.method.train),
            }
        )
        return document


def data_section(federation: Federation, seed: int) -> Section:
    """The data section of a run with this seed, including all defaults."""
    name, options = federation.name, federation.options
    known = datasets.defaults(name, options) if name in datasets.DATASETS else {}
    own = {"seed": federation.seed} if federation.seed != seed else {}
    section: Section = _plain({"name": name, **dict(sorted({**known, **options}.items())), **own})
    return section


def _check_kinds(method: Any, federation: Any, model: Any) -> None:
    """Refuse arguments of the wrong type."""
    if not isinstance(method, Method):
        raise FedpriorError(f"{shown(method)} is not a method: give an object such as FedMAP(sigma2=15).")
    if not isinstance(federation, Federation):
        raise FedpriorError(
            f"the data are of type {type(federation).__name__}, not a federation: make one with fedprior.data.load or "
            "fedprior.data.from_arrays."
        )
    if not isinstance(model, nn.Module | Mapping | str | None):
        raise FedpriorError(
            f'model = {shown(model)} is not a network: give one, or a section such as {{"name": "mlp"}}.'
        )


def build_model(spec: Mapping[str, Any], shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The network that a model section describes."""
    options = dict(spec)
    if "name" not in options:
        raise FedpriorError('the model section names no model: give it a "name", such as "mlp".')
    return models.build(options.pop("name"), options, shape, outputs)


def parse(
    sections: Mapping[str, Any], *, file: Path | None = None, overrides: Iterable[str] = (), several: bool = False
) -> Config:
    """A config from a TOML file, then `a.b=value` overrides, then the caller's sections (None means unset).

    With `several`, the section `methods` (name -> options) replaces `method`.
    """
    merged: Section = read(file) if file is not None else {}
    for override in overrides:
        _override(merged, override)
    for key, value in sections.items():
        if value is not None:
            _merge(merged, key, value)
    for key in NAMED:
        if isinstance(merged.get(key), str):
            merged[key] = {"name": merged[key]}
    for key in merged.keys() - Config.model_fields:
        if (place := meant(key, several=several)) is not None:
            raise FedpriorError(f"'{cut(key)}' is an option of a section: write {place}=value.")
    check_names("the configuration", merged, Config.model_fields)
    # data that came from Python may have any name, and options are checked where data are loaded
    check_values("the configuration", {key: value for key, value in merged.items() if key != "data"})
    if several and "method" in merged:
        raise FedpriorError("a comparison takes --methods a,b,c and methods.NAME.key=value, not `method`.")
    if not several and merged.get("methods"):
        raise FedpriorError("a run takes --method NAME and method.key=value; `methods` is for `fedprior compare`.")
    for section in ("data",) if several else ("method", "data"):
        if not isinstance(merged.get(section), dict) or "name" not in merged[section]:
            raise FedpriorError(f"the run names no {section}: give --{section} NAME or {section}.name=NAME.")
    check_truths("configuration", Config, merged)
    with plain_errors("configuration"):
        return Config(**merged)


def _plain(value: Any) -> Any:
    """A value that TOML can hold: without None, and with paths as text."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def read(file: Path) -> Section:
    """A TOML file."""
    try:
        if not file.is_file():
            raise FedpriorError(f"cannot read the configuration file '{file}': it is not a file.")
        if file.stat().st_size > LARGEST:
            raise FedpriorError(
                f"'{file}' is larger than {LARGEST >> 20} MiB, so it is not a configuration file: check the path."
            )
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise FedpriorError(f"cannot read the configuration file '{file}': check the path.") from None
    except RecursionError:
        raise FedpriorError(f"'{file}' is nested too deeply: no option is.") from None
    except ValueError as error:  # not TOML, not UTF-8, a NUL in the path, or a number of thousands of digits
        raise FedpriorError(f"'{file}' is not valid TOML: {cut(str(error))}.") from None


def _value(override: str, text: str) -> Any:
    """The value after the `=` sign: a single TOML value, or otherwise a word.

    It is parsed inside an inline table, which allows neither comments nor further lines.
    """
    try:
        found = tomllib.loads(f"one = {{value = {text}}}")
    except tomllib.TOMLDecodeError:
        if not text.isprintable():
            raise FedpriorError(f"'{cut(override)}' is not an override: its value must be one line of text.") from None
        return {"True": True, "False": False}.get(text, text)  # a bare word is a string
    except RecursionError:
        raise FedpriorError(f"'{cut(override)}' is nested too deeply: no option is.") from None
    except ValueError as error:  # a number of thousands of digits
        raise FedpriorError(f"'{cut(override)}' is not an override: {cut(str(error))}.") from None
    if list(found) != ["one"] or list(found["one"]) != ["value"]:
        raise FedpriorError(f"'{cut(override)}' sets more than one option: give one key=value at a time.")
    return found["one"]["value"]


def _override(merged: Section, override: str) -> None:
    key, sign, text = override.partition("=")
    path = key.split(".")
    if not sign or not all(path) or not key.isprintable():
        raise FedpriorError(f"'{cut(override)}' is not an override: write key=value, such as method.sigma2=15.")
    value = _value(override, text)
    target = merged
    for part in path[:-1]:
        if target is merged and part in NAMED and isinstance(merged.get(part), str):
            merged[part] = {"name": merged[part]}  # method=fedmap method.sigma2=15
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise FedpriorError(f"'{cut(override)}' reaches into '{cut(part)}', which is a single value.")
    if isinstance(target.get(path[-1]), dict) and not isinstance(value, dict):
        target[path[-1]]["name"] = value  # method=fedmap
    else:
        target[path[-1]] = value


def _merge(merged: Section, key: str, value: Any) -> None:
    if isinstance(value, dict) and isinstance(merged.get(key), dict):
        merged[key] = merged[key] | value
    elif isinstance(merged.get(key), str) and isinstance(value, dict):
        merged[key] = {"name": merged[key]} | value
    else:
        merged[key] = value
