"""FEMNIST: handwritten characters by writer."""

from __future__ import annotations

from fedprior.data.images import register_images
from fedprior.data.store.record import Record, Remote, Url
from fedprior.data.table import SGD

TFF_EMNIST = Remote(
    "emnist_all.sqlite.lzma", "c3aaf91b4cf4e69d53d81627ad119eccdc878ff906f68e66063ff10f67faad48", 170507172
)
RECORD = Record(
    name="femnist",
    title="FEMNIST: handwritten digits and letters by writer, 28 × 28, dark on white",
    classes=62,
    shape=(1, 28, 28),
    formats=("leaf", "npz", "tff"),
    accepts="LEAF's JSON files (all_data, or those of train and test), TensorFlow Federated's emnist_all.sqlite, "
    "or an .npz file with x, y and writer",
    licence="NIST Special Database 19 (US government); LEAF: BSD-2-Clause",
    citation="S. Caldas et al. LEAF: A Benchmark for Federated Settings. arXiv:1812.01097, 2018.",
    sources=(Url("https://storage.googleapis.com/tff-datasets-public/", (TFF_EMNIST,)),),
    columns=("writer",),
)

register_images(
    RECORD,
    recipe={"model": {"name": "cnn_emnist"}, "train": {**SGD, "batch_size": 16, "epochs": 5}},
    normalise="half",
    partition="column",
)
