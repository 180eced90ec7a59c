"""One site's table, read by a schema that was agreed on: what the site trains on, and the sums that it may share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedprior.data.csv_files import RECIPE
from fedprior.data.federation import SPLITS, Examples, Federation, from_arrays
from fedprior.data.reading import read_file
from fedprior.data.scaling import Scaler
from fedprior.data.schema import Schema
from fedprior.data.splits import Shares, cut
from fedprior.data.sums import Sums
from fedprior.data.table import Scaling
from fedprior.data.target import Classes, Target
from fedprior.options import STRICT, check_names, check_truths, check_values, plain_errors
from fedprior.rng import Key

NAME = "sites"
"""The name of data that stay at their sites."""


class Reading(BaseModel):
    """How every site reads its table; a run's `data` section."""

    model_config = ConfigDict(**STRICT, frozen=True)

    missing: Annotated[Literal["refuse", "median"], Field(description="refuse missing values, or fill them in")] = (
        "refuse"
    )
    scaling: Scaling = "own"
    validation: Annotated[float, Field(ge=0, lt=1, description="share held out for choosing settings")] = 0.1
    test: Annotated[float, Field(gt=0, lt=1, description="share held out for testing")] = 0.2
    split: Annotated[Literal["stratified", "random"], Field(description="how rows are held out")] = "stratified"

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Reading:
        """From a run's `data` section, checked."""
        options = {k: v for k, v in section.items() if k not in ("name", "schema")}
        check_values("data", options)
        check_names("data", options, cls.model_fields)
        check_truths("data", cls, options)
        with plain_errors("data"):
            return cls(**options)

    @property
    def impute(self) -> bool:
        """Whether missing values are filled in."""
        return self.missing == "median"

    def arguments(self, seed: int, schema: Schema) -> dict[str, Any]:
        """For `from_arrays`."""
        shares = {"validation": self.validation, "test": self.test, "split": self.split}
        prepared = {"standardise": True, "impute": self.impute, "schema": schema}
        told = {"name": NAME, "recipe": RECIPE, "options": self.section(schema)}
        return {"seed": seed, **shares, **prepared, **told}

    def section(self, schema: Schema) -> dict[str, Any]:
        """As a run's `data` section has it, with the schema's hash."""
        return {**self.model_dump(), "schema": schema.hash}


@dataclass(frozen=True)
class SiteTable:
    """A site's rows."""

    site: str
    frame: pd.DataFrame
    schema: Schema
    reading: Reading
    seed: int  # of the splits

    @classmethod
    def read(cls, site: str, path: Path, schema: Schema, reading: Reading, seed: int) -> SiteTable:
        """From a CSV file."""
        return cls(site, read_file(path), schema, reading, seed)

    @property
    def problems(self) -> list[str]:
        """Why the table does not fit, naming columns and counts but no values."""
        return self.schema.problems(self.frame)

    @cached_property
    def examples(self) -> Examples:
        """Inputs that are not scaled yet, and labels."""
        return self.schema.matrix(self.frame), self.schema.labels(self.frame)

    @cached_property
    def _training(self) -> Examples:
        shares = Shares(self.reading.validation, self.reading.test, self.reading.split, 1.0)
        key, own = Key.from_seed(self.seed), {self.site: self.examples}
        (found,) = cut(own, None, self.schema.target, shares, key, self.reading.impute)
        return found.train

    def sums(self) -> Sums:
        """What shared scaling needs of the training rows, without inputs of which few values are known."""
        return Sums.of(self._training[0]).guarded()

    def label_sum(self) -> tuple[int, float]:
        """n and Σy of the training rows."""
        y = self._training[1]
        return len(y), float(y.sum())

    def label_square(self, mean: float) -> float:
        """Σ(y - mean)² of the training rows."""
        return float(np.square(self._training[1] - mean).sum())

    def smallest_class(self) -> int | None:
        """Training rows of the rarest class that occurs; None for a numeric target."""
        if not isinstance(self.schema.target, Classes):
            return None
        return int(np.unique(self._training[1], return_counts=True)[1].min())

    def federation(self, scaler: Scaler | None = None, target: Target | None = None) -> Federation:
        """A federation of this site alone, scaled as agreed, or by its own rows."""
        found = from_arrays({self.site: self.examples}, scaler=scaler, **self.reading.arguments(self.seed, self.schema))
        return found if target is None else replace(found, target=target)

    def sizes(self) -> dict[str, int]:
        """Rows of each split."""
        found = self.federation()
        return {split: found.split(split).size[0] for split in SPLITS}


def pooled(tables: Mapping[str, SiteTable]) -> Federation:
    """All sites' tables as one federation, for the simulator; in the order of names."""
    ordered = {site: tables[site] for site in sorted(tables)}
    first = next(iter(ordered.values()))
    examples: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {site: table.examples for site, table in ordered.items()}
    return from_arrays(examples, scaling=first.reading.scaling, **first.reading.arguments(first.seed, first.schema))
