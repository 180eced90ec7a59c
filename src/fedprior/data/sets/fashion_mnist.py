"""Fashion-MNIST: clothes."""

from __future__ import annotations

from fedprior.data.images import register_images
from fedprior.data.store.record import NPZ, Debian, Record, Remote, Url
from fedprior.data.table import SGD

# As in tensorflow/datasets, url_checksums/fashion_mnist.txt.
FILES = (
    Remote("train-images-idx3-ubyte.gz", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26421880),
    Remote("train-labels-idx1-ubyte.gz", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29515),
    Remote("t10k-images-idx3-ubyte.gz", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4422102),
    Remote("t10k-labels-idx1-ubyte.gz", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5148),
)
RECORD = Record(
    name="fashion_mnist",
    title="Fashion-MNIST: 70,000 grey images of clothes, 28 × 28",
    classes=10,
    shape=(1, 28, 28),
    formats=("idx", "npz"),
    accepts=f"its four idx files (also .gz, in a folder or an archive), or {NPZ}",
    licence="MIT",
    citation="H. Xiao, K. Rasul, R. Vollgraf. Fashion-MNIST. arXiv:1708.07747, 2017.",
    sources=(
        Url("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/", FILES),
        Debian("dataset-fashion-mnist"),
        Url("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", FILES),  # the bucket's site has no https
    ),
    counts={"train": 60000, "test": 10000},
    per_class={"train": (6000,) * 10, "test": (1000,) * 10},
    checksums={
        "x_train": "3dbeb60b0f7b70ce3ca1b55f3fec5937708c25b90946a4367dcafc355ab6fc65",
        "y_train": "360b383018792831520c7d2fd5b0144cf724933ddf4ed2b8ca90f0895998d38f",
        "x_test": "c8d929f04cc5b986db9fde49c8c4083820e5ff1046eec1d5349a91cf82484144",
        "y_test": "ae0afadfdcca7255b6c3143fb81841cba2fd58668dae7fd71cb83aa3c406b824",
    },
)

register_images(
    RECORD,
    recipe={"model": {"name": "mlp", "hidden": [100]}, "train": {**SGD, "batch_size": 20, "epochs": 5}},
    normalise="channel",
    constants={
        "channel": ((0.2860,), (0.3530,)),
    },
)
