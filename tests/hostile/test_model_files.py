"""A model's file is believed only if it is whole, and a model predicts only from what it can take."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedprior
from fedprior.data.csv_files import csv
from fedprior.data.federation import Federation, from_arrays
from fedprior.errors import FedpriorError
from fedprior.files import pack, read_tensors, write_bytes
from fedprior.methods import build
from fedprior.methods.fedavg import FedAvg
from fedprior.names import file_name
from hostile.strange import NAMES, federation

X = np.array([[0.5, 1.0], [-1.0, 2.0]])


@pytest.fixture(scope="module")
def data() -> Federation:
    return federation(["a", "b"])


@pytest.fixture(scope="module")
def folder(data: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    fedprior.run(FedAvg(), data, model="softmax", rounds=1, out=out / "run", workers=1)
    return out / "run"


def changed(path: Path, new: Path, *, keep_checksum: bool = False, tensors: Any = None, **about: Any) -> Path:
    """A file like another, of an older version unless its checksum is kept."""
    found, metadata = read_tensors(path)
    told = {**json.loads(metadata["fedprior"]), **about}
    if not keep_checksum:
        del told["format"], told["sha256"]
    kept = {k: v for k, v in told.items() if v is not ...}
    write_bytes(new, pack(found if tensors is None else tensors(found), {"fedprior": json.dumps(kept)}))
    return new


def refused(path: Path) -> str:
    with pytest.raises(FedpriorError) as error:
        fedprior.load_model(path)
    told = str(error.value)
    assert str(path) in told
    assert "\n" not in told
    return told


def without(name: str) -> Any:
    return lambda found: {k: v for k, v in found.items() if k != name}


def replaced(name: str, value: torch.Tensor) -> Any:
    return lambda found: {**found, name: value}


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        (without("w/head.bias"), "lacks 'w/head.bias'"),
        (without("w/head.weight"), "lacks 'w/head.weight'"),
        (replaced("w/head.bias", torch.zeros(3)), r"'w/head.bias' .* is float32 \[3\] and should be float32 \[2\]"),
        (replaced("w/head.bias", torch.zeros(())), "should be"),
        (replaced("w/head.bias", torch.zeros(2, dtype=torch.float64)), "is float64"),
        (replaced("w/other", torch.zeros(2)), "has 'w/other', which its method does not have"),
    ],
)
@pytest.mark.parametrize("keep_checksum", [True, False])
def test_entries_must_be_those_of_the_method(
    tensors: Any, told: str, keep_checksum: bool, folder: Path, tmp_path: Path
) -> None:
    path = folder / "models" / "a.safetensors"
    names = sorted(read_tensors(path)[0])
    assert len(names) == 2
    rename = names[0].removeprefix("w/").removesuffix(".bias")

    def real(found: Any) -> Any:
        own = {k.replace(rename, "head", 1): v for k, v in found.items()}
        return {k.replace("head", rename, 1): v for k, v in tensors(own).items()}

    new = changed(path, tmp_path / "new.safetensors", keep_checksum=keep_checksum, tensors=real)
    if keep_checksum:
        assert "checksum is wrong" in refused(new)
    else:
        assert re.search(told.replace("head", rename), refused(new))


@pytest.mark.parametrize("missing", ["client", "shape", "seed", "method", "model", "target", "precision"])
@pytest.mark.parametrize("value", [..., None, 3.5])
def test_a_description_that_lacks_something_is_told(missing: str, value: Any, folder: Path, tmp_path: Path) -> None:
    new = changed(folder / "models" / "a.safetensors", tmp_path / "new.safetensors", **{missing: value})
    if value is ... or missing not in ("client", "precision", "seed"):
        assert "cannot be read" in refused(new)


@pytest.mark.parametrize("told", ["", "[]", "3", "{", "null", '{"format": "two"}'])
def test_a_description_that_is_none_is_told(told: str, tmp_path: Path) -> None:
    path = tmp_path / "new.safetensors"
    write_bytes(path, pack({"a": torch.zeros(1)}, {"fedprior": told}))
    refused(path)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_flipped_byte_goes_unnoticed(folder: Path, data: st.DataObject) -> None:
    """It is refused; or it was in the blanks that pad the header, and nothing has changed."""
    path = folder / "models" / "a.safetensors"
    whole = bytearray(path.read_bytes())
    where = data.draw(st.integers(0, len(whole) - 1))
    flipped = folder.parent / "flipped.safetensors"
    whole[where] ^= data.draw(st.integers(1, 255))
    flipped.write_bytes(whole)
    try:
        found = fedprior.load_model(flipped)
    except FedpriorError:
        return
    assert (found.predict(X) == fedprior.load_model(path).predict(X)).all()
    assert path.read_bytes()[where] == ord(" "), "only a blank may change"


def test_an_older_file_loads(folder: Path, tmp_path: Path) -> None:
    path = folder / "models" / "a.safetensors"
    older = changed(path, tmp_path / "older.safetensors")
    assert "sha256" not in read_tensors(older)[1]["fedprior"]
    assert (fedprior.load_model(older).predict(X) == fedprior.load_model(path).predict(X)).all()


@pytest.mark.parametrize("name", ["fedmap", "fedem", "ifca", "apfl", "pfedfda", "pfedvem", "fedavg+ft"])
def test_every_entry_of_every_kind_of_model_counts(name: str, data: Federation, tmp_path: Path) -> None:
    model = {"name": "mlp", "hidden": [3]}
    fedprior.run(build(name, {}), data, model=model, rounds=1, out=tmp_path / "run", workers=1)
    path = tmp_path / "run" / "models" / "a.safetensors"
    fedprior.load_model(path)
    for entry in read_tensors(path)[0]:
        assert f"lacks '{entry}'" in refused(changed(path, tmp_path / "new.safetensors", tensors=without(entry)))


@pytest.mark.parametrize(
    ("x", "told"),
    [
        ([[1.0], [2.0]], r"the inputs have shape \[2, 1\] where the model takes \[n, 2\]"),
        ([1.0, 2.0], r"shape \[2\] where the model takes \[n, 2\]"),
        (1.0, r"shape \[\] where"),
        (np.zeros((2, 2, 2)), r"shape \[2, 2, 2\] where"),
        ([[1.0, 2.0], [np.nan, 1.0]], "row 1 of the inputs has a missing or infinite value"),
        ([[np.inf, 2.0]], "row 0"),
        ([[1e300, 2.0]], "row 0"),
        ([["a", "b"]], "the inputs are not numbers"),
        ([[None, 1.0]], "the inputs are not numbers"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(x: Any, told: str, data: Federation, folder: Path) -> None:
    loaded = fedprior.load_model(folder / "models" / "a.safetensors")
    read = fedprior.run(FedAvg(), data, model="softmax", rounds=1, out=folder, workers=1)
    for model in (loaded, read.model("a")):
        with pytest.raises(FedpriorError, match=told):
            model.predict(x)
    assert loaded.predict(np.empty((0, 2))).shape == (0, 2)
    assert loaded.predict([[1, 2]]).shape == (1, 2), "whole numbers are numbers"
    assert loaded.predict(torch.zeros(3, 2)).shape == (3, 2)


def test_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"[age]": range(12), "=bp": [1.5, 2.0, 7.0] * 4, "y": ["n", "y"] * 6, "site": ["a", "[b]"] * 6}
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = fedprior.data.load("csv", path=tmp_path / "t.csv", target="y", client="site")
    assert csv(tmp_path / "t.csv", "y", "site").schema is not None
    fedprior.run(FedAvg(), data, model="softmax", rounds=1, out=tmp_path / "run", workers=1)
    index = json.loads((tmp_path / "run" / "models" / "index.json").read_text(encoding="utf-8"))
    model = fedprior.load_model(tmp_path / "run" / "models" / index["[b]"])
    turned = frame[["site", "=bp", "y", "[age]"]]
    assert (model.predict(frame) == model.predict(turned)).all()
    assert (model.predict(frame) == model.predict(frame[["[age]", "=bp"]].to_numpy(), raw=True)).all()
    with pytest.raises(FedpriorError, match=r"the table lacks '=bp'"):
        model.predict(frame[["[age]"]])


def test_an_older_folder_without_an_index_is_read(tmp_path: Path) -> None:
    clients = [name for name in NAMES if 0 < len(file_name(name)) < 200 and name not in ("con", "SITE")]
    data = from_arrays({c: (np.eye(4), np.arange(4) % 2) for c in clients}, classes=2)
    out = tmp_path / "run"
    result = fedprior.run(FedAvg(), data, model="softmax", rounds=1, out=out, workers=1)
    models = out / "models"
    for client, file in json.loads((models / "index.json").read_text(encoding="utf-8")).items():
        (models / file).rename(models / f"{file_name(client)}.safetensors")
    (models / "index.json").unlink()
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    del summary["files"]  # nor had older runs checksums
    (out / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    again = fedprior.run(FedAvg(), data, model="softmax", rounds=1, out=out, workers=1)
    assert all((again.arrays(c)[k] == v).all() for c in clients for k, v in result.arrays(c).items())


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"a": 3, "b": "../x"}', '{"a": "/etc/passwd", "b": "x"}', "\x80"])
def test_a_damaged_index_is_told(content: str, data: Federation, tmp_path: Path) -> None:
    def go() -> None:
        fedprior.run(FedAvg(), data, model="softmax", rounds=1, out=tmp_path / "run", workers=1)

    go()
    (tmp_path / "run" / "models" / "index.json").write_text(content, encoding="latin-1")
    with pytest.raises(FedpriorError, match=r"index\.json' is damaged"):
        go()


def test_models_that_changed_places_are_told(data: Federation, tmp_path: Path) -> None:
    def go() -> None:
        fedprior.run(FedAvg(), data, model="softmax", rounds=1, out=tmp_path / "run", workers=1)

    go()
    models = tmp_path / "run" / "models"
    (models / "b.safetensors").write_bytes((models / "a.safetensors").read_bytes())
    with pytest.raises(FedpriorError, match=r"b\.safetensors' is missing or damaged"):
        go()
