"""USPS: digits from envelopes."""

from __future__ import annotations

from fedprior.data.images import register_images
from fedprior.data.store.record import NO_LICENCE, NPZ, Record, Remote, Url
from fedprior.data.table import SGD

RECORD = Record(
    name="usps",
    title="USPS: 9,298 grey images of digits from envelopes, 16 × 16",
    classes=10,
    shape=(1, 16, 16),
    formats=("npz", "rows"),
    accepts=f"zip.train.gz and zip.test.gz (or LIBSVM's usps.bz2 and usps.t.bz2), or {NPZ}",
    licence=NO_LICENCE,
    citation="J. J. Hull. A Database for Handwritten Text Recognition Research. IEEE TPAMI 16, 1994.",
    sources=(
        Url(
            "https://web.stanford.edu/~hastie/ElemStatLearn/datasets/",
            (Remote("zip.train.gz", most=16 << 20), Remote("zip.test.gz", most=16 << 20)),  # no checksum is published
        ),
        Url(
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",
            (
                Remote("usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197", most=64 << 20),
                Remote("usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118", most=64 << 20),
            ),
        ),
    ),
    counts={"train": 7291, "test": 2007},
    per_class={
        "train": (1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644),
        "test": (359, 264, 198, 166, 200, 160, 170, 147, 166, 177),
    },
    train_means=(0.25447989,),
    otherwise="the pixels are not the original ones: LIBSVM's edition, for one, is smoothed",
)

register_images(
    RECORD,
    recipe={"model": {"name": "lenet5"}, "train": {**SGD, "batch_size": 20, "epochs": 5}},
    normalise="half",
)
