"""Office-Caltech-10: photographs of objects from four domains."""

from __future__ import annotations

from fedprior.data.images import register_images
from fedprior.data.sets._office import CITATION, DOMAINS
from fedprior.data.store.record import NO_LICENCE, Record, Remote, Url

# Named by its commit and packed anew on every request, so that its files have a checksum but the archive has none.
PHOTOS = "91ad5c3f5b7b205083692e2aa62630692596cb1a.zip"
CONTENT = "0278cb0392e05628aecd27e71bb53301d89c6e8aba4e8d6bd2ba8171092ac62e"  # computed from a copy of that commit
RECORD = Record(
    name="office_caltech",
    title="Office-Caltech-10: 2,533 colour images of objects from four domains, 64 × 64",
    classes=10,
    shape=(3, 64, 64),
    formats=("npz", "photos"),
    accepts="its photographs in folders <domain>/<class> (also archived), or an .npz file with x, y and domain",
    licence=NO_LICENCE,
    citation=CITATION,
    sources=(
        Url(
            "https://github.com/ChristophRaab/Office_Caltech_DA_Dataset/archive/",
            (Remote(PHOTOS, most=512 << 20),),
            CONTENT,
        ),
    ),
    counts={"all": 2533},
    columns=("domain",),
    groups=DOMAINS,
)

register_images(
    RECORD,
    recipe={
        "model": {"name": "cnn6"},
        "train": {"optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "batch_size": 32, "epochs": 5},
    },
    normalise="channel",
    constants={
        "channel": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    },
    partition="column",
)
