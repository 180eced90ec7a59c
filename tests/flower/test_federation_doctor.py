"""What the doctor finds at a server and at a site, one fault at a time, without Flower."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("cryptography", reason="needs fedprior[flower]")

from fedprior import __version__
from fedprior.cli.main import app
from fedprior.errors import FedpriorError
from fedprior.flower import certificates, doctor
from fedprior.flower.doctor import FLOWER, Check, examine
from fedprior.flower.layout import init
from fedprior.flower.link import launch_link
from fedprior.flower.place import Place
from fedprior.flower.processes import free_port
from fedprior.flower.settings import SiteSettings
from fedprior.methods import build
from flower.test_agreement import SITES, schema, tables
from flower.test_small_counts import few_ill

VERSIONS = {"torch": "2.13.0", "flwr": "1.41.0"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(doctor, "version", VERSIONS.__getitem__)
    sections = {"method": {"name": "fedmap"}, "rounds": 1, "data": {"name": "sites"}}
    return init(tmp_path / "study", SITES, schema(tables(tmp_path)), sections, port=free_port())


def at_server(place: Place) -> dict[str, Check]:
    return {check.what.split()[0]: check for check in examine(place.folder, None, place.folder)}


def at_site(place: Place, table: Path | None = None, port: int | None = None) -> dict[str, Check]:
    found = examine(place.site("bonn"), table, place.folder, free_port() if port is None else port)
    return {check.what.split()[0]: check for check in found}


@contextmanager
def listening(place: Place, ahead: float = 0.0) -> Iterator[None]:
    """A server with the federation's certificate that tells the time, wrongly by `ahead` seconds."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place.server / "server.crt", place.server / "server.key")
    with socket.create_server(("127.0.0.1", place.port)) as plain, context.wrap_socket(plain, server_side=True) as own:

        def answer() -> None:
            with suppress(ssl.SSLError), own.accept()[0] as asked:  # a site that does not trust us ends the handshake
                asked.recv(4096)
                date = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), usegmt=True)
                asked.sendall(f"HTTP/1.1 403 Forbidden\r\nDate: {date}\r\n\r\n".encode())

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()


def test_a_new_folder_is_fine(place: Place) -> None:
    assert all(check.fine for check in at_server(place).values())
    with listening(place):
        found = at_site(place, place.folder.parent / "bonn.csv")
    assert all(check.fine for check in found.values()), found
    assert found.keys() == {"versions", "certificate", "private", "port", "disk", "table", "server", "clock"}


@pytest.mark.parametrize(("ahead", "fine"), [(3.0, True), (-3.0, True), (8.0, False), (-8.0, False)])
def test_clocks_must_agree(ahead: float, fine: bool, place: Place) -> None:
    """Flower refuses a node whose clock is 5 s ahead; the doctor is as strict on both sides."""
    with listening(place, ahead):
        assert at_site(place)["clock"].fine is fine


