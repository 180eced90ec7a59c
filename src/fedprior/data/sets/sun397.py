"""SUN397 as pFedVEM has it: three superclasses of fifty categories with a hundred photographs each."""

from __future__ import annotations

import numpy as np

from fedprior.data import store
from fedprior.data.images import Normalise, scaling
from fedprior.data.registry import register_dataset
from fedprior.data.store.record import NO_LICENCE, Record
from fedprior.data.table import SGD, Recipe, Table
from fedprior.data.target import Classes

RECORD = Record(
    name="sun397",
    title="SUN397, a part: 15,000 photographs of 150 places, indoors, in nature and man-made, 64 × 64",
    classes=150,
    shape=(3, 64, 64),
    formats=("npz", "photos"),
    accepts="the first 100 photographs of the first 50 categories of each superclass, in folders "
    "<indoor, natural or manmade>/<category> (also archived), or an .npz file with x, y and superclass",
    licence=NO_LICENCE,
    citation="J. Xiao et al. SUN Database: Large-scale Scene Recognition from Abbey to Zoo. CVPR 2010.",
    counts={"all": 15000},
    per_class={"all": (100,) * 150},
    columns=("superclass",),
    groups={"indoor": 5000, "manmade": 5000, "natural": 5000},
)
RECIPE: Recipe = {"model": {"name": "cnn6"}, "train": {**SGD, "batch_size": 50, "epochs": 5}}
FIFTH = 5


@register_dataset(record=RECORD, partition="dirichlet", images=True)
def sun397(normalise: Normalise = "half") -> Table:
    """SUN397, a part: 15,000 photographs of 150 places, indoors, in nature and man-made, 64 × 64.

    With `partition=superclass` the three superclasses are the labels. pFedVEM splits 80:20; here every fifth photograph
    of a category is for testing.
    """
    pool = store.load(RECORD.name).pool()
    order = np.argsort(pool.y, kind="stable")
    place = np.empty(len(pool.y), dtype=np.int64)  # of each photograph within its category
    place[order] = np.arange(len(order)) - np.searchsorted(pool.y[order], pool.y[order])
    return Table(
        pool.x,
        pool.y,
        Classes.numbered(RECORD.classes),
        RECIPE,
        pool.client_columns,
        prepare=scaling(RECORD.name, normalise, pool.x, {}),
        official=place % FIFTH == FIFTH - 1,
        coarse=np.unique(pool.columns["superclass"], return_inverse=True)[1].astype(np.int64),
    )
