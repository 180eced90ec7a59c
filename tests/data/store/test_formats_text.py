"""LEAF's JSON, heart disease by hospital, tweets by user and USPS in rows."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.store.miniature import mini, write
from fedprior.data.store import RECORDS
from fedprior.data.store.importers import decode
from fedprior.errors import FedpriorError


def refusal(record: Any, paths: list[Path]) -> str:
    with pytest.raises(FedpriorError) as error:
        decode(record, paths)
    assert "\n" not in str(error.value)
    return str(error.value)


# LEAF

FEMNIST = mini("femnist")


def leaf(users: dict[str, list[int]]) -> bytes:
    """Every image of a user has one dark pixel (0) on white (1), at the place of its label."""
    data = {}
    for user, y in users.items():
        x = np.ones((len(y), 784))
        x[np.arange(len(y)), y] = 0
        data[user] = {"x": x.tolist(), "y": y}
    return json.dumps(
        {"users": list(users), "num_samples": [len(y) for y in users.values()], "user_data": data}
    ).encode()


def test_leaf_without_a_split(tmp_path: Path) -> None:
    files = {"all_data_0.json": leaf({"f1": [3, 61], "none": []}), "all_data_1.json": leaf({"f0002": [5]})}
    arrays = decode(FEMNIST, [write(tmp_path / "d", files)[0].parent]).arrays
    assert arrays["writer"].tolist() == ["f1", "f1", "f0002"]
    assert arrays["y"].tolist() == [3, 61, 5]
    assert arrays["x"].shape == (3, 1, 28, 28)
    assert arrays["x"].dtype == np.uint8
    assert arrays["x"].reshape(3, -1).argmin(1).tolist() == [3, 61, 5]  # the ink is dark
    assert (np.sort(arrays["x"].reshape(3, -1))[:, 1] == 255).all()


def test_leaf_with_a_split(tmp_path: Path) -> None:
    files = {
        "all_data_0_niid_0_keep_0_train_9.json": leaf({"f1": [3, 4], "f2": [5]}),
        "all_data_0_niid_0_keep_0_test_9.json": leaf({"f1": [6], "f2": [7]}),
    }
    arrays = decode(FEMNIST, write(tmp_path, files)).arrays
    assert arrays["writer_train"].tolist() == ["f1", "f1", "f2"]
    assert arrays["y_train"].tolist() == [3, 4, 5]
    assert arrays["y_test"].tolist() == [6, 7]
    assert arrays["writer_test"].tolist() == ["f1", "f2"]


def test_half_a_split(tmp_path: Path) -> None:
    assert "hold 'train'" in refusal(FEMNIST, write(tmp_path, {"all_train_9.json": leaf({"f1": [3]})}))


def test_damaged_json(tmp_path: Path) -> None:
    assert "'a.json' is damaged" in refusal(FEMNIST, write(tmp_path, {"a.json": leaf({"f1": [3]})[:-9]}))


def test_other_json_is_passed_over(tmp_path: Path) -> None:
    assert "none of the files" in refusal(FEMNIST, write(tmp_path, {"package.json": b'{"name": "x"}', "b": b"{"}))


# Heart disease

HEART = mini("heart_disease")
CLEVELAND = (
    b"63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n67.0,1.0,4.0,160.0,0,0,2,108,1,1.5,2,?,3,2\n"
)
VA = b"44,1,4,?,209,0,1,127,0,0,?,?,?,1\n"


def test_hospitals_from_the_files_of_uci(tmp_path: Path) -> None:
    """`?` is missing, a cholesterol of 0 is kept; any diagnosis above 0 is class 1."""
    paths = write(tmp_path, {"processed.va.data": VA, "processed.cleveland.data": CLEVELAND})
    arrays = decode(HEART, paths).arrays
    assert arrays["site"].tolist() == ["cleveland", "cleveland", "va"]
    assert arrays["y"].tolist() == [0, 1, 1]
    columns = dict(zip(HEART.features, arrays["x"].T, strict=True))
    np.testing.assert_array_equal(columns["chol"], [233, 0, 209])
    np.testing.assert_array_equal(columns["ca"], [0, np.nan, np.nan])
    np.testing.assert_array_equal(columns["oldpeak"], [2.3, 1.5, 0])
    np.testing.assert_array_equal(columns["trestbps"], [145, 160, np.nan])


def test_one_table_with_a_column_for_the_site_is_the_same(tmp_path: Path) -> None:
    header = ",".join([*HEART.features, "num", "site"])
    lines = [
        row.decode().replace("?", "") + f",{site}"
        for site, f in (("va", VA), ("cleveland", CLEVELAND))
        for row in f.splitlines()
    ]
    (table,) = write(tmp_path, {"table.csv": "\n".join([header, *lines, ""]).encode()})
    files = write(tmp_path, {"processed.va.data": VA, "processed.cleveland.data": CLEVELAND})
    one, four = decode(HEART, [table]).arrays, decode(HEART, files).arrays
    for name, expected in four.items():
        np.testing.assert_array_equal(one[name], expected)


@pytest.mark.parametrize("missing", ["?", "NaN", ""])
def test_other_ways_to_say_missing(missing: str, tmp_path: Path) -> None:
    (path,) = write(tmp_path, {"va.csv": VA.replace(b"?", missing.encode())})
    assert np.isnan(decode(HEART, [path]).arrays["x"]).sum() == 4


def test_a_file_of_no_hospital(tmp_path: Path) -> None:
    assert "its name contains no hospital" in refusal(HEART, write(tmp_path, {"some.data": VA}))


def test_missing_patients_are_noticed(tmp_path: Path) -> None:
    (path,) = write(tmp_path, {"processed.va.data": VA})
    assert "1 examples, where there are 920" in refusal(RECORDS["heart_disease"], [path])
    record = mini("heart_disease", groups={"va": 200})
    assert "each site has 1 va, where 200 va" in refusal(record, [path])


def test_a_patient_without_a_diagnosis_is_not_healthy(tmp_path: Path) -> None:
    (path,) = write(tmp_path, {"processed.va.data": VA.replace(b",1\n", b",?\n") + VA})
    assert "1 patients have no diagnosis" in refusal(HEART, [path])


def test_infinite_values(tmp_path: Path) -> None:
    header = ",".join([*HEART.features, "num", "site"])
    text = f"{header}\ninf{',1' * 13},va\n".encode()
    assert "infinite" in refusal(HEART, write(tmp_path, {"t.csv": text}))


def test_words_among_the_numbers(tmp_path: Path) -> None:
    header = ",".join([*HEART.features, "num", "site"])
    text = f"{header}\nold{',1' * 13},va\n".encode()
    assert "do not fit together" in refusal(HEART, write(tmp_path, {"t.csv": text}))


# Tweets

SENT140 = mini("sent140")


def test_tweets(tmp_path: Path) -> None:
    """Texts that look like missing values stay texts; commas, quotes, line breaks and other scripts survive."""
    text = 'user,text,label\n7,null,0\n7,"a, ""b""\nc",1\n12,naïve ☺,1\n'
    arrays = decode(SENT140, write(tmp_path, {"t.csv.gz": gzip.compress(text.encode())})).arrays
    assert arrays["x"].tolist() == ["null", 'a, "b"\nc', "naïve ☺"]
    assert arrays["y"].tolist() == [0, 1, 1]
    assert arrays["user"].tolist() == ["7", "7", "12"]
    assert arrays["x"].dtype.kind == arrays["user"].dtype.kind == "U"


def test_tweets_with_other_labels(tmp_path: Path) -> None:
    (path,) = write(tmp_path, {"t.csv": b"user,text,label\n1,hello,4\n"})
    assert "y runs from 4 to 4" in refusal(SENT140, [path])
    (path,) = write(tmp_path, {"t.csv": b"user,text,label\n1,hello,happy\n"})
    assert "do not fit together" in refusal(SENT140, [path])


# USPS

USPS = mini("usps", shape=(1, 2, 2))
TRAIN = b"7 1:-1 2:-0.631 3:0.862 4:1.000 \n10 1:0.307 2:-1 4:1 \n1 1:-1 2:-1 3:-1 4:-1 \n"
TEST = b"2 1:1 2:1 3:1 4:1 \n"


def test_libsvm(tmp_path: Path) -> None:
    """(v + 1) / 2 · 255, rounded: -0.631 → 47.05, 0.862 → 237.4, 0.307 → 166.6; what is left out is 0 → 127.5."""
    arrays = decode(USPS, write(tmp_path, {"usps.t.bz2": bz2.compress(TEST), "usps.bz2": bz2.compress(TRAIN)})).arrays
    assert arrays["y_train"].tolist() == [6, 9, 0]
    assert arrays["y_test"].tolist() == [1]
    assert arrays["x_train"].reshape(3, 4).tolist() == [[0, 47, 237, 255], [167, 0, 128, 255], [0, 0, 0, 0]]


def test_rows_of_the_original(tmp_path: Path) -> None:
    """`zip.train` writes its digits as 6.0000, `zip.test` as 9."""
    train = b"6.0000 -1.0000 -0.6310 0.8620 1.0000 \n0.0000 0.3070 -1.0000 -1.0000 -1.0000 \n"
    files = {"zip.train.gz": gzip.compress(train), "zip.test.gz": gzip.compress(b"9 -1.0000 -1.0000 1.0000 0.0000\n")}
    arrays = decode(USPS, write(tmp_path, files)).arrays
    assert arrays["y_train"].tolist() == [6, 0]
    assert arrays["y_test"].tolist() == [9]
    assert arrays["x_train"].reshape(2, 4).tolist() == [[0, 47, 237, 255], [167, 0, 0, 0]]


def test_rows_with_too_few_pixels(tmp_path: Path) -> None:
    assert "damaged or not what it seems" in refusal(USPS, write(tmp_path, {"zip": b"1 0 0 1\n"}))


def test_libsvm_with_too_many_pixels(tmp_path: Path) -> None:
    assert "damaged or not what it seems" in refusal(USPS, write(tmp_path, {"usps": b"1 1:0 9:1\n"}))
