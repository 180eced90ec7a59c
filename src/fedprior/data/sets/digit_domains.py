"""Digits from several domains, brought to one shape."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedprior.data import store
from fedprior.data.images import Normalise, scaling
from fedprior.data.registry import register_dataset
from fedprior.data.table import SGD, Recipe, Table
from fedprior.data.target import Classes

DOMAINS = ("mnist", "mnist_m", "usps")
SIDE = 32
RECIPE: Recipe = {"model": {"name": "cnn_cifar"}, "train": {**SGD, "batch_size": 50, "epochs": 5}}


@register_dataset(partition="domains", images=True, made_of=DOMAINS)
def digit_domains(normalise: Normalise = "half") -> Table:
    """Digits of MNIST, MNIST-M and USPS, 32 × 32 in colour: three of the five domains of Digit-5.

    Smaller images are enlarged bilinearly, grey ones become three equal channels.
    """
    return joined("digit_domains", DOMAINS, normalise)


def joined(called: str, domains: tuple[str, ...], normalise: Normalise) -> Table:
    """Stored data sets of digits as one table, with their names as the column `domain`."""
    pools = {name: store.load(name).pool() for name in domains}
    x = np.concatenate([enlarged(pool.x) for pool in pools.values()])
    y = np.concatenate([pool.y for pool in pools.values()])
    return Table(
        x,
        y,
        Classes.numbered(10),
        RECIPE,
        {"domain": np.repeat(domains, [len(pool.y) for pool in pools.values()]), "label": y},
        prepare=scaling(called, normalise, x, {}),
        official=np.concatenate([pool.columns["split"] == "test" for pool in pools.values()]),
    )


def enlarged(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images [n, 1 or 3, h, w] as [n, 3, SIDE, SIDE]."""
    import torch
    import torch.nn.functional as F

    if x.shape[1:] == (3, SIDE, SIDE):
        return x
    out = np.empty((len(x), 3, SIDE, SIDE), dtype=np.uint8)
    for start in range(0, len(x), 4096):
        block = torch.from_numpy(x[start : start + 4096].astype(np.float32))
        large = F.interpolate(block, size=(SIDE, SIDE), mode="bilinear")
        out[start : start + 4096] = large.round().to(torch.uint8).numpy()
    return out
