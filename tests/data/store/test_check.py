"""Arrays that are not the data set are refused, with what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from data.store.miniature import digits, mini, tiny_mnist
from fedprior.data.store.check import check
from fedprior.data.store.layout import checksum
from fedprior.errors import FedpriorError


def arrays(**changes: Any) -> dict[str, NDArray[Any]]:
    found = {k: v[:, None] if k[0] == "x" else v.astype(np.int64) for k, v in digits().items()}
    return found | changes


def refusal(given: Mapping[str, NDArray[Any]], **changes: Any) -> str:
    with pytest.raises(FedpriorError) as error:
        check(tiny_mnist(**changes), dict(given))
    text = str(error.value)
    assert text.startswith("this is not mnist (")
    assert "give its four idx files" in text
    return text


def test_the_real_thing() -> None:
    sums = {name: checksum(array) for name, array in arrays().items()}
    assert check(tiny_mnist(checksums=sums), arrays()) == ""


def test_counts() -> None:
    found = arrays(x_train=arrays()["x_train"][:5], y_train=arrays()["y_train"][:5])
    assert "5 train, 4 test examples, where there are 6 train, 4 test" in refusal(found)
    whole = {"x": arrays()["x_train"], "y": arrays()["y_train"]}
    assert "(6 examples, where there are 6 train, 4 test)" in refusal(whole)


def test_types() -> None:
    assert "x_train is float64" in refusal(arrays(x_train=arrays()["x_train"] / 255))
    assert "y_test is not a list of classes" in refusal(arrays(y_test=arrays()["y_test"].astype(np.int32)))


def test_arrays_too_many_or_too_few() -> None:
    assert "the arrays are extra, x_test" in refusal(arrays(extra=np.zeros(3)))
    assert "not writer_test, writer_train, x_test" in refusal(arrays(), columns=("writer",))


def test_columns_as_long_as_the_labels() -> None:
    found = arrays(writer_train=np.array(["a"] * 5), writer_test=np.array(["a"] * 4))
    assert "writer_train has 5 rows but there are 6 labels" in refusal(found, columns=("writer",))


def test_sizes_of_the_classes() -> None:
    y = np.array([0, 1, 2, 0, 2, 2])
    good = arrays(y_train=y, y_test=y[:4])
    check(tiny_mnist(classes=3, per_class={"train": (2, 1, 3)}), good)
    assert "the class counts of the train examples are wrong" in refusal(
        arrays(y_train=np.array([0, 1, 2, 0, 1, 1]), y_test=y[:4]), classes=3, per_class={"train": 2}
    )


def test_one_wrong_pixel() -> None:
    sums = {"x_train": checksum(arrays()["x_train"])}
    changed = arrays()["x_train"].copy()
    changed[3, 0, 2, 2] ^= 1
    assert "x_train is of the right form, but its values are not the published ones" in refusal(
        arrays(x_train=changed), checksums=sums
    )


def test_another_edition_is_noted() -> None:
    """Channel means of the training images tell whether the split is the published one: it still is the data set."""
    x = np.zeros((4, 3, 2, 2), np.uint8)
    x[:, 0], x[:, 1], x[0, 2] = 51, 102, 255
    y = np.zeros(4, np.int64)
    given: dict[str, NDArray[Any]] = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    record = mini("cifar10", shape=(3, 2, 2), train_means=(0.2, 0.4, 0.25), otherwise="another split")
    assert check(record, given) == ""
    assert check(record, given | {"x_train": x[1:], "y_train": y[1:]}) == "another split"


def test_checksums_see_type_shape_and_values() -> None:
    x = np.arange(6, dtype=np.uint8)
    different = [x, x.reshape(2, 3), x.reshape(3, 2), x.astype(np.int8), x[::-1], x.reshape(2, 3).T.reshape(3, 2)]
    sums = [checksum(array) for array in different]
    assert len({*sums}) == 6
    assert checksum(np.asfortranarray(x.reshape(2, 3))) == sums[1]  # the order in memory does not matter
