"""Files in folders and archives: found by content, read one at a time, refused in one sentence when broken."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data.store.miniature import tar, write, zipped
from fedprior.data.store import members as module
from fedprior.data.store.members import digest, members
from fedprior.errors import FedpriorError


def contents(*paths: Path) -> dict[str, bytes]:
    return {member.path: member.read() for member in members(paths)}


def refusal(*paths: Path) -> str:
    with pytest.raises(FedpriorError) as error:
        contents(*paths)
    assert "\n" not in str(error.value)
    return str(error.value)


FILES = {"a": b"first", "sub/b": b"second" * 2000}


def test_a_digest_is_of_the_content(tmp_path: Path) -> None:
    """Not of the container or of its outermost folder; a byte, a name or a file more is another digest."""

    def packed(name: str, files: dict[str, bytes], pack: Callable[[dict[str, bytes]], bytes] = zipped) -> str:
        return digest(write(tmp_path / name, {"archive": pack({f"{name}/{k}": v for k, v in files.items()})}))

    one = packed("one", FILES)
    assert packed("two", FILES, tar) == one
    others = [FILES | {"a": b"First"}, {"A": FILES["a"], "sub/b": FILES["sub/b"]}, FILES | {"c": b""}]
    assert one not in {packed(f"other{k}", files) for k, files in enumerate(others)}


@pytest.mark.parametrize("wrap", [lambda b: b, gzip.compress, bz2.compress, lzma.compress])
def test_compression_is_told_by_content(wrap: object, tmp_path: Path) -> None:
    (path,) = write(tmp_path, {"anything.txt": wrap(b"content")})  # type: ignore[operator]
    assert contents(path) == {"anything.txt": b"content"}


@pytest.mark.parametrize("pack", [tar, lambda files: tar(files, "w"), lambda files: tar(files, "w:xz"), zipped])
def test_archives(pack: object, tmp_path: Path) -> None:
    (path,) = write(tmp_path, {"x": pack(FILES)})  # type: ignore[operator]
    assert contents(path) == FILES


def test_archives_in_archives(tmp_path: Path) -> None:
    (path,) = write(tmp_path, {"x": zipped({"inner": tar({"c": gzip.compress(b"deep")})})})
    assert contents(path) == {"c": b"deep"}


def test_folders_in_order(tmp_path: Path) -> None:
    write(tmp_path / "f" / "sub", {"b": b"2"})
    write(tmp_path / "f", {"a": b"1", "z": b"3"})
    assert list(contents(tmp_path / "f")) == ["f/a", "f/sub/b", "f/z"], "with the folders that they are in"


def test_npz_is_one_member(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(3))
    assert list(contents(tmp_path / "x.npz")) == ["x.npz"]


def test_members_need_not_be_read(tmp_path: Path) -> None:
    (path,) = write(tmp_path, {"x": tar(FILES)})
    assert [member.name for member in members([path])] == ["a", "b"]


def test_nothing_is_extracted(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "in", {"x": tar({"../../escaped": b"!"})})
    assert contents(path) == {"../../escaped": b"!"}
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_missing(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "none")


def test_a_file_given_twice(tmp_path: Path) -> None:
    """By two names, or by itself and in its folder."""
    (tmp_path / "a").write_bytes(b"first")
    (tmp_path / "b").write_bytes(b"first")
    assert set(contents(tmp_path / "a", tmp_path / "b")) == {"a", "b"}, "the same content is another matter"
    for again in (tmp_path / "a", tmp_path / ".." / tmp_path.name / "a", tmp_path):
        assert "is given twice" in refusal(tmp_path / "a", again)


WHOLE = {"gzip": gzip.compress(bytes(9999)), "tar": tar(FILES), "zip": zipped(FILES), "xz": lzma.compress(b"12345")}


@pytest.mark.parametrize("kind", WHOLE)
def test_cut_short(kind: str, tmp_path: Path) -> None:
    content = WHOLE[kind]
    (path,) = write(tmp_path, {"x": content[: len(content) // 2]})
    assert "damaged, truncated or encrypted" in refusal(path)


def test_wrong_checksum_of_gzip(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(b"content"))
    content[-6] ^= 1
    (path,) = write(tmp_path, {"x": bytes(content)})
    assert "cannot be read: CRC check failed" in refusal(path)


def test_bombs_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 1000)
    (path,) = write(tmp_path, {"x": gzip.compress(bytes(10_000))})
    assert "larger than" in refusal(path)


def test_a_copy_is_whole_and_not_endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"0123456789" * 1000
    (path,) = write(tmp_path, {"x": lzma.compress(content, lzma.FORMAT_ALONE)})
    for member in members([path]):
        target = io.BytesIO()
        member.copy(target)
        assert target.getvalue() == content
        monkeypatch.setattr(module, "LIMIT", 2000)
        with pytest.raises(FedpriorError, match=r"'x' has more than .* is not read: give less\.$"):
            member.copy(io.BytesIO())
