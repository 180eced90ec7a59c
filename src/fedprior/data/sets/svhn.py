"""SVHN: house numbers, single digits in photographs."""

from __future__ import annotations

from fedprior.data.images import register_images
from fedprior.data.store.record import NO_LICENCE, NPZ, Record
from fedprior.data.table import SGD

RECORD = Record(
    name="svhn",
    title="SVHN: 99,289 colour images of single digits of house numbers, 32 × 32",
    classes=10,
    shape=(3, 32, 32),
    formats=("npz", "matlab"),
    accepts=f"its train_32x32.mat and test_32x32.mat, or {NPZ}",
    licence=NO_LICENCE,
    citation="Y. Netzer et al. Reading Digits in Natural Images with Unsupervised Feature Learning. NIPS 2011.",
    counts={"train": 73257, "test": 26032},
)

register_images(
    RECORD,
    recipe={"model": {"name": "cnn_cifar"}, "train": {**SGD, "batch_size": 50, "epochs": 5}},
    normalise="half",
)
