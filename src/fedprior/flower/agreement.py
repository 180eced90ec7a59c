"""What server and sites agree on before the first round; every later message carries it, and nobody changes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from fedprior import __version__
from fedprior.data.csv_files import RECIPE
from fedprior.data.encoder import Encoder
from fedprior.data.federation import SPLITS, outline
from fedprior.data.preparation import Preparation
from fedprior.data.scaling import Scaler
from fedprior.data.schema import Schema
from fedprior.data.site_table import NAME, Reading, SiteTable
from fedprior.data.target import Target, from_document
from fedprior.engine.stack import Context
from fedprior.errors import FedpriorError
from fedprior.experiment.config import Config, Setup, parse
from fedprior.experiment.participation import Participation
from fedprior.files import write_text
from fedprior.rng import Key

ALWAYS: dict[str, Any] = {"chunk": 1, "workers": 1, "checkpoint_every": 1}
"""What a real federation's settings are, whatever the plan says: a site is a stack of one, and no round is lost."""


@dataclass(frozen=True)
class Agreement:
    """The experiment, how it runs, the schema, the sites with the sizes of their splits, target and scaling."""

    experiment: str
    config: Mapping[str, Any]
    schema: Schema
    sites: Mapping[str, Mapping[str, int]]
    target: Target
    scaler: Scaler | None = None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "experiment": self.experiment,
            "version": __version__,
            "config": dict(self.config),
            "schema": self.schema.document(),
            "sites": {site: dict(sizes) for site, sizes in sorted(self.sites.items())},
            "target": self.target.document(),
            "scaler": None if self.scaler is None else self.scaler.document(),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `document`."""
        if document["version"] != __version__:
            raise FedpriorError(f"the experiment runs on fedprior {document['version']}, not on {__version__}.")
        scaler = document["scaler"]
        sites = {str(site): {s: int(of[s]) for s in SPLITS} for site, of in sorted(document["sites"].items())}
        return cls(
            str(document["experiment"]),
            dict(document["config"]),
            Schema.from_document(document["schema"]),
            sites,
            from_document(document["target"]),
            None if scaler is None else Scaler.from_document(scaler),
        )

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the document."""
        return hashlib.sha256(json.dumps(self.document(), sort_keys=True).encode()).hexdigest()

    @cached_property
    def configuration(self) -> Config:
        """The run."""
        return configured(self.config)

    @property
    def reading(self) -> Reading:
        """How tables are read."""
        return Reading.of(self.configuration.data)

    def setup(self) -> Setup:
        """The run as the server sees it: names, sizes and shapes, and no rows."""
        config, reading = self.configuration, self.reading
        section: dict[str, Any] = {"name": NAME, "options": reading.section(self.schema), "recipe": RECIPE}
        shared = Encoder.maybe(self.schema, self.scaler) if reading.scaling == "shared" else None
        section["agreed"] = Preparation(self.schema, shared, shared is None, reading.impute)
        found = outline(self.sites, (len(self.schema.inputs),), self.target, seed=config.seed, **section)
        return config.setup(found.to(config.settings().dtype))

    def table(self, site: str, path: Path) -> SiteTable:
        """A site's table."""
        return SiteTable.read(site, path, self.schema, self.reading, self.configuration.seed)

    def context(self, table: SiteTable) -> Context:
        """Everything that a site needs to do a job."""
        alone = self.configuration.model_copy(update={"participation": Participation()})  # others decide who takes part
        setup = alone.setup(table.federation(self.scaler, self.target).to(alone.settings().dtype))
        return Context(setup.method, setup.federation, Key.from_seed(alone.seed))

    def write(self, path: Path) -> None:
        """Write it down."""
        write_text(path, json.dumps(self.document(), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote."""
        try:
            return cls.from_document(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FedpriorError(f"'{path}' is missing or damaged ({error}): begin a new experiment.") from None


def configured(sections: Mapping[str, Any]) -> Config:
    """A run's sections, checked, with what every real federation has."""
    data = dict(sections.get("data") or {})
    found = parse({**sections, "data": {**data, "name": NAME}, **ALWAYS})
    found.build_method()  # which refuses wrong names and options
    return found


def adds_noise(sections: Mapping[str, Any]) -> bool:
    """Whether the method, or one that it mixes, is private: `+dp`."""
    return "+dp" in json.dumps(sections.get("method", {}))
