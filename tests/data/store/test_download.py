"""Downloads: whole, resumed, started anew, refused; against a server that breaks off, forgets and changes its mind."""

from __future__ import annotations

import errno
import hashlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from data.store.miniature import Server
from fedprior.data.store import download as module
from fedprior.data.store.download import SourceError, download
from fedprior.data.store.record import Remote

CONTENT = bytes(range(256)) * 400
FILE = Remote("a.bin", hashlib.sha256(CONTENT).hexdigest())
CUT = 30_000


def quiet(done: int, total: int | None, label: str) -> None:
    pass


def get(server: Server, folder: Path, file: Remote = FILE) -> bytes:
    folder.mkdir(exist_ok=True)
    return download(server.base + file.name, file, folder, quiet).read_bytes()


def failure(server: Server, folder: Path, file: Remote = FILE) -> str:
    with pytest.raises(SourceError) as error:
        get(server, folder, file)
    return str(error.value)


def interrupted(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends after CUT bytes."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "TRIES", 1)
        server.cut.append(CUT)
        assert f"after {CUT} of {len(CONTENT)} bytes" in failure(server, folder)
    assert (folder / "a.bin.part").read_bytes() == CONTENT[:CUT]


def test_whole(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None, str]] = []
    with Server({"a.bin": CONTENT}) as server:
        path = download(server.base + "a.bin", FILE, tmp_path, lambda *step: seen.append(step))
        assert path.read_bytes() == CONTENT
        assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]
        assert seen[-1] == (len(CONTENT), len(CONTENT), "a.bin")
        assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
        assert get(server, tmp_path) == CONTENT
        assert len(server.asked) == 1  # the second time it was there


def test_goes_on_after_a_broken_connection_within_one_run(tmp_path: Path) -> None:
    with Server({"a.bin": CONTENT}, cut=[CUT]) as server:
        assert get(server, tmp_path) == CONTENT
        assert server.ranges_asked("a.bin") == [None, f"bytes={CUT}-"]


def test_gives_up_when_nothing_comes(tmp_path: Path) -> None:
    with Server({"a.bin": CONTENT}, cut=[0, 0, 0, 0]) as server:
        assert "after 0 of" in failure(server, tmp_path)
        assert len(server.asked) == 1


def test_gives_up_after_some_tries(tmp_path: Path) -> None:
    with Server({"a.bin": CONTENT}, cut=[CUT, 10, 10, 10]) as server:
        assert f"after {CUT + 20} of" in failure(server, tmp_path)
        assert len(server.asked) == module.TRIES
        assert get(server, tmp_path) == CONTENT


def test_the_next_run_asks_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server({"a.bin": CONTENT}) as server:
        interrupted(server, tmp_path, monkeypatch)
        assert get(server, tmp_path) == CONTENT
        assert server.ranges_asked("a.bin") == [None, f"bytes={CUT}-"]


def test_the_date_serves_when_there_is_no_strong_etag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server({"a.bin": CONTENT}, tag='W/"weak"', date="Wed, 21 Oct 2015 07:28:00 GMT") as server:
        interrupted(server, tmp_path, monkeypatch)
        notes = json.loads((tmp_path / "a.bin.part.json").read_text())
        assert notes["tag"] == "Wed, 21 Oct 2015 07:28:00 GMT"
        assert get(server, tmp_path) == CONTENT
        assert server.ranges_asked("a.bin") == [None, f"bytes={CUT}-"]


def test_starts_anew_without_anything_to_tell_versions_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server({"a.bin": CONTENT}, tag="") as server:
        interrupted(server, tmp_path, monkeypatch)
        assert get(server, tmp_path) == CONTENT
        assert server.ranges_asked("a.bin") == [None, None]


def test_starts_anew_when_the_server_knows_no_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server({"a.bin": CONTENT}, ranges=False) as server:
        interrupted(server, tmp_path, monkeypatch)
        assert get(server, tmp_path) == CONTENT


