"""The parts of a table's file: columns, rows, a quick version and a search, all of which change the run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedprior.experiment.config import Section

Numbers = dict[str, float]
"""Column -> a number of the paper, in the table's unit."""


class Part(BaseModel):
    """What columns, rows and scales have in common: they change the run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: Section = {}


class Column(Part):
    """A setting."""

    among: Annotated[
        str, Field(description="all, smallest tenth, newcomers, original (the others), or comma-separated names")
    ] = "all"


class Row(Part):
    """A method with the paper's settings, and its published numbers."""

    method: Section
    paper: Annotated[Numbers, Field(description="of the personal models")] = {}
    paper_global: Annotated[Numbers, Field(description="of the shared model")] = {}
    error: Annotated[Numbers, Field(description="the paper's ± of `paper`, see the table's `plus_minus`")] = {}
    error_global: Annotated[Numbers, Field(description="the paper's ± of `paper_global`")] = {}
    columns: Annotated[dict[str, Section], Field(description="options of the method in single columns")] = {}
    tries: Annotated[
        list[Section] | None, Field(description="settings to try instead of the search's own; [] for none")
    ] = None


class Figure(BaseModel):
    """What is drawn of the runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draw: Annotated[
        Literal["curves", "client curves", "clients", "settings", "partition"],
        Field(
            description="the metric over rounds, of all clients or of each; each client's numbers in the end; the "
            "metric over the columns; who has which labels (nothing is run)"
        ),
    ]
    show: Annotated[
        list[str], Field(description="of each client: metrics, or what the method logs; by default the table's metric")
    ] = []
    by: Annotated[Literal["examples", "corruption"], Field(description="what clients are placed by")] = "examples"


class Search(Part):
    """Every method tries equally many settings, in one column, and is judged on a validation part of the data."""

    column: str = ""
    tries: Annotated[
        list[Section], Field(description='settings such as {"train.lr" = 0.1}, for rows without their own')
    ] = []
    like: Annotated[str, Field(description="table of the same paper whose choices also apply here")] = ""
    columns: Annotated[list[str] | None, Field(description="columns where the choices apply; all by default")] = None


class Quick(Part):
    """A version that takes minutes."""

    seeds: Annotated[int, Field(ge=1)] = 1
    columns: list[str] | None = None
    rows: list[str] | None = None
    minutes: float | None = None
