"""Office-31: photographs of objects from three domains."""

from __future__ import annotations

from fedprior.data.images import register_images
from fedprior.data.store.record import NO_LICENCE, Record

RECORD = Record(
    name="office_31",
    title="Office-31: 4,110 colour images of 31 kinds of objects from three domains, 64 × 64",
    classes=31,
    shape=(3, 64, 64),
    formats=("npz", "photos"),
    accepts="its photographs in folders <domain>/<class> (also archived), or an .npz file with x, y and domain",
    licence=NO_LICENCE,
    citation="K. Saenko et al. Adapting Visual Category Models to New Domains. ECCV 2010.",
    counts={"all": 4110},
    columns=("domain",),
    groups={"amazon": 2817, "dslr": 498, "webcam": 795},
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
