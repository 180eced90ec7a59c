"""Stored data sets as federations: pixels, missing values, words, domains, corrupted clients, official test sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.stock import Arrays, images, keep
from data.views import classes, counts
from fedprior.data import DATASETS, load
from fedprior.data.featureskew import Corruptions, Pair, pairs
from fedprior.data.federation import SPLITS, Federation
from fedprior.data.images import moments
from fedprior.data.sets.digit_domains import enlarged
from fedprior.data.sets.heart_disease import heart_disease
from fedprior.data.sets.office_caltech_surf import office_caltech_surf
from fedprior.data.store import RECORDS
from fedprior.data.text import token_ids, tokens
from fedprior.errors import FedpriorError
from fedprior.models import build
from fedprior.training import Train


@pytest.fixture(autouse=True)
def _nothing_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPRIOR_DATA", str(tmp_path / "data"))


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """200 to train and 100 to test on, 20 and 10 of each class."""
    arrays = images("mnist", 200, 100)
    keep(monkeypatch, tmp_path, "mnist", arrays)
    return arrays


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(FedpriorError) as error:
        load(name, **options)
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


def marks(federation: Federation, split: str, c: int) -> list[int]:
    """The first pixels of a client's images, with normalise=unit: their numbers."""
    return [round(255 * v) for v in federation.split(split).client(c)[0][:, 0, 0, 0].tolist()]


def test_what_is_not_stored_is_told_in_one_sentence(tmp_path: Path) -> None:
    for name in RECORDS:
        assert refusal(name).startswith(f"{name} is not stored in '{tmp_path / 'data'}': get it with `fedprior data ")
    assert "is not stored" in refusal("digit_domains")


