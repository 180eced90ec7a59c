"""Nothing but noise."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field

from fedprior.data.registry import register_dataset
from fedprior.data.table import Recipe, Table
from fedprior.data.target import Classes
from fedprior.room import check_room

RECIPE: Recipe = {
    "model": {"name": "softmax"},
    "train": {"optimizer": "sgd", "lr": 0.05, "momentum": 0.0, "batch_size": 20, "epochs": 1},
}


@register_dataset()
def noise(
    shape: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1, description="of an input")] = [20],  # noqa: B006
    classes: Annotated[int, Field(ge=2, description="number of labels")] = 10,
    samples: Annotated[int, Field(ge=1, description="number of examples")] = 1000,
) -> Table:
    """Standard normal inputs of any shape with uninformative labels: for timing, counting and control."""
    check_room("data 'noise'", 3 * 4 * samples * math.prod(shape), "lower data.samples or data.shape")
    x = np.random.default_rng(0).standard_normal((samples, *shape), dtype=np.float32)
    y = np.arange(samples) % classes
    return Table(x, y, Classes.numbered(classes), RECIPE, {"label": y})
