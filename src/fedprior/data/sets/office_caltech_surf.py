"""Office-Caltech-10 as histograms of visual words."""

from __future__ import annotations

import numpy as np

from fedprior.data import store
from fedprior.data.registry import register_dataset
from fedprior.data.sets._office import CITATION, DOMAINS
from fedprior.data.store.record import NO_LICENCE, Record
from fedprior.data.table import SGD, Recipe, Table
from fedprior.data.target import Classes

RECORD = Record(
    name="office_caltech_surf",
    title="Office-Caltech-10: 2,533 histograms of 800 visual words (SURF) from four domains",
    classes=10,
    shape=(800,),
    formats=("npz",),
    accepts="an .npz file with x, y and domain",
    licence=NO_LICENCE,
    citation=CITATION,
    counts={"all": 2533},
    columns=("domain",),
    groups=DOMAINS,
)
RECIPE: Recipe = {"model": {"name": "mlp", "hidden": [64]}, "train": {**SGD, "batch_size": 20, "epochs": 5}}


@register_dataset(record=RECORD, partition="column")
def office_caltech_surf() -> Table:
    """Office-Caltech-10: 2,533 histograms of 800 visual words (SURF) from four domains.

    A histogram becomes the square roots of its shares, then every input is standardised site by site.
    """
    pool = store.load(RECORD.name).pool()
    x = pool.x.astype(np.float64)
    x = np.sqrt(x / np.maximum(x.sum(1, keepdims=True), 1))
    return Table(x, pool.y, Classes.numbered(RECORD.classes), RECIPE, pool.client_columns, standardise=True)
