"""The only path from a raw table to a network: a schema, then the scaling fitted in training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fedprior.data.scaling import Scaler
from fedprior.data.schema import Schema
from fedprior.data.sums import Sums
from fedprior.errors import FedpriorError

__all__ = ["Encoder", "Sums"]


@dataclass(frozen=True, eq=False)
class Encoder:
    """What turns raw rows into what a model takes. Data that never had columns, such as images, has no schema."""

    schema: Schema | None
    scaler: Scaler

    def __post_init__(self) -> None:
        if self.schema is not None and self.scaler.mean.shape != (len(self.schema.inputs),):
            told = f"inputs of shape {self.scaler.mean.shape} do not fit a schema of {len(self.schema.inputs)} inputs"
            raise FedpriorError(f"{told}: make them with its `matrix`.")

    @classmethod
    def own(cls, schema: Schema, frame: pd.DataFrame, *, standardise: bool = True, impute: bool = True) -> Self:
        """Scaled by a site's own training rows; missing values become their median."""
        x = schema.matrix(frame)
        scaler = Scaler.fitted(x, standardise=standardise, impute=impute, truths=schema.truths)
        return cls(schema, scaler or Scaler.idle(x.shape[1:]))

    @classmethod
    def shared(cls, schema: Schema, sums: Sums, *, standardise: bool = True, impute: bool = True) -> Self:
        """Scaled by all sites' training rows, of which only `sums` are shared; missing values become their mean."""
        scaler = Scaler.from_sums(sums, standardise=standardise, impute=impute, truths=schema.truths)
        return cls(schema, scaler or Scaler.idle(sums.n.shape))

    @classmethod
    def maybe(cls, schema: Schema | None, scaler: Scaler | None) -> Self | None:
        """None where there is neither a schema nor anything to scale."""
        if scaler is None:
            return None if schema is None else cls(schema, Scaler.idle((len(schema.inputs),)))
        return cls(schema, scaler)

    @property
    def takes_pixels(self) -> bool:
        """Whether it takes images, all of whose pixels are scaled alike."""
        return self.schema is None and self.scaler.mean.ndim == 0

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Raw rows as a model takes them [n, inputs]; columns are found by name, and extra ones are ignored."""
        return self(self._known().matrix(frame))

    def labels(self, frame: pd.DataFrame) -> NDArray[Any]:
        """The target of raw rows [n]: class numbers, or numbers."""
        return self._known().labels(frame)

    def unknown(self, frame: pd.DataFrame) -> dict[str, int]:
        """For each category that has any: the number of rows with a level never seen in training, coded by zeros."""
        return self._known().unknown(frame)

    def __call__(self, x: ArrayLike) -> NDArray[np.float64]:
        """Numeric but unscaled inputs [n, ...] as a model takes them."""
        given = np.asarray(x)
        if not self.takes_pixels and given.shape[1:] != self.scaler.mean.shape:
            raise FedpriorError(
                f"the inputs have shape {given.shape[1:]} where the model takes {self.scaler.mean.shape}: give one row "
                "for each example, with every input."
            )
        if self.scaler.fill is None and self.schema is not None and np.isnan(given).any():
            name = self.schema.inputs[int(np.isnan(given).any(0).argmax())]
            raise FedpriorError(
                f"input '{name}' has missing values, and the model was trained without any: fill them in, or train "
                "with missing=median."
            )
        return self.scaler(given)

    def document(self) -> dict[str, Any]:
        """As JSON, which keeps every digit; it holds names, levels and statistics, and no row."""
        return {"schema": None if self.schema is None else self.schema.document(), "scaler": self.scaler.document()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `document`."""
        schema = document["schema"]
        return cls(None if schema is None else Schema.from_document(schema), Scaler.from_document(document["scaler"]))

    def _known(self) -> Schema:
        if self.schema is None:
            raise FedpriorError("the model was trained on arrays, not on a table: give it an array of inputs.")
        return self.schema
