"""USPS: digits from envelopes."""

from __future__ import annotations

from fedprior.data.images import register_images
from fedprior.data.store.record import NO_LICENCE, NPZ, Record, Remote, Url
from fedprior.data.table import SGD

# Neither publisher gives a SHA-256. Those of zip.* are of two public copies that agree (the repositories
# dgkim5360/the-elements-of-statistical-learning-notebooks and robintux/Datasets4StackOverFlowQuestions). Those of
# LIBSVM's files are Git LFS's in Lallapallooza/cycle_adv_ot; usps.t.bz2 with that sum has torchvision's MD5.
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
            (
                Remote("zip.train.gz", "66ebf231ab51f2cf6ac1a892d0f98ccffee1079d7a5db638c1f11f366046ca16", 1829071),
                Remote("zip.test.gz", "8dacc3c6e136af6c3488de9e5113a7daf140c8c2f1f0b61c54ee02f03f1a962f", 439208),
            ),
        ),
        Url(
            "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",
            (
                Remote("usps.bz2", "3771e9dd6ba685185f89867b6e249233dd74652389f263963b3b741e994b034f", 6579383),
                Remote("usps.t.bz2", "a9c0164e797d60142a50604917f0baa604f326e9a689698763793fa5d12ffc4e", 1831726),
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
