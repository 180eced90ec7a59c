"""How the inputs of a federation's sites were prepared, so that those of a site that joins later are prepared alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedprior.data.encoder import Encoder
from fedprior.data.scaling import Scaler
from fedprior.data.schema import Schema


@dataclass(frozen=True, eq=False)
class Preparation:
    """One encoder for all sites; or a schema for all, with each site's own scaling; or neither."""

    schema: Schema | None = None
    common: Encoder | None = None
    standardise: bool = False  # by the site's own training rows
    impute: bool = False

    @classmethod
    def of(cls, encoders: Sequence[Encoder | None]) -> Self:
        """What was done at all sites, given the encoder of each."""
        known = [encoder for encoder in encoders if encoder is not None]
        if not known:
            return cls()
        first = known[0]
        if len(known) == len(encoders) and all(_alike(first.scaler, other.scaler) for other in known[1:]):
            return cls(first.schema, first)
        scaled = any(bool((one.scaler.mean != 0).any() or (one.scaler.std != 1).any()) for one in known)
        return cls(first.schema, None, scaled, first.scaler.fill is not None)

    def encoder(self, training: NDArray[Any]) -> Encoder | None:
        """The encoder of a new site with these raw training inputs [n, ...]."""
        if self.common is not None:
            return self.common
        truths = None if self.schema is None else self.schema.truths
        own = Scaler.fitted(training, standardise=self.standardise, impute=self.impute, truths=truths)
        return Encoder.maybe(self.schema, own)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "schema": None if self.schema is None else self.schema.document(),
            "common": None if self.common is None else self.common.document(),
            "own": {"standardise": self.standardise, "impute": self.impute},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `document`."""
        schema, common, own = (document[key] for key in ("schema", "common", "own"))
        return cls(
            None if schema is None else Schema.from_document(schema),
            None if common is None else Encoder.from_document(common),
            bool(own["standardise"]),
            bool(own["impute"]),
        )


def _alike(one: Scaler, other: Scaler) -> bool:
    return one is other or all(
        a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in zip(one, other, strict=True)
    )
