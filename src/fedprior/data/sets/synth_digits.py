"""SynthDigits: digits drawn by a computer."""

from __future__ import annotations

from fedprior.data.images import register_images
from fedprior.data.store.record import NO_LICENCE, NPZ, Record
from fedprior.data.table import SGD

RECORD = Record(
    name="synth_digits",
    title="SynthDigits: synthetic colour images of digits, 32 × 32",
    classes=10,
    shape=(3, 32, 32),
    formats=("npz", "matlab"),
    accepts=f"its synth_train_32x32.mat and synth_test_32x32.mat, or {NPZ}",
    licence=NO_LICENCE,
    citation="Y. Ganin et al. Domain-Adversarial Training of Neural Networks. JMLR 17, 2016.",
)

register_images(
    RECORD,
    recipe={"model": {"name": "cnn_cifar"}, "train": {**SGD, "batch_size": 50, "epochs": 5}},
    normalise="half",
)
