"""Files: whole or not at all, and names that stay inside their folder."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprior.errors import FedpriorError
from fedprior.files import folder_lock, pack, read_tensors, write_bytes, write_text
from fedprior.names import file_name


def test_write_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.bin"
    write_bytes(path, b"old")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    write_text(path, "µ = ½")
    assert path.read_text(encoding="utf-8") == "µ = ½"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("there", [True, False])
def test_a_write_that_fails_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """The disk is full: the old content stays, and no temporary file does."""
    path = tmp_path / "file.bin"
    if there:
        path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_bytes(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == (["file.bin"] if there else [])
    assert not there or path.read_bytes() == b"old"


def test_the_target_is_never_open_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment the new bytes are forced to disk, a reader still sees the old ones."""
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    seen: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(path.read_bytes()))
    write_bytes(path, b"new")
    assert seen == [b"old"]
    assert path.read_bytes() == b"new"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """A second one is refused, in another process too; when the first is done, or fails, or is killed, the next may."""
    told = r"another process is at work in '.*': wait for it, or choose another folder\."
    with folder_lock(tmp_path), pytest.raises(FedpriorError, match=told), folder_lock(tmp_path):
        pass
    with pytest.raises(ZeroDivisionError), folder_lock(tmp_path):
        raise ZeroDivisionError
    hold = (
        "import sys, time; from pathlib import Path; from fedprior.files import folder_lock\n"
        "with folder_lock(Path(sys.argv[1])): print('in', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(FedpriorError, match="another process"), folder_lock(tmp_path):
            pass
        other.kill()
    with folder_lock(tmp_path):
        assert list(tmp_path.iterdir()) == [], "no traces"


def test_systems_without_locks_do_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*args: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with folder_lock(tmp_path / "a"), folder_lock(tmp_path / "a"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_lock_lies_beside_and_only_while_it_is_held(tmp_path: Path) -> None:
    """Beside the folder, or beside the one that people know; two runs in one table do not hinder each other."""
    with folder_lock(tmp_path / "run"):
        assert [p.name for p in tmp_path.iterdir()] == [".run.lock"]
    with folder_lock(tmp_path / "t" / "a" / "1", tmp_path / "t"), folder_lock(tmp_path / "t" / "b", tmp_path / "t"):
        assert sorted(p.name for p in tmp_path.iterdir()) == [".t.a.1.lock", ".t.b.lock"]
    assert list(tmp_path.iterdir()) == []


def test_pack_and_read_round_trip(tmp_path: Path) -> None:
    """Every kind of tensor that a state has: views, shared memory, scalars, empty ones, NumPy arrays."""
    shared = torch.arange(6.0).reshape(2, 3)
    tensors = {
        "w/base.0.weight": shared,
        "transposed": shared.t(),
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "slice": shared[1:],
        "double": torch.tensor([[1e-300]], dtype=torch.float64),
        "count": torch.tensor(3),
        "flag": torch.tensor([True, False]),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4),
    }
    path = tmp_path / "state.safetensors"
    write_bytes(path, pack({**tensors, "numpy": np.arange(3)}, {"method": "fedmap", "µ": "½"}))
    read, metadata = read_tensors(path)
    assert metadata == {"method": "fedmap", "µ": "½"}
    assert read.pop("numpy").tolist() == [0, 1, 2]
    assert set(read) == set(tensors)
    for k, leaf in tensors.items():
        assert read[k].dtype == leaf.dtype
        assert torch.equal(read[k], leaf)


def test_tensors_are_read_to_where_torch_would_put_them(tmp_path: Path) -> None:
    """Products of the same numbers differ in the last bit where these begin at another address."""
    parts = {f"{k}": torch.arange(1.0 + k, dtype=torch.float64) for k in range(9)}
    write_bytes(tmp_path / "f", pack(parts))
    assert [key for key, leaf in read_tensors(tmp_path / "f")[0].items() if leaf.data_ptr() % 64] == []


def test_pack_is_deterministic_and_leaves_its_input_alone() -> None:
    leaf = torch.arange(4.0)
    assert pack({"a": leaf, "b": leaf}) == pack({"a": leaf.clone(), "b": leaf.clone()})
    assert leaf.tolist() == [0, 1, 2, 3]


def test_no_metadata_reads_as_empty(tmp_path: Path) -> None:
    write_bytes(tmp_path / "f", pack({"a": torch.ones(1)}))
    assert read_tensors(tmp_path / "f")[1] == {}


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "garbage", "folder"])
def test_a_damaged_file_is_told_in_one_sentence(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "state.safetensors"
    whole = pack({"a": torch.arange(100.0)})
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes({"empty": b"", "cut": whole[:-40], "garbage": bytes(range(256)) * 2}[damage])
    with pytest.raises(FedpriorError, match=r"state\.safetensors' is missing or damaged") as error:
        read_tensors(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ("Site A-1_b.2", "Site A-1_b.2"),
        ("a/b", "a%2Fb"),
        ("../../etc/passwd", "..%2F..%2Fetc%2Fpasswd"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("a\\b:c*?\n", "a%5Cb%3Ac%2A%3F%0A"),
        ("50%", "50%25"),
        ("Köln", "K%C3%B6ln"),
    ],
)
def test_file_name_escapes(client: str, expected: str) -> None:
    assert file_name(client) == expected


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), unique=True, max_size=5))
def test_file_names_stay_in_their_folder_and_apart(clients: list[str]) -> None:
    written = [file_name(client) for client in clients]
    assert len(set(written)) == len(clients)
    for name in written:
        assert name.isascii()
        assert not set(name) & set('/\\:*?"<>|\0\n')
        assert Path("folder", name).parent == Path("folder")
        assert name not in ("", ".", "..")
