"""Everything that can be known to be wrong before a federation starts, at the server or at a site."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from fedprior import __version__
from fedprior.data.schema import Schema
from fedprior.data.site_table import Reading, SiteTable
from fedprior.errors import FedpriorError
from fedprior.flower.agreement import configured
from fedprior.flower.certificates import check_dates, validity
from fedprior.flower.link import runs
from fedprior.flower.place import FILE, SCHEMA, Place
from fedprior.flower.processes import PORT, mark, marked, reachable
from fedprior.flower.settings import FILE as SITE
from fedprior.flower.settings import SiteSettings
from fedprior.flower.small_counts import FEW, small_classes
from fedprior.flower.space import server_bytes, site_bytes

CLOCK = 5.0
"""Seconds that a site's clock may be ahead of the server's: Flower refuses more."""
SOON = timedelta(days=30)
FLOWER = ("1.41", "1.42")
"""Versions of Flower that the extra `flower` allows."""


class Check(NamedTuple):
    """One thing that was looked at."""

    what: str
    fine: bool
    told: str
    mind: bool = False  # fine, and yet somebody should read it


def examine(folder: Path, table: Path | None, state: Path, port: int = PORT, min_class_rows: int = 0) -> list[Check]:
    """All checks of a server's or a site's folder; `port` is the one that a site's node uses on its own machine."""
    if (folder / FILE).is_file():
        return _server(Place.read(folder))
    if (folder / SITE).is_file():
        return _site(folder, table, state, port, min_class_rows)
    raise FedpriorError(f"'{folder}' is neither a server's folder ({FILE}) nor a site's ({SITE}).")


def _server(place: Place) -> list[Check]:
    server = place.server
    keys = [site for site in place.sites if not (server / "keys" / f"{site}.pub").is_file()]
    return [
        _versions(),
        _certificate(server / "server.crt", place.host),
        _private(server / "server.key"),
        Check(
            "keys", not keys, f"no public key of {', '.join(keys)}" if keys else f"{len(place.sites)} sites have one"
        ),
        _attempt("schema", lambda: f"{len(place.plan.schema.inputs)} inputs, hash {place.plan.schema.hash[:12]}"),
        _port(place.local, runs(place), "our server", "stop it, or change listen in federation.toml"),
        _exposed(place),
        _disk(place.folder, lambda: server_bytes(place.sections, place.plan.schema, len(place.sites))),
    ]


def _site(folder: Path, table: Path | None, state: Path, port: int, min_class_rows: int) -> list[Check]:
    own = SiteSettings.read(folder)
    found = [
        _versions(own.version),
        _certificate(folder / "ca.crt", None),
        _private(folder / "site.key"),
        _port(("127.0.0.1", port), bool(marked([mark(folder)])), "this site's node", "choose another with --port"),
        _disk(state, lambda: site_bytes(own.run, Schema.read(folder / SCHEMA), own.sites)),
    ]
    if table is not None:
        found += _table(own, folder / SCHEMA, table, min_class_rows)
    return [*found, *_connection(own.host, own.port, folder / "ca.crt")]


def _attempt(what: str, look: Callable[[], str]) -> Check:
    try:
        return Check(what, True, look())
    except (FedpriorError, OSError) as error:
        return Check(what, False, str(error))


def _versions(wanted: str = __version__) -> Check:
    """Whether Flower is one that we know, and fedprior the one that the federation was set up with."""
    try:
        found = {name: version(name) for name in ("torch", "flwr")}
    except PackageNotFoundError:
        return Check("versions", False, f"fedprior {__version__} without Flower: install fedprior[flower]")
    told = f"fedprior {__version__}, torch {found['torch']}, flwr {found['flwr']}"
    if wanted != __version__:
        return Check("versions", False, f"{told}; the federation was set up with fedprior {wanted}: install that")
    if ".".join(found["flwr"].split(".")[:2]) not in FLOWER:
        return Check("versions", False, f"{told}; tested is Flower {' and '.join(FLOWER)}: install fedprior[flower]")
    return Check("versions", True, told)


def _certificate(path: Path, host: str | None) -> Check:
    try:
        check_dates(path)
        _, last, names = validity(path)
    except FedpriorError as error:
        return Check("certificate", False, str(error))
    if host is not None and host not in names:
        return Check("certificate", False, f"it is for {', '.join(names)}, not for {host}")
    soon = ", which is soon" if last - datetime.now(UTC) < SOON else ""
    return Check("certificate", True, f"valid until {last:%Y-%m-%d}{soon}")


def _private(path: Path) -> Check:
    if not path.is_file():
        return Check("private key", False, f"'{path}' is missing")
    open_to_others = path.stat().st_mode & 0o077
    told = "others on this machine can read it: chmod 600 it" if open_to_others else "only its owner can read it"
    return Check("private key", not open_to_others, told)


def _port(address: tuple[str, int], ours: bool, who: str, remedy: str) -> Check:
    taken = reachable(*address) and not ours
    told = f"in use by another program: {remedy}" if taken else f"{who} runs" if ours else "free"
    return Check(f"port {address[1]}", not taken, told)


def _exposed(place: Place) -> Check:
    """Flower's control interface is at the same port: nobody but a proxy should reach it from elsewhere."""
    host, _ = place.listening
    if ipaddress.ip_address(host).is_loopback:
        return Check("control interface", True, "only programs on this machine reach it")
    told = f"whoever reaches {place.listen} with ca.crt can run code at every site: let only a proxy reach it"
    return Check("control interface", True, told, mind=True)


def _disk(folder: Path, needs: Callable[[], int]) -> Check:
    """Whether there is room for what the planned method, model and rounds will write."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK):
        return Check("disk", False, f"'{there}' cannot be written to")
    try:
        needed = needs()
    except FedpriorError as error:
        return Check("disk", False, f"what the experiment needs is not known: {error}")
    free = shutil.disk_usage(there).free
    told = f"{free / 1e9:.1f} GB free at '{there}', and the planned experiment needs about {needed / 1e9:.1f} GB"
    return Check("disk", free > needed, told)


def _table(own: SiteSettings, schema: Path, table: Path, min_class_rows: int) -> list[Check]:
    """Whether the table fits, and whether the planned method would give away a class of few rows."""
    try:
        config = configured(own.run)
        found = SiteTable.read(own.site, table, Schema.read(schema), Reading.of(config.data), config.seed)
        if problems := found.problems:
            return [Check("table", False, "; ".join(problems))]
        fits = Check("table", True, f"it fits the schema: {', '.join(f'{n} {s}' for s, n in found.sizes().items())}")
        warning = small_classes(config.build_method(), found, min_class_rows or FEW)
    except FedpriorError as error:
        return [Check("table", False, str(error))]
    return [fits] if warning is None else [fits, Check("small classes", not min_class_rows, warning, mind=True)]


def _connection(host: str, port: int, authority: Path) -> list[Check]:
    """Whether the server answers with a certificate of the federation's authority, and what time it has."""
    began = time.time()
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with (
            socket.create_connection((host, port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            secured.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            answer = secured.recv(4096).decode("latin-1")
    except (OSError, ValueError) as error:
        return [Check("server", False, f"{host}:{port} does not answer over TLS: {error}")]
    found = [Check("server", True, f"{host}:{port} answers over TLS")]
    date = next((line[6:] for line in answer.split("\r\n") if line.lower().startswith("date: ")), None)
    if date is None:
        return found
    apart = (began + time.time()) / 2 - parsedate_to_datetime(date.strip()).timestamp() - 0.5  # it tells whole seconds
    return [*found, Check("clock", abs(apart) < CLOCK, f"{apart:+.1f} s from the server's")]
