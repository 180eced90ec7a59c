"""The live view: one page, for this machine alone, that follows a run's journals."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedprior
from fedprior.errors import FedpriorError
from fedprior.methods import build
from fedprior.report.watching import Watch
from support import TRAIN, federation


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("watching") / "run"
    fedprior.run(build("fedavg", train=TRAIN), federation(), rounds=4, eval_every=2, out=out)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """The same run after two of its four rounds."""
    for name in ("config.toml", "clients.csv", "logs.csv"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    lines = (finished / "events.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "events.jsonl").write_text("".join(line for line in lines if json.loads(line)["round"] <= 2))
    return tmp_path


@pytest.fixture
def server(run: Path) -> Iterator[Watch]:
    with Watch(run) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def ask(server: Watch, path: str = "/", host: str | None = None, method: str = "GET") -> tuple[int, str, str]:
    """Status, body and version."""
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    link.request(method, path, headers={} if host is None else {"Host": host})
    answer = link.getresponse()
    return answer.status, answer.read().decode(), answer.getheader("ETag") or ""


def test_the_page_says_how_far_the_run_is(server: Watch) -> None:
    status, text, _ = ask(server)
    assert status == 200
    assert "Still running. FedAvg: round 2 of 4" in text
    assert "connect-src 'self'" in text
    assert "data-watched" in text


def test_the_part_changes_with_the_journals_alone(server: Watch, finished: Path, run: Path) -> None:
    status, text, version = ask(server, "/main")
    assert status == 200
    assert text.startswith("<main>")
    assert ask(server, f"/main?version={version}") == (204, "", "")
    (run / "events.jsonl").write_bytes((finished / "events.jsonl").read_bytes())
    status, text, newer = ask(server, f"/main?version={version}")
    assert (status, newer != version) == (200, True)
    assert "round 4 of 4" in text
    (run / "summary.json").write_bytes((finished / "summary.json").read_bytes())
    assert "Finished." in ask(server, f"/main?version={newer}")[1]


@pytest.mark.parametrize("path", ["/config.toml", "/..", "//etc/passwd", "/main/", "/%2e%2e/", "/favicon.ico"])
def test_nothing_else_is_served(server: Watch, path: str) -> None:
    assert ask(server, path)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1"])
def test_other_names_of_this_machine_are_refused(server: Watch, host: str) -> None:
    """A page elsewhere could else read this one, by a name of its own that leads here."""
    status, text, _ = ask(server, "/main", host)
    assert status == 403
    assert "<" not in text


def test_localhost_is_this_machine(server: Watch) -> None:
    assert ask(server, "/main", f"localhost:{server.server_port}")[0] == 200
    assert server.server_address[0] == "127.0.0.1"


def test_only_reading(server: Watch) -> None:
    assert ask(server, "/", method="POST")[0] == 501


def test_a_damaged_journal_is_said_and_waited_for(server: Watch, run: Path) -> None:
    (run / "clients.csv").write_bytes(b"\xff\n")
    status, text, _ = ask(server, "/main")
    assert status == 503
    assert "is damaged" in text


def test_what_cannot_be_watched(tmp_path: Path, server: Watch) -> None:
    with pytest.raises(FedpriorError, match="holds no run"):
        Watch(tmp_path / "nowhere")
    with pytest.raises(FedpriorError, match=r"port \d+ cannot be used: choose another with --port"):
        Watch(server.folder, server.server_port)


def test_what_no_browser_asks(server: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    """An address that is none is not found; whoever does not wait for the answer is no error on the terminal."""
    host = f"Host: 127.0.0.1:{server.server_port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as link:
        link.sendall(b"GET http://[ HTTP/1.1\r\n" + host)
        assert b" 404 " in link.recv(100)
    try:
        raise BrokenPipeError
    except BrokenPipeError:
        server.handle_error(None, None)
    assert capsys.readouterr().err == ""