@pytest.mark.parametrize("if_range", [True, False])
def test_starts_anew_when_the_file_has_changed(if_range: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = CONTENT[::-1]
    with Server({"a.bin": CONTENT}, if_range=if_range) as server:
        interrupted(server, tmp_path, monkeypatch)
        server.files["a.bin"] = changed
        assert get(server, tmp_path, Remote("a.bin", hashlib.sha256(changed).hexdigest())) == changed
        assert len(server.asked) == (2 if if_range else 3)


def test_starts_anew_when_the_size_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = CONTENT[::-1] + b"more"
    with Server({"a.bin": CONTENT}, tag='"same"') as server:
        interrupted(server, tmp_path, monkeypatch)
        server.files["a.bin"] = changed
        assert get(server, tmp_path, Remote("a.bin", hashlib.sha256(changed).hexdigest())) == changed


def test_starts_anew_when_the_part_is_of_another_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server({"a.bin": CONTENT}) as one, Server({"a.bin": CONTENT}) as other:
        interrupted(one, tmp_path, monkeypatch)
        assert get(other, tmp_path) == CONTENT
        assert other.ranges_asked("a.bin") == [None]


def test_a_part_that_is_complete_needs_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server({"a.bin": CONTENT}) as server:
        interrupted(server, tmp_path, monkeypatch)
        (tmp_path / "a.bin.part").write_bytes(CONTENT)
        assert get(server, tmp_path) == CONTENT
        assert len(server.asked) == 1


def test_a_part_that_is_too_long_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers 416: there is nothing after the part's end."""
    with Server({"a.bin": CONTENT}) as server:
        interrupted(server, tmp_path, monkeypatch)
        (tmp_path / "a.bin.part").write_bytes(CONTENT + b"?")
        assert get(server, tmp_path) == CONTENT
        assert server.ranges_asked("a.bin") == [None, f"bytes={len(CONTENT) + 1}-", None]


def test_damaged_notes_start_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server({"a.bin": CONTENT}) as server:
        interrupted(server, tmp_path, monkeypatch)
        (tmp_path / "a.bin.part.json").write_text("{")
        assert get(server, tmp_path) == CONTENT


def test_wrong_checksum_deletes_the_part(tmp_path: Path) -> None:
    with Server({"a.bin": CONTENT[:-1] + b"?"}) as server:
        assert "wrong checksum" in failure(server, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_finished_file_that_is_wrong_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"something else")
    with Server({"a.bin": CONTENT}) as server:
        assert get(server, tmp_path) == CONTENT


def test_without_a_published_checksum(tmp_path: Path) -> None:
    """The file is taken as it comes, and an old one is not trusted; the decoded examples are checked later."""
    with Server({"a.bin": CONTENT}) as server:
        assert get(server, tmp_path, Remote("a.bin")) == CONTENT
        (tmp_path / "a.bin").write_bytes(b"something else")
        assert get(server, tmp_path, Remote("a.bin")) == CONTENT


def test_a_download_of_unknown_size_has_an_end(tmp_path: Path) -> None:
    """By what the server announces, and by what it sends."""
    file = Remote("a.bin", most=len(CONTENT) - 1)
    with Server({"a.bin": CONTENT}) as server:
        assert "more than the" in failure(server, tmp_path, file)
        assert get(server, tmp_path / "whole", Remote("a.bin", most=len(CONTENT))) == CONTENT
    assert not (tmp_path / "a.bin").exists()


def test_wrong_size_is_noticed_before_the_download(tmp_path: Path) -> None:
    with Server({"a.bin": b"<html>sign in first</html>"}) as server:
        assert "has 26 bytes there, not 102400" in failure(
            server, tmp_path, Remote("a.bin", FILE.checksum, len(CONTENT))
        )
    assert not list(tmp_path.iterdir())


def test_missing_file(tmp_path: Path) -> None:
    with Server({}) as server:
        assert failure(server, tmp_path) == "the server says 404 Not Found"


def test_nobody_listens(tmp_path: Path) -> None:
    with Server({}) as server:
        base = server.base
    with pytest.raises(SourceError, match="connection refused"):
        download(base + "a.bin", FILE, tmp_path, quiet)


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    with pytest.raises(SourceError, match="name cannot be resolved"):
        download("http://data.example/a.bin", FILE, tmp_path, quiet)


def test_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.1)
    with Server({"a.bin": CONTENT}, silent=True) as server:
        assert "no answer within" in failure(server, tmp_path)


def test_an_answer_that_stalls_is_kept_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    monkeypatch.setattr(module, "TRIES", 1)
    with Server({"a.bin": CONTENT}, pause=threading.Event()) as server:
        assert failure(server, tmp_path) == "a.bin: no answer within 0 s"
        assert (tmp_path / "a.bin.part").read_bytes() == CONTENT[: len(CONTENT) // 2]


def test_control_c_keeps_the_part(tmp_path: Path) -> None:
    def press(done: int, total: int | None, label: str) -> None:
        raise KeyboardInterrupt

    with Server({"a.bin": CONTENT}) as server:
        with pytest.raises(KeyboardInterrupt):
            download(server.base + "a.bin", FILE, tmp_path, press)
        kept = (tmp_path / "a.bin.part").stat().st_size
        assert 0 < kept <= len(CONTENT)
        assert get(server, tmp_path) == CONTENT
        assert server.ranges_asked("a.bin")[1:] in ([f"bytes={kept}-"], [])


def test_a_full_disk_is_not_the_sources_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def full(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if self.suffix == ".part" and mode == "ab":
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return opened(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    with Server({"a.bin": CONTENT}) as server, pytest.raises(OSError, match="No space left"):
        get(server, tmp_path)
