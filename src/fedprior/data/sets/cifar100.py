"""CIFAR-100: small photographs of a hundred classes in twenty superclasses."""

from __future__ import annotations

from fedprior.data.images import register_images
from fedprior.data.sets._cifar import CITATION, SITE
from fedprior.data.store.record import NO_LICENCE, NPZ, Record, Remote, Url
from fedprior.data.table import SGD

ARCHIVE = "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"  # as in keras-team/keras, cifar100.py
RECORD = Record(
    name="cifar100",
    title="CIFAR-100: 60,000 colour images of 100 classes in 20 superclasses, 32 × 32",
    classes=100,
    shape=(3, 32, 32),
    formats=("cifar-python", "npz", "cifar-binary"),
    accepts=f"the Python or binary archive of its authors (also unpacked), or {NPZ} and coarse or fine_to_coarse",
    licence=NO_LICENCE,
    citation=CITATION,
    sources=(Url(SITE, (Remote("cifar-100-python.tar.gz", ARCHIVE, 169001437),)),),
    counts={"train": 50000, "test": 10000},
    per_class={"train": (500,) * 100, "test": (100,) * 100},
    columns=("coarse",),
    train_means=(0.50707516, 0.48654887, 0.44091784),
    otherwise="the split into training and test examples is not the published one",
)

register_images(
    RECORD,
    recipe={"model": {"name": "cnn_cifar"}, "train": {**SGD, "batch_size": 50, "epochs": 5}},
    normalise="half",
    constants={
        "channel": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        "image": ((0.5074, 0.4867, 0.4411), (0.2011, 0.1987, 0.2025)),
    },
)
