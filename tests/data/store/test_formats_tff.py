"""TensorFlow Federated's database, with examples that are written by Google's own library."""

from __future__ import annotations

import lzma
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from data.store.miniature import mini, refusal, write
from fedprior.data import store
from fedprior.data.store import RECORDS
from fedprior.data.store.formats.tff import features, varints
from fedprior.data.store.importers import decode

FEMNIST = mini("femnist", shape=(1, 2, 3))
Field = descriptor_pb2.FieldDescriptorProto


def example_class(*, packed: bool) -> Any:
    """`tf.train.Example`, as TensorFlow's example.proto and feature.proto define it."""
    file = descriptor_pb2.FileDescriptorProto(name=f"example-{packed}.proto", package=f"tf{packed}", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, str, bool], parent: Any = file.message_type) -> Any:
        made = parent.add(name=name)
        for field, number, kind, of, repeated in fields:
            label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
            added = made.field.add(name=field, number=number, type=kind, label=label)
            if of:
                added.type_name = f".{file.package}.{of}"
            elif repeated and kind != Field.TYPE_BYTES:
                added.options.packed = packed
        return made

    message("BytesList", ("value", 1, Field.TYPE_BYTES, "", True))
    message("FloatList", ("value", 1, Field.TYPE_FLOAT, "", True))
    message("Int64List", ("value", 1, Field.TYPE_INT64, "", True))
    lists = (("bytes_list", 1, "BytesList"), ("float_list", 2, "FloatList"), ("int64_list", 3, "Int64List"))
    message("Feature", *((name, number, Field.TYPE_MESSAGE, of, False) for name, number, of in lists))
    outer = message("Features", ("feature", 1, Field.TYPE_MESSAGE, "Features.FeatureEntry", True))
    entry = message(
        "FeatureEntry",
        ("key", 1, Field.TYPE_STRING, "", False),
        ("value", 2, Field.TYPE_MESSAGE, "Feature", False),
        parent=outer.nested_type,
    )
    entry.options.map_entry = True
    message("Example", ("features", 1, Field.TYPE_MESSAGE, "Features", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.Example"))


PACKED, LOOSE = example_class(packed=True), example_class(packed=False)


def example(pixels: list[float], label: int, kind: Any = PACKED) -> bytes:
    made = kind()
    made.features.feature["pixels"].float_list.value.extend(pixels)
    made.features.feature["label"].int64_list.value.append(label)
    made.features.feature["note"].bytes_list.value.append(b"not needed")
    content: bytes = made.SerializeToString()
    return content


@pytest.mark.parametrize("kind", [PACKED, LOOSE], ids=["packed", "loose"])
@given(pixels=st.lists(st.floats(0, 1, width=32), max_size=40), label=st.integers(0, 2**62))
def test_an_example(kind: Any, pixels: list[float], label: int) -> None:
    found = features(example(pixels, label, kind))
    assert set(found) == {"pixels", "label"}
    assert found["pixels"].tolist() == pixels
    assert found["label"].tolist() == [label]


def test_varints() -> None:
    """300 = 0b10_0101100 has its lower seven bits first: 0xAC 0x02 (the specification's own example)."""
    assert list(varints(b"\xac\x02\x00\x01\x7f")) == [300, 0, 1, 127]


Row = tuple[str, str, list[float], int]
ROWS: list[Row] = [
    ("all_train", "f0002_01", [0, 1, 1, 1, 1, 1], 10),
    ("all_train", "f0001_41", [1, 0, 1, 1, 1, 1], 61),
    ("digits_only_train", "f0001_41", [0, 0, 0, 0, 0, 0], 3),
    ("all_train", "f0002_01", [1, 1, 0.5, 1, 1, 1], 3),
    ("all_test", "f0001_41", [1, 1, 1, 0, 1, 1], 0),
]


def database(path: Path, rows: list[Row] = ROWS, kind: Any = PACKED) -> bytes:
    """A file as `emnist_all.sqlite` is."""
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        made.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        made.executemany("INSERT INTO examples VALUES (?, ?, ?)", [(s, c, example(x, y, kind)) for s, c, x, y in rows])
    made.close()
    return path.read_bytes()


@pytest.mark.parametrize("kind", [PACKED, LOOSE], ids=["packed", "loose"])
@pytest.mark.parametrize("container", [lzma.FORMAT_XZ, lzma.FORMAT_ALONE, None], ids=["xz", "lzma", "plain"])
def test_the_database(kind: Any, container: int | None, tmp_path: Path) -> None:
    """Writers by name, their examples as in the database, digits once; ink is dark."""
    content = database(tmp_path / "made", kind=kind)
    packed = content if container is None else lzma.compress(content, container)
    arrays = decode(FEMNIST, write(tmp_path, {"emnist_all.sqlite.lzma": packed})).arrays
    assert arrays["writer_train"].tolist() == ["f0001_41", "f0002_01", "f0002_01"]
    assert arrays["y_train"].tolist() == [61, 10, 3]
    assert arrays["x_train"].reshape(3, -1).tolist() == [
        [255, 0, 255, 255, 255, 255],
        [0, 255, 255, 255, 255, 255],
        [255, 255, 128, 255, 255, 255],
    ]
    assert (arrays["writer_test"].tolist(), arrays["y_test"].tolist()) == (["f0001_41"], [0])


def test_it_is_imported_and_leaves_nothing_behind(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECORDS, "femnist", FEMNIST)
    database(tmp_path / "emnist_all.sqlite")
    assert store.import_files("femnist", [tmp_path / "emnist_all.sqlite"]).examples == {"train": 3, "test": 1}
    assert list(data.rglob("*.sqlite*")) == []


def test_damage(tmp_path: Path) -> None:
    content = database(tmp_path / "made")
    cut = write(tmp_path / "a", {"emnist_all.sqlite": content[: len(content) // 2]})
    assert "damaged" in refusal(decode, FEMNIST, cut)
    packed = lzma.compress(content)
    assert "damaged, truncated" in refusal(decode, FEMNIST, write(tmp_path / "b", {"x.lzma": packed[:-40]}))
    assert "no test data" in refusal(decode, FEMNIST, write(tmp_path / "c", {"x": database(tmp_path / "d", ROWS[:4])}))


def test_another_database(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other") as made:
        made.execute("CREATE TABLE tweets (text TEXT)")
    made.close()
    assert "not a database of TensorFlow Federated" in refusal(decode, FEMNIST, [tmp_path / "other"])


@pytest.mark.parametrize("content", [b"\x0a\x05\x0a", b"\x08\x01", b"\x0a\x02\x0b\x01", b"\x0a\x80"])
def test_broken_examples(content: bytes, tmp_path: Path) -> None:
    """A length beyond the end, a number for a message, a kind of field that does not exist, a number without an end."""
    with sqlite3.connect(tmp_path / "made") as made:
        made.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        made.execute("INSERT INTO examples VALUES ('all_train', 'f0001_41', ?)", (content,))
    made.close()
    assert "'made' is damaged or not what it seems" in refusal(decode, FEMNIST, [tmp_path / "made"])
