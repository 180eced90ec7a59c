"""Stack: several methods at once, mixed at every site with weights and a temperature that the sites pool.

A method of this project. None of the published ones is reliably better than both Local and fine-tuned FedAvg, and
which of the two is better is not known beforehand. A stack trains them all and lets every site weigh their predictions
by rows that none of them was trained on, under a prior that the federation learns: a site with few rows falls back on
what holds for the others. `mixture.py` has the protocol, `bayes/mixing.py` the equations.

    family     g = (a, T): a on the simplex in steps of 1/steps, T one of `temperatures`;  p_g = Σ_e a_e p_e^{1/T} / Z_e
    site       ρ_k = softmax(ℓ_k + log π),   ℓ_k(g) = Σ log p_g(y) over the scored rows
    server     π = ½ mean_k ρ_k + ½ (.9 softmax(Σ_k ℓ_k) + .1/G)
    predict    Σ_{e,T} A_k[e,T] p_e^{1/T} / Z_e,   A_k the posterior mean of the weights

For classes p^{1/T} / Z is softmax(log p / T); for a number the temperature multiplies the predicted variance, and a
mixture is scored and predicted as the normal distribution with its mean and variance.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fedprior.bayes.mixing import Family
from fedprior.errors import FedpriorError
from fedprior.mixture import Mixture
from fedprior.protocol import UNBOUND, About, AnyMethod, register

MOST = 5000
"""Members of a family: every one is a number in each client's message."""


def _listed(value: Any) -> Any:
    """`local,fedavg_ft` and `[local, fedavg_ft]` are what one types on a command line."""
    if not isinstance(value, str):
        return value
    return [name.strip() for name in value.strip("[] ").split(",") if name.strip()]


@register
class Stack(Mixture):
    """A mixture of methods."""

    about = About(
        name="stack",
        title="Stack",
        paper="this project",
        year=2026,
        group="mixture",
        personal="the experts' personal models, and their weights",
        moment="after aggregation",
        uses_validation=True,
    )

    experts: Annotated[
        tuple[str, ...],
        BeforeValidator(_listed),
        Field(
            min_length=1,
            description="the methods that are mixed, wrapped ones too",
            json_schema_extra={"others": [("local", "fedavg")]},
        ),
    ] = ("local", "fedavg_ft")
    options: Annotated[
        dict[str, dict[str, Any]],
        Field(
            description="options of the experts by name: `method.options.pfedvem.draws=10`",
            json_schema_extra={"others": [{"fedavg_ft": {"ft_epochs": 1}}]},
        ),
    ] = Field(default_factory=dict)
    scores: Annotated[
        Literal["validation", "holdout"],
        Field(description="scored on validation rows, or on a third of the training rows, with twins that lack it"),
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
        Field(
            min_length=1,
            description="T; `[1]` leaves every expert as it is",
            json_schema_extra={"others": [(1.0,)]},
        ),
    ] = (0.5, 0.7, 1.0, 1.4, 2.0)
    steps: Annotated[int, Field(ge=1, description="weights are multiples of 1/steps")] = 6

    def __post_init__(self) -> None:
        """Refuse experts that cannot stand beside each other, and spell out the options of all."""
        if len(self.parts) < len(self.experts):
            raise FedpriorError("method 'stack': an expert stands twice: name each only once.")
        if stray := [name for name in self.options if name not in self.experts]:
            raise FedpriorError(f"method 'stack': options are given for '{stray[0]}', which is not among the experts.")
        if self.family.size > MOST:
            raise FedpriorError(
                f"method 'stack': {len(self.experts)} experts in steps of 1/{self.steps} with {len(self.temperatures)} "
                f"temperatures have {self.family.size} combinations: use fewer experts, steps or temperatures."
            )
        self.check_scores("method 'stack'", "leave it out, or use method.scores=holdout")
        object.__setattr__(self, "experts", tuple(self.parts))
        object.__setattr__(self, "options", {name: method.hyperparameters() for name, method in self.parts.items()})

    @cached_property
    def family(self) -> Family:
        """Weights in steps of 1/steps, each with every temperature."""
        return Family(len(self.parts), self.steps, self.temperatures)

    @cached_property
    def parts(self) -> Mapping[str, AnyMethod]:
        """The experts, each as `build` makes it."""
        from fedprior.methods import build

        found: dict[str, AnyMethod] = {}
        for name in self.experts:
            if name.partition("+")[0] == self.about.name:
                raise FedpriorError("method 'stack': a stack cannot be an expert of a stack: name its experts instead.")
            method = build(name, self.options.get(name))
            found[method.about.name] = method if self.task is UNBOUND else method.using(self.task, self.train)
        return found
