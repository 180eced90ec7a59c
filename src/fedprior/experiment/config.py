"""A run as a document: typed, checked, written to TOML and read back.

The same names serve the Python API, the TOML file and the command line (`method.sigma2=15`). What a run does not say
comes from the recipe that its data set carries.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedprior import methods, models
from fedprior.data import datasets
from fedprior.data.federation import Federation
from fedprior.engine import AnyMethod
from fedprior.errors import FedpriorError
from fedprior.experiment.participation import Participation
from fedprior.files import write_text
from fedprior.local import Train
from fedprior.models.task import Task
from fedprior.options import check_names, names, plain_errors

Section = dict[str, Any]
NAMED = ("method", "data", "model")


def _count(value: Any) -> Any:
    if value != "auto" and (type(value) is not int or not 1 <= value <= 10_000):
        raise ValueError("give a whole number from 1 on, or auto")
    return value


Count = Annotated[int | Literal["auto"], BeforeValidator(_count)]


class Settings(BaseModel):
    """How a run goes, whatever the method and the data."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: Annotated[int, Field(ge=1, description="communication rounds")] = 50
    seed: Annotated[int, Field(ge=0, lt=2**63, description="determines the partition, the weights and every draw")] = 0
    participation: Participation = Participation()
    eval_every: Annotated[int, Field(ge=0, description="rounds between evaluations; 0 means ten in a run")] = 0
    checkpoint_every: Annotated[int, Field(ge=0, description="rounds between checkpoints; 0 means ten in a run")] = 0
    precision: Annotated[
        Literal["float32", "float64", "bfloat16"],
        Field(description="of weights and inputs; bfloat16: float32, with training passes computed in bfloat16"),
    ] = "float32"
    workers: Annotated[Count, Field(description="worker processes; results do not depend on it")] = "auto"
    chunk: Annotated[Count, Field(description="clients per stack")] = "auto"
    engine: Annotated[Literal["local", "ray"], Field(description="who runs the stacks of clients")] = "local"
    ray_address: Annotated[str | None, Field(description="the cluster to join; none: RAY_ADDRESS, or here")] = None

    @property
    def dtype(self) -> torch.dtype:
        """The precision as torch names it."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def mixed(self) -> bool:
        """Whether training passes compute in bfloat16."""
        return self.precision == "bfloat16"

    def every(self, given: int) -> int:
        """A period in rounds."""
        return given or max(1, self.rounds // 10)


class Config(Settings):
    """All of a run: the settings, and a section each for the method, the data, the model and the local training."""

    data: Section
    method: Section = {}
    methods: dict[str, Section] = {}
    model: Section = {}
    train: Section = {}

    def settings(self) -> Settings:
        """The settings alone."""
        return Settings(**{k: getattr(self, k) for k in Settings.model_fields})

    def load_data(self) -> Federation:
        """The federation in the run's precision; `data.seed` fixes the partition apart from the run's seed."""
        options = dict(self.data)
        name, seed = options.pop("name"), options.pop("seed", self.seed)
        if type(seed) is not int:
            raise FedpriorError(f"data.seed = {seed!r} is not valid: give a whole number.")
        return datasets.load(name, seed=seed, **options).to(self.settings().dtype)

    def build_model(self, federation: Federation) -> Section:
        """The model section, complete."""
        recipe = dict(federation.recipe.get("model", {"name": "softmax"}))
        if "name" in self.model and self.model["name"] != recipe["name"]:
            recipe = {}
        return recipe | self.model

    def build_task(self, federation: Federation) -> Task:
        """The model for this federation's inputs."""
        return make_task(self.build_model(federation), federation, self.settings())

    def build_train(self, federation: Federation) -> Train:
        """The local training: the recipe's, changed where the run says so."""
        check_names("train", self.train, names(Train))
        recipe = dict(federation.recipe.get("train", {}))
        if self.train.get("optimizer", recipe.get("optimizer")) != recipe.get("optimizer"):
            recipe.pop("momentum", None)
        with plain_errors("train"):
            return Train(**(recipe | self.train))

    def build_method(self, federation: Federation) -> AnyMethod:
        """The method, bound to its task."""
        options = dict(self.method)
        method = methods.build(options.pop("name"), options, self.build_train(federation))
        return method.bind(self.build_task(federation), method.train)

    def resolved(self, federation: Federation) -> Config:
        """The same run with every default spelled out, so that it stays the same when defaults change."""
        method = self.build_method(federation)
        return self.model_copy(
            update={
                "method": {"name": method.about.name, **method.hyperparameters()},
                "model": models.defaults(self.build_model(federation)),
                "data": {**datasets.defaults(self.data["name"], self.data), **self.data},
                "train": asdict(method.train),
            }
        )


def make_task(spec: Mapping[str, Any], federation: Federation, settings: Settings) -> Task:
    """A model section as a task."""
    options = dict(spec)
    if "name" not in options:
        raise FedpriorError('the model section names no model: give it a "name", such as "mlp".')
    name = options.pop("name")
    module = models.build(name, options, federation.shape, federation.classes)
    return Task(module, federation.classes, dtype=settings.dtype, mixed=settings.mixed)


def parse(
    sections: Mapping[str, Any], *, file: Path | None = None, overrides: Iterable[str] = (), several: bool = False
) -> Config:
    """A config from a TOML file, then `a.b=value` overrides, then what the caller sets (None means unset).

    With `several`, the section `methods` (name -> options) stands in for `method`.
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
    check_names("the configuration", merged, Config.model_fields)
    if several and "method" in merged:
        raise FedpriorError("a comparison takes --methods a,b,c and methods.NAME.key=value, not `method`.")
    if not several and merged.get("methods"):
        raise FedpriorError("a run takes --method NAME and method.key=value; `methods` is for `fedprior compare`.")
    for section in ("data",) if several else ("method", "data"):
        if not isinstance(merged.get(section), dict) or "name" not in merged[section]:
            raise FedpriorError(f"the run names no {section}: give --{section} NAME or {section}.name=NAME.")
    if isinstance(merged.get("participation"), dict):
        check_names("participation", merged["participation"], names(Participation))
    with plain_errors("configuration"):
        return Config(**merged)


def write(config: Config, path: Path) -> None:
    """Write a config so that `parse` gives it back."""
    write_text(path, tomli_w.dumps(_plain(config.model_dump(exclude_none=True, exclude={"methods"}))))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def read(file: Path) -> Section:
    """A TOML file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise FedpriorError(f"cannot read the configuration file '{file}': check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FedpriorError(f"'{file}' is not valid TOML: {error}.") from None


def _override(merged: Section, override: str) -> None:
    key, sign, text = override.partition("=")
    path = key.split(".")
    if not sign or not all(path):
        raise FedpriorError(f"'{override}' is not an override: write key=value, such as method.sigma2=15.")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = {"True": True, "False": False}.get(text, text)  # a bare word is a string
    target = merged
    for part in path[:-1]:
        if target is merged and part in NAMED and isinstance(merged.get(part), str):
            merged[part] = {"name": merged[part]}  # method=fedmap method.sigma2=15
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise FedpriorError(f"'{override}' reaches into '{part}', which is a single value.")
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
