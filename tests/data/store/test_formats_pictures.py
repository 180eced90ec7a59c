"""Image files: damage, MNIST-M's lists and photographs by domain and class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from data.store.miniature import mini, picture, refusal, tar, write, zipped
from fedprior.data.store.importers import decode
from fedprior.data.store.record import Record

RNG = np.random.default_rng(0)


def archive(folder: Path, files: dict[str, bytes]) -> list[Path]:
    return write(folder, {"archive.zip": zipped(files)})


# Lists

MNIST_M = mini("mnist_m", classes=10)
DIGITS = RNG.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
LISTED = {
    **{f"mnist_m/mnist_m_train/0000000{k}.png": picture(DIGITS[k]) for k in range(3)},
    **{f"mnist_m/mnist_m_test/0000000{k}.png": picture(DIGITS[3 + k]) for k in range(2)},
    "mnist_m/mnist_m_train_labels.txt": b"00000002.png 7\n00000000.png 0\n00000001.png 9\n",
    "mnist_m/mnist_m_test_labels.txt": b"00000000.png 4\r\n00000001.png 1\r\n",
}


def test_listed_images(tmp_path: Path) -> None:
    """In the order of the lists; both folders have a 00000000.png."""
    arrays = decode(MNIST_M, write(tmp_path, {"mnist_m.tar.gz": tar(LISTED)})).arrays
    assert arrays["y_train"].tolist() == [7, 0, 9]
    assert arrays["y_test"].tolist() == [4, 1]
    assert (arrays["x_train"].transpose(0, 2, 3, 1) == DIGITS[[2, 0, 1]]).all()
    assert (arrays["x_test"].transpose(0, 2, 3, 1) == DIGITS[[3, 4]]).all()


def test_unpacked_below_a_folder_called_test(tmp_path: Path) -> None:
    for name, content in LISTED.items():
        path = tmp_path / "test" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert decode(MNIST_M, [tmp_path / "test"]).arrays["y_train"].tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("without", "words"),
    [
        ("mnist_m/mnist_m_test/00000001.png", "1 listed images are missing, such as 00000001.png"),
        ("mnist_m/mnist_m_test_labels.txt", "there is no test data"),
    ],
)
def test_what_a_list_lacks(without: str, words: str, tmp_path: Path) -> None:
    files = archive(tmp_path, {name: content for name, content in LISTED.items() if name != without})
    assert words in refusal(decode, MNIST_M, files)


@pytest.mark.parametrize("damage", [slice(0, 60), slice(0, -30)])
def test_a_damaged_image(damage: slice, tmp_path: Path) -> None:
    name = "mnist_m/mnist_m_train/00000000.png"
    text = refusal(decode, MNIST_M, archive(tmp_path, LISTED | {name: LISTED[name][damage]}))
    assert f"'{name}' cannot be imported: the image is damaged or truncated" in text


# Photographs

OFFICE = mini("office_caltech", classes=2, groups={"amazon": 2, "caltech10": 2}, counts={"all": 4})


def photo(value: int, *shape: int) -> bytes:
    return picture(np.full(shape, value, np.uint8), "jpeg", quality=95)


def photos(prefix: str = "Office-main/", caltech: str = "Caltech", bag: str = "back_pack") -> dict[str, bytes]:
    """A class that is spelt in two ways, a grey image, and sizes of all kinds."""
    return {
        f"{prefix}{caltech}/backpack/b.jpg": photo(40, 300, 300, 3),
        f"{prefix}{caltech}/mug/a.jpg": photo(80, 31, 64),
        f"{prefix}amazon/{bag}/frame_2.jpg": photo(120, 64, 64, 3),
        f"{prefix}amazon/mug/frame_1.jpg": photo(200, 200, 100, 3),
        f"{prefix}README.md": b"photographs",
    }


def assert_photos(arrays: dict[str, NDArray[np.uint8]]) -> None:
    assert arrays["domain"].tolist() == ["amazon", "amazon", "caltech10", "caltech10"]
    assert arrays["y"].tolist() == [0, 1, 0, 1]
    assert arrays["x"].shape == (4, 3, 64, 64)
    assert np.abs(arrays["x"].astype(int).mean((1, 2, 3)) - [120, 200, 40, 80]).max() < 1


@pytest.mark.parametrize(
    ("caltech", "bag"), [("Caltech", "back_pack"), ("caltech10", "backpack"), ("caltech", "backpack")]
)
def test_photographs_in_an_archive(caltech: str, bag: str, tmp_path: Path) -> None:
    """Sorted by domain, class and file, whatever the order and spelling in the archive."""
    assert_photos(decode(OFFICE, archive(tmp_path, photos(caltech=caltech, bag=bag))).arrays)


def test_photographs_in_folders_of_their_domains(tmp_path: Path) -> None:
    """Also with a folder between domain and class, as the Office data have it."""
    for name, content in photos(prefix="").items():
        domain, _, rest = name.partition("/")
        path = tmp_path / domain / "images" / rest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert_photos(decode(OFFICE, [tmp_path / "amazon", tmp_path / "Caltech"]).arrays)


def test_a_photograph_is_resized_not_cut(tmp_path: Path) -> None:
    """Left half black, right half white: so it stays, but for two columns on either side of the edge."""
    wide = np.zeros((100, 400, 3), np.uint8)
    wide[:, 200:] = 255
    files = photos() | {"Office-main/amazon/mug/frame_1.jpg": picture(wide, "jpeg", quality=100)}
    x = decode(OFFICE, archive(tmp_path, files)).arrays["x"][1]
    assert x[:, :, :30].max() < 16
    assert x[:, :, 34:].min() > 239


@pytest.mark.parametrize(
    ("record", "files", "words"),
    [
        (OFFICE, {"Office-main/holiday/mug/a.jpg": photo(1, 8, 8, 3)}, "its path names no domain"),
        (OFFICE, {"a/c/mug/a.jpg": photo(1, 8, 8, 3)}, "its path names no domain"),
        (OFFICE, {"Office-main/amazon/lamp/a.jpg": photo(1, 8, 8, 3)}, "folders of 3 classes: give those of 2"),
        (OFFICE, {"Office-main/amazon/mug/b.jpg": photo(1, 8, 8, 3)}, "5 examples, where there are 4"),
        (OFFICE, {"Office-main/amazon/mug/b.jpg": b"\xff\xd8\xff\xe0 and no more"}, "damaged or truncated"),
    ],
)
def test_other_photographs_are_refused(record: Record, files: dict[str, bytes], words: str, tmp_path: Path) -> None:
    assert words in refusal(decode, record, archive(tmp_path, photos() | files))
