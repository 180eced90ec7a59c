"""CAL: a temperature for the predictions of any method, from rows that it was not trained on.

    p_T = p^{1/T} / Z;   ρ_k(T) = softmax(ℓ_k + log π),   ℓ_k(T) = Σ log p_T(y) over the scored rows of site k
    π = ½ mean_k ρ_k + ½ (.9 softmax(Σ_k ℓ_k) + .1/G);   predict Σ_T ρ_k(T) p_T

That is a mixture of a single expert (`mixture.py`). The prior is the federation's: a site with few rows has the
temperature of the others, and a site with many its own. There is no weight between the two to be tuned.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from fedprior.bayes.mixing import Family
from fedprior.mixture import Mixture
from fedprior.protocol import About, AnyMethod

GRID = tuple(round(2 ** (k / 4), 4) for k in range(-8, 9))
"""From ¼ to 4, four to a doubling."""


@dataclass(frozen=True, kw_only=True)
class Calibrated(Mixture):
    """The method's predictions, wider or narrower; its training is untouched."""

    inner: AnyMethod
    scores: Annotated[
        Literal["validation", "holdout"],
        Field(description="scored on validation rows, or on a third of the training rows, with a twin that lacks it"),
    ] = "validation"
    score_every: Annotated[
        int,
        Field(
            ge=1,
            description="rounds between the updates of the prior",
            json_schema_extra={"alive_with": {"score_every": 1}},
        ),
    ] = 5
    temperatures: Annotated[
        tuple[Annotated[float, Field(gt=0)], ...],
        Field(min_length=1, description="T", json_schema_extra={"others": [(1.0,)]}),
    ] = GRID

    def __post_init__(self) -> None:
        """Refuse a method that has seen what would be scored."""
        self.check_scores(f"'{self.about.name}' is not possible", "use method.cal.scores=holdout")

    @cached_property
    def parts(self) -> Mapping[str, AnyMethod]:
        """The wrapped method alone."""
        return {self.inner.about.name: self.inner}

    @cached_property
    def family(self) -> Family:
        """A member per temperature."""
        return Family(1, 1, self.temperatures)

    @property
    def about(self) -> About:  # type: ignore[override]
        """The inner method's, with the wrapper's name behind it."""
        inner = self.inner.about
        return inner._replace(
            name=f"{inner.name}+cal",
            title=f"{inner.title}+CAL",
            personal=f"{inner.personal}; a temperature",
            private=(),  # they lie deeper in the state, under the inner method's name
            uses_validation=True,
        )