@pytest.mark.parametrize("name", [name for name, data in DATASETS.items() if data.images and name in RECORDS])
def test_images(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As float32, channel first, in the range that the constants give; the recipe fits."""
    arrays = images(name, 400, 100, 5)
    extra = {"coarse": np.arange(400) % 20, "writer": np.array([f"w{i % 4}" for i in range(400)])}
    whole = "all" in RECORDS[name].counts
    if whole:
        arrays = {"x": arrays["x_train"], "y": arrays["y_train"], RECORDS[name].columns[0]: np.repeat(["a", "b"], 200)}
    else:
        for column in RECORDS[name].columns:
            arrays |= {f"{column}_{s}": extra[column][: len(arrays[f"y_{s}"])] for s in ("train", "test")}
    keep(monkeypatch, tmp_path, name, arrays)
    federation = load(name)
    assert federation.shape == RECORDS[name].shape
    assert federation.train.x.dtype == torch.float32
    assert sum(sum(federation.split(s).size) for s in SPLITS) == (400 if whole else 500)
    if DATASETS[name].partition == "column":
        assert set(federation.clients) == ({"a", "b"} if whole else {"w0", "w1", "w2", "w3"})
    assert -3 < federation.train.x.min() < 0 < federation.train.x.max() < 3
    options = dict(federation.recipe["model"])
    module = build(options.pop("name"), options, federation.shape, classes(federation))
    assert module(federation.train.x[:2]).shape == (2, classes(federation))
    Train(**federation.recipe["train"])


def test_normalisation(mnist: dict[str, Any]) -> None:
    """(pixel / 255 - mean) / std with each pair of constants; pixel: those of all 300 images, 0.001 added to std."""
    raw = torch.from_numpy(np.concatenate([mnist["x_train"], mnist["x_test"]])).double() / 255
    raw = raw[:, None] if raw.dim() == 3 else raw
    for how, mean, std in (("channel", 0.1307, 0.3081), ("half", 0.5, 0.5), ("unit", 0.0, 1.0)):
        got = load("mnist", clients=1, partition="iid", normalise=how, test=0.5, validation=0)
        assert sorted(torch.cat([got.train.x, got.test.x])[:, 0, 3, 5].tolist()) == pytest.approx(
            sorted(((raw[:, 0, 3, 5] - mean) / std).tolist()), abs=1e-5
        )
    got = load("mnist", clients=1, partition="iid", normalise="pixel", test=0.5, validation=0)
    expected = (raw - raw.mean(0)) / (raw.std(0, correction=0) + 0.001)
    assert sorted(torch.cat([got.train.x, got.test.x])[:, 0, 3, 5].tolist()) == pytest.approx(
        sorted(expected[:, 0, 3, 5].tolist()), abs=1e-4
    )
    assert refusal("mnist", normalise="image") == "normalise=image is not available for mnist: use half, unit or pixel."


def test_moments_in_blocks() -> None:
    x = np.random.default_rng(0).integers(0, 256, (5000, 1, 2, 3), dtype=np.uint8)
    mean, std = moments(x)
    np.testing.assert_allclose(mean, (x / 255).mean(0))
    np.testing.assert_allclose(std, (x / 255).std(0))


# Official test sets


def test_the_official_test_set_is_dealt_out_in_proportion(mnist: dict[str, Any]) -> None:
    """Ten clients of 20: 4 uniform, none of them but the last class's remainder 4, and 8 of each of two majors. A test
    class of 10 goes to its clients in proportion to their 20 training examples, to within one; each is used once."""
    federation = load("mnist", clients=10, partition="major", test="official", validation=0, normalise="unit")
    train, test = counts(federation, "train"), counts(federation, "test")
    assert train.sum() == 200
    assert test.sum(0).tolist() == [10] * 10
    assert (np.abs(test - train / train.sum(0) * 10) < 1).all()
    assert sorted(i for c in range(10) for i in marks(federation, "test", c)) == list(range(100))


def test_clients_share_the_test_examples_of_their_labels(mnist: dict[str, Any]) -> None:
    """Five labels each: all 50 test images of them, 10 a label; or any 3 of each with a cap."""
    options: dict[str, Any] = {"clients": 4, "partition": "slicing", "test": "shared", "normalise": "unit"}
    federation = load("mnist", validation=0, **options)
    labels = counts(federation, "train") > 0
    assert (counts(federation, "test") == 10 * labels).all()
    capped = load("mnist", validation=0, test_cap=3, **options)
    assert (counts(capped, "test") == 3 * labels).all()
    for c in range(4):
        assert marks(federation, "test", c) == [i for i in range(100) if labels[c, i % 10]]
        assert set(marks(capped, "test", c)) <= set(marks(federation, "test", c))
    assert sorted(i for c in range(4) for i in marks(federation, "train", c)) == list(range(200))
    with_validation = load("mnist", validation=0.2, **options)
    assert with_validation.test.size == federation.test.size
    assert sum(with_validation.train.size) < 200


def test_a_writer_is_tested_on_what_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = images("femnist", 60, 30)
    arrays |= {f"writer_{s}": np.array([f"w{i % 3}" for i in range(n)]) for s, n in (("train", 60), ("test", 30))}
    keep(monkeypatch, tmp_path, "femnist", arrays)
    for test in ("official", "shared"):
        federation = load("femnist", test=test, validation=0, normalise="unit")
        for c in range(3):
            assert marks(federation, "train", c) == list(range(c, 60, 3))
            assert marks(federation, "test", c) == list(range(c, 30, 3))


def test_a_client_without_any_official_test_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wrote for w2 to be tested."""
    arrays = images("femnist", 60, 30)
    arrays |= {
        f"writer_{s}": np.array([f"w{i % k}" for i in range(n)]) for s, n, k in (("train", 60, 3), ("test", 30, 2))
    }
    keep(monkeypatch, tmp_path, "femnist", arrays)
    for test in ("official", "shared"):
        assert "no official test example is left for client 'w2'" in refusal("femnist", test=test)


def test_superclasses_become_the_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 classes in 20 superclasses of five; a client has one class of each, and is tested on those classes."""
    arrays = images("cifar100", 1000, 200)
    keep(monkeypatch, tmp_path, "cifar100", arrays | {"fine_to_coarse": np.arange(100) % 20})
    federation = load("cifar100", partition="superclass", clients=10, test="shared", normalise="unit", validation=0)
    assert classes(federation) == 20
    assert (counts(federation, "train") > 0).all()
    assert (counts(federation, "test") == 2).all()
    for c in range(10):  # the number of an image tells its class: n % 100, its number being known modulo 256
        fine = {n % 100 for n in marks(federation, "test", c)}
        assert len(fine) == 20
        assert {n % 20 for n in fine} == set(range(20))
    plain = load("cifar100", clients=5)
    assert classes(plain) == 100
    assert "no superclasses" in refusal("digits", partition="superclass")


def test_few_examples(mnist: dict[str, Any]) -> None:
    """53 of the 200 for training: 5 of each class and one more of the first three. The test set is whole."""
    federation = load("mnist", clients=2, partition="iid", examples=53, test="official", validation=0)
    assert counts(federation, "train").sum(0).tolist() == [6, 6, 6, 5, 5, 5, 5, 5, 5, 5]
    assert sum(federation.test.size) == 100
    assert "but class 0 has 20" in refusal("mnist", clients=2, partition="iid", examples=201, test="official")


@pytest.mark.parametrize("share", [0.75, 0.5, 0.25])
def test_scarcity_leaves_the_test_part_alone(share: float, mnist: dict[str, Any]) -> None:
    """floor(p n) of every client's training examples; a smaller share is part of a larger one."""
    options: dict[str, Any] = {
        "clients": 7,
        "partition": "iid",
        "validation": 0,
        "normalise": "unit",
        "split": "random",
    }
    whole, half, part = (load("mnist", keep=p, **options) for p in (1.0, 0.8, share))
    assert part.train.size == tuple(int(share * n) for n in whole.train.size)
    assert torch.equal(part.test.x, whole.test.x)
    for c in range(7):
        assert set(marks(part, "train", c)) <= set(marks(half, "train", c)) <= set(marks(whole, "train", c))
    assert "leaves client 'client-0' none of its" in refusal("mnist", clients=7, keep=0.001)


def test_a_random_split_is_not_stratified(mnist: dict[str, Any]) -> None:
    """One client with 300 examples, 30 of each class: stratified, exactly 6 of each are tested on."""
    found = [
        counts(load("mnist", clients=1, partition="iid", split=how), "test")[0] for how in ("stratified", "random")
    ]
    assert np.ptp(found[0]) <= 1
    assert np.ptp(found[1]) > 1
    assert found[0].sum() == found[1].sum() == 60


@pytest.mark.parametrize(
    ("name", "options", "part"),
    [
        ("digits", {"test": "official"}, "digits has no official test set"),
        ("synthetic", {"test": "shared"}, "synthetic has no official test set"),
        ("mnist", {"test": "offical"}, "test = 'offical'"),
        ("mnist", {"test_cap": 3}, "test_cap applies to test=shared"),
        ("mnist", {"test_cap": 3, "test": "official"}, "test_cap applies to test=shared"),
        ("mnist", {"keep": 0}, "keep = 0"),
        ("mnist", {"split": "some"}, "split = 'some'"),
        ("mnist", {"examples": 0}, "examples = 0"),
        ("mnist", {"normalise": "some"}, "normalise = 'some'"),
        ("mnist", {"corruption": "frosty"}, "unknown corruption 'frosty': did you mean 'frost'?"),
        ("mnist", {"corruption": "fog", "severity": 6}, "severity = 6"),
        ("mnist", {"mislabel": True}, "unknown option 'mislabel'"),
        ("digits", {"corruption": "fog"}, "unknown option 'corruption'"),
    ],
)
def test_what_is_refused(name: str, options: dict[str, Any], part: str, mnist: dict[str, Any]) -> None:
    assert part in refusal(name, **options)


def test_the_authors_wrong_labels_reach_the_federation(mnist: dict[str, Any]) -> None:
    """Three labels each: classes u, u + 1 and u + 2; the first ten of each are called 0, 1 and 2."""
    options: dict[str, Any] = {"partition": "lognormal", "clients": 5, "split": "random", "validation": 0}
    right, wrong = load("mnist", **options), load("mnist", mislabel=True, **options)
    assert set(np.flatnonzero(counts(right, "train")[4])) <= {4, 5, 6}
    assert counts(wrong, "train")[4, :3].sum() + counts(wrong, "test")[4, :3].sum() == 30


# Corrupted clients

NAMES = (
    *("motion_blur", "defocus_blur", "gaussian_noise", "shot_noise", "impulse_noise"),
    *("frost", "fog", "jpeg_compression", "brightness", "contrast"),
)


def test_published_pairs() -> None:
    """pFedFDA's code: corruption m mod 10, severity m mod 5 + 1: ten pairs, five times each; the second half clean."""
    found = pairs(Corruptions(corruption="published"), 100)
    expected = [Pair(name, 1 + i % 5) for i, name in enumerate(NAMES)]
    assert found == [*expected * 5, *[None] * 50]


def test_unique_pairs() -> None:
    """The paper: fifty pairs, no two alike."""
    found = pairs(Corruptions(corruption="unique"), 100)
    assert found[:11] == [*(Pair(name, 1) for name in NAMES), Pair("motion_blur", 2)]
    assert len(set(found[:50])) == 50
    assert found[50:] == [None] * 50


def test_a_named_corruption() -> None:
    assert pairs(Corruptions(corruption="fog", corrupted=0.25), 4) == [Pair("fog", 3), None, None, None]
    assert pairs(Corruptions(), 3) == [None] * 3


def test_corruption_changes_images_and_nothing_else(mnist: dict[str, Any]) -> None:
    """The first half of the clients, training and test; labels and clean clients are the same to the bit."""
    options: dict[str, Any] = {"clients": 4, "partition": "iid", "normalise": "unit", "test": "official"}
    clean, foggy = load("mnist", **options), load("mnist", corruption="fog", **options)
    for split in SPLITS:
        for c in range(4):
            (x, y), (x2, y2) = clean.split(split).client(c), foggy.split(split).client(c)
            assert torch.equal(y, y2)
            assert torch.equal(x, x2) == (c >= 2)
    assert foggy.fingerprint() == load("mnist", corruption="fog", **options).fingerprint()
    assert foggy.fingerprint() != load("mnist", corruption="fog", severity=5, **options).fingerprint()


# Tables and text

HEART = """age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num,site
63,1,1,145,233,1,2,150,0,2.3,3,0,6,0,b
67,1,4,160,0,0,2,108,1,1.5,2,,3,2,b
37,1,3,130,250,0,0,187,0,3.5,3,0,3,0,b
41,0,2,130,204,,2,172,0,1.4,1,0,3,1,b
60,0,2,130,204,0,2,172,0,1.4,1,0,3,1,b
50,1,4,120,,0,1,127,0,0,,,,1,a
51,0,3,120,0,0,1,120,0,0,,,,0,a
52,1,3,120,0,0,1,120,0,0,,,,0,a
"""


def test_heart_disease_fills_in_each_hospitals_own_medians(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cp, restecg, slope and thal become 3, 2, 2 and 2 inputs: 9 + 9, and 13 that tell what was missing. Hospital a has
    no cholesterol at all: a constant, so 0."""
    keep(monkeypatch, tmp_path, "heart_disease", HEART)
    table = heart_disease()
    assert table.x.shape == (8, 31)
    assert table.columns["site"].tolist() == ["a"] * 3 + ["b"] * 5
    assert np.flatnonzero(table.x[4, 18:]).tolist() == [4, 11]  # chol and ca of the second patient of b
    federation = load("heart_disease", validation=0, test=0.3)
    assert federation.clients == ("a", "b")
    assert federation.shape == (31,)
    assert torch.isfinite(federation.train.x).all()
    chol = 1 + 1 + 3 + 1  # after age, sex, cp and trestbps
    assert not federation.train.client(0)[0][:, chol].any()
    torch.testing.assert_close(federation.train.client(1)[0].mean(0), torch.zeros(31), rtol=0, atol=1e-6)


def test_imputation_sees_the_clients_own_training_rows_only() -> None:
    """Training rows of a: 1, 3, 8 and a gap: median 3. The test row's gap gets it too, whatever b has."""
    from fedprior.data.federation import from_arrays

    a = np.array([[1.0], [3.0], [8.0], [np.nan]])
    b = np.array([[100.0], [200.0], [300.0], [400.0]])
    gap = np.array([[np.nan], [7.0]])
    y = np.zeros(4)
    federation = from_arrays(
        {"a": (a, y), "b": (b, y)}, tests={"a": (gap, y[:2]), "b": (gap, y[:2])}, impute=True, validation=0
    )
    assert federation.train.client(0)[0].flatten().tolist() == [1, 3, 8, 3]
    assert federation.test.client(0)[0].flatten().tolist() == [3, 7]
    assert federation.test.client(1)[0].flatten().tolist() == [250, 7]
    with pytest.raises(FedpriorError, match="missing or infinite value in row 3"):
        from_arrays({"a": (a, y)})


def test_heart_disease_with_flambys_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without slope, ca and thal: rows that lack anything else go, and a cholesterol of 0 is a value."""
    keep(monkeypatch, tmp_path, "heart_disease", HEART)
    table = heart_disease(rows="complete")
    assert table.x.shape == (6, 13)
    assert {site: (table.columns["site"] == site).sum() for site in "ab"} == {"a": 2, "b": 4}
    assert sorted(table.x[:, 6].tolist()) == [0, 0, 0, 204, 233, 250]


def test_tokens() -> None:
    """Lower case, words and marks; the number of a token depends on it alone; 0 is padding."""
    assert tokens("I'm  LOST, @user :)") == ["i", "'", "m", "lost", ",", "@", "user", ":", ")"]
    ids = token_ids(["Lost and lost", "", "and so on and on"], 4, 50)
    assert ids.shape == (3, 4)
    assert ids[0, 0] == ids[0, 2]
    assert ids[0, 1] == ids[2, 0] == ids[2, 3]
    assert ids[0, 3] == 0
    assert not ids[1].any()
    assert ids.max() < 50
    assert (ids[[0, 2]] > 0).sum() == 7


def test_sent140(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 users of three tweets at two clients, in the file's order."""
    lines = [f"{k},good day number {i} of {k},{(i + k) % 2}" for k in range(40) for i in range(3)]
    keep(monkeypatch, tmp_path, "sent140", "\n".join(["user,text,label", *lines, ""]))
    federation = load("sent140", clients=2, vocabulary=100, length=6)
    assert federation.shape == (6,)
    assert sum(sum(federation.split(s).size) for s in SPLITS) == 120
    assert federation.recipe["model"]["vocabulary"] == 100
    options = dict(federation.recipe["model"])
    module = build(options.pop("name"), options | {"features": 8}, federation.shape, 2)
    assert module(federation.train.x[:2]).shape == (2, 2)
    assert len(load("sent140", partition="column", test=0.3)) == 40


def test_surf_histograms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Square roots of shares have length 1; then each site is standardised."""
    x = np.random.default_rng(0).integers(0, 5, (40, 800), dtype=np.uint8)
    arrays: Arrays = {"x": x, "y": np.arange(40) % 10, "domain": np.repeat(["amazon", "dslr"], 20)}
    keep(monkeypatch, tmp_path, "office_caltech_surf", arrays)
    np.testing.assert_allclose((office_caltech_surf().x ** 2).sum(1), 1)
    federation = load("office_caltech_surf")
    assert federation.clients == ("amazon", "dslr")
    torch.testing.assert_close(federation.train.client(1)[0].mean(0), torch.zeros(800), rtol=0, atol=1e-5)


# Domains


def test_digit_domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three domains of one shape, two clients each; official tests stay in the domain."""
    for name in ("mnist", "usps", "mnist_m"):
        keep(monkeypatch, tmp_path, name, images(name, 100, 50))
    federation = load("digit_domains", per_domain=2)
    assert federation.clients == ("mnist-0", "mnist-1", "mnist_m-0", "mnist_m-1", "usps-0", "usps-1")
    assert federation.shape == (3, 32, 32)
    assert sum(sum(federation.split(s).size) for s in SPLITS) == 450
    official = load("digit_domains", per_domain=2, alpha=10.0, test="official")
    assert [sum(official.test.size[i : i + 2]) for i in (0, 2, 4)] == [50, 50, 50]


def test_all_five_domains_of_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pFedVEM's Digit-Five: two clients of a domain with five labels each, which share its ten."""
    for name in ("mnist", "usps", "mnist_m", "svhn", "synth_digits"):
        keep(monkeypatch, tmp_path, name, images(name, 100, 50))
    federation = load("digit_five", per_domain=2, within="slicing", labels_each=5, test="shared")
    assert len(federation) == 10
    counts = federation.label_counts().to_numpy() > 0
    assert (counts.sum(1) == 5).all()
    assert (counts[0::2] ^ counts[1::2]).all()


def test_superclasses_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six categories of ten in three superclasses: a client has one of each, tested on every fifth example."""
    y = np.repeat(np.arange(6), 10)
    x = np.zeros((60, 3, 64, 64), dtype=np.uint8)
    x[:, 0, 0, 0] = np.arange(60)
    kinds = np.array(["indoor", "manmade", "natural"])[y // 2]
    keep(monkeypatch, tmp_path, "sun397", {"x": x, "y": y, "superclass": kinds})
    federation = load("sun397", partition="superclass", clients=2, test="shared", validation=0.0, normalise="unit")
    assert classes(federation) == 3
    for c in range(2):
        assert np.bincount(federation.labels("train")[c]).tolist() == [8, 8, 8]
        assert [mark % 10 for mark in sorted(marks(federation, "test", c))] == [4, 9] * 3
    assert refusal("sun397", partition="superclass", clients=3).startswith("3 clients with subclasses=1")


def test_enlarging() -> None:
    """A grey image becomes three equal channels; what is constant stays, and so does what has the size already."""
    flat = enlarged(np.full((2, 1, 16, 16), 77, dtype=np.uint8))
    assert flat.shape == (2, 3, 32, 32)
    assert (flat == 77).all()
    ramp = enlarged(np.tile(np.arange(0, 160, 10, dtype=np.uint8), (1, 1, 16, 1)))
    assert (np.diff(ramp[0, 0, 5].astype(int)) >= 0).all()
    assert (ramp[0, 0] == ramp[0, 2]).all()
    same = np.random.default_rng(0).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
    assert enlarged(same) is same