def test_versions_must_be_known_and_the_same(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert at_site(place)["versions"].fine
    own = SiteSettings.read(place.site("bonn"))
    assert own.version == __version__
    own._replace(version="0.0.1").write(place.site("bonn"))
    assert "was set up with fedprior 0.0.1" in at_site(place)["versions"].told
    monkeypatch.setattr(doctor, "version", {**VERSIONS, "flwr": "1.43.1"}.__getitem__)
    assert "tested is Flower 1.41 and 1.42" in at_server(place)["versions"].told

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", absent)
    assert "install fedprior[flower]" in at_server(place)["versions"].told


def test_the_versions_are_those_that_the_extra_allows() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    last = int(FLOWER[-1].split(".")[1])
    assert f'"flwr>={FLOWER[0]},<1.{last + 1}"' in text


def test_certificates_must_be_of_now_and_of_the_host(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(place, host="elsewhere.example").write()
    assert "it is for localhost, 127.0.0.1, not for elsewhere.example" in at_server(place)["certificate"].told
    place.write()
    monkeypatch.setattr(certificates, "DAYS", -1)
    monkeypatch.setattr(certificates, "BEFORE", timedelta(days=3))
    certificates.make_authority(place.server, [place.host])
    assert "which is not now" in at_server(place)["certificate"].told
    with pytest.raises(FedpriorError, match="which is not now: check this machine's clock"):
        launch_link(place)
    shutil.copy(place.server / "ca.crt", place.site("bonn"))
    command = ["federation", "site", str(place.site("bonn")), "--table", str(place.folder.parent / "bonn.csv")]
    told = CliRunner().invoke(app, command)
    assert "which is not now" in str(told.exception)
    (place.server / "server.crt").write_text("nothing")
    assert not at_server(place)["certificate"].fine


def test_another_authority_is_not_trusted(place: Place) -> None:
    certificates.make_authority(place.server, [place.host])
    with listening(place):
        told = at_site(place)["server"]
    assert not told.fine
    assert "certificate verify failed" in told.told


def test_keys_ports_and_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.server / "keys" / "bonn.pub").unlink()
    (place.server / "server.key").chmod(0o644)
    (place.site("bonn") / "site.key").unlink()
    monkeypatch.setattr(doctor, "server_bytes", lambda *plan: 1 << 60)
    with socket.create_server(("127.0.0.1", place.port)):
        found = at_server(place)
    assert "no public key of bonn" in found["keys"].told
    assert "chmod 600" in found["private"].told
    assert "in use by another program" in found["port"].told
    assert not found["disk"].fine
    assert "the planned experiment needs about 1152921504.6 GB" in found["disk"].told
    assert "is missing" in at_site(place)["private"].told
    assert "does not answer over TLS" in at_site(place)["server"].told
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "choose another with --port" in at_site(place, port=port)["port"].told
        command = ["federation", "site", str(place.site("bonn")), "--port", str(port)]
        told = CliRunner().invoke(app, [*command, "--table", str(place.folder.parent / "bonn.csv")])
        assert "is in use by another program: choose another with --port" in str(told.exception)


def test_a_table_is_compared_with_the_schema(place: Place) -> None:
    table = place.folder.parent / "bonn.csv"
    table.write_text(table.read_text().replace("smoker", "smokes"))
    told = at_site(place, table)["table"]
    assert not told.fine
    assert "there is no column 'smoker'" in told.told


def test_disk_is_that_of_the_plan(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the method, the model and the rounds in the folder: without a plan that can be read nothing is known."""
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(400_000_000))
    assert at_site(place)["disk"].fine
    assert "0.4 GB free" in at_site(place)["disk"].told
    own = SiteSettings.read(place.site("bonn"))
    large = {**own.run, "model": {"name": "mlp", "hidden": [2000, 2000]}, "rounds": 50, "eval_every": 1}
    own._replace(run=large).write(place.site("bonn"))
    assert not at_site(place)["disk"].fine
    assert "needs about 1.4 GB" in at_site(place)["disk"].told
    own._replace(run={**own.run, "method": {"name": "nonsense"}}).write(place.site("bonn"))
    assert "is not known" in at_site(place)["disk"].told


def test_a_class_of_few_rows_is_told_at_the_site(place: Place) -> None:
    """As a note, unless the site asks to decline; and not for a method that sends no means of classes."""
    table = place.folder.parent / "bonn.csv"
    few_ill(table)
    assert "small" not in at_site(place, table)
    own = SiteSettings.read(place.site("bonn"))
    own._replace(run={**own.run, "method": {"name": "pfedfda"}}).write(place.site("bonn"))
    found = at_site(place, table)["small"]
    assert (found.fine, found.mind) == (True, True)
    assert "your smallest class has 3 training rows" in found.told
    refused = {c.what: c for c in examine(place.site("bonn"), table, place.folder, free_port(), min_class_rows=4)}
    assert not refused["small classes"].fine
    enough = {c.what for c in examine(place.site("bonn"), table, place.folder, free_port(), min_class_rows=3)}
    assert "small classes" not in enough


@pytest.mark.parametrize(
    ("method", "extras", "sent"),
    [
        ("pfedfda", "flower", "mean features of each class"),
        ("fedavg+dp", "flower,privacy", "weights of the local model that are shared; number of training rows"),
        ("local", "flower", "nothing"),
    ],
)
def test_a_sites_page_says_what_is_planned_and_what_leaves(method: str, extras: str, sent: str, tmp_path: Path) -> None:
    sections = {"method": {"name": method}, "rounds": 7, "data": {"name": "sites"}}
    made = init(tmp_path / "study", SITES, schema(tables(tmp_path)), sections)
    page = " ".join((made.site("bonn") / "README.md").read_text().split())
    assert f'pip install "fedprior[{extras}]=={__version__}"' in page
    assert f"{build(method).about.title} with 7 rounds. Before the first round your node sends " in page
    assert "In each round it sends: " in page
    assert sent in page
    assert "--min-class-rows 5" in page


def test_a_sites_page_says_what_leaves_before_the_first_round(tmp_path: Path) -> None:
    """Shared scaling and a numeric target need sums; without them a site tells its numbers of rows alone."""
    sections = {"method": {"name": "fedavg"}, "rounds": 1, "data": {"name": "sites"}}
    shared = {**sections, "data": {"name": "sites", "scaling": "shared"}}
    pages = {}
    for name, number, plan in (("plain", False, sections), ("shared", True, shared)):
        (tmp_path / name).mkdir()
        made = init(tmp_path / f"study-{name}", SITES, schema(tables(tmp_path / name, number=number)), plan)
        pages[name] = " ".join((made.site("bonn") / "README.md").read_text().split())
    first = "Before the first round your node sends whether the table fits; numbers of rows"
    assert f"{first}. In each round" in pages["plain"]
    assert f"{first}; number and sum of the target's values; sum of squares of the target" in pages["shared"]
    assert "mean and spread of each input. In each round" in pages["shared"]
