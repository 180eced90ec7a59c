"""The server's folder of a federation: its plan, its schema, and where everything else lies."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import tomli_w

from fedprior.data.schema import Schema
from fedprior.errors import FedpriorError, shown
from fedprior.experiment.config import read
from fedprior.files import write_text
from fedprior.flower.agreement import configured
from fedprior.flower.serve import Plan

FILE, SCHEMA = "federation.toml", "schema.toml"
_LABEL = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
LOCAL, BEHIND = ("127.0.0.1", "localhost"), 18000
KEYS = ("experiment", "host", "port", "listen", "timeout", "patience", "sites", "run")


@dataclass(frozen=True)
class Place:
    """A folder that `federation init` made."""

    folder: Path
    experiment: str
    host: str
    port: int
    listen: str  # where the SuperLink listens on this machine, ADDRESS:PORT; a proxy may stand before it
    timeout: float  # seconds that a site has to answer
    patience: float  # seconds until every site must be online
    sites: tuple[str, ...]
    sections: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """From its file, checked."""
        path = folder / FILE
        if not path.is_file():
            raise FedpriorError(
                f"'{folder}' is not the server's folder of a federation: it has no {FILE}, "
                "which `fedprior federation init` makes."
            )
        found = read(path)
        for key in found:
            if key not in KEYS:
                raise FedpriorError(f"'{path}': there is no option '{key}': choose one of {', '.join(KEYS)}.")
        try:
            place = cls(
                folder.absolute(),
                str(found["experiment"]),
                str(found["host"]),
                int(found["port"]),
                str(found.get("listen") or default_listen(str(found["host"]), int(found["port"]))),
                float(found.get("timeout", 3600)),
                float(found.get("patience", 600)),
                tuple(map(str, found["sites"])),
                dict(found["run"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FedpriorError(f"'{path}' is not complete or not valid ({error}): correct it.") from None
        place.check()
        return place

    def check(self) -> None:
        """Refuse what cannot work."""
        check_names((*self.sites, self.experiment))
        if len(self.sites) < 2:
            raise FedpriorError("a federation needs at least two sites.")
        if not _is_host(self.host):
            raise FedpriorError(
                f"host = {shown(self.host)} is neither an IP address nor a name in letters, digits, '-' and '.'."
            )
        if not (0 < self.port < 65536 and 0 < self.timeout < math.inf and 0 <= self.patience < math.inf):
            raise FedpriorError(f"port = {self.port}, timeout = {self.timeout}, patience = {self.patience}: not valid.")
        try:
            ipaddress.ip_address(self.listening[0])
        except ValueError:
            raise FedpriorError(f"listen = {shown(self.listen)}: it must be like 127.0.0.1:8000.") from None
        configured(self.sections)

    def write(self) -> None:
        """Write its file."""
        document = {key: getattr(self, key) for key in KEYS if key not in ("sites", "run")}
        document |= {"sites": list(self.sites), "run": dict(self.sections)}
        write_text(self.folder / FILE, tomli_w.dumps(document))

    @cached_property
    def plan(self) -> Plan:
        """What is proposed to the sites."""
        return Plan(self.experiment, self.sites, Schema.read(self.folder / SCHEMA), self.sections)

    @property
    def address(self) -> str:
        """Where sites find the server."""
        return f"{self.host}:{self.port}"

    @property
    def listening(self) -> tuple[str, int]:
        """Address and port of the SuperLink."""
        host, _, port = self.listen.rpartition(":")
        return host, int(port)

    @property
    def proxied(self) -> bool:
        """Whether sites reach the SuperLink through a proxy."""
        return self.port != self.listening[1]

    @property
    def local(self) -> tuple[str, int]:
        """Where commands on this machine find the SuperLink."""
        host, port = self.listening
        return ("127.0.0.1" if host == "0.0.0.0" else host), port

    @property
    def run(self) -> Path:
        """The experiment's folder."""
        return self.folder / "runs" / self.experiment

    @property
    def status(self) -> Path:
        """How it is going."""
        return self.folder / "runs" / f"{self.experiment}.status.json"

    @property
    def server(self) -> Path:
        """Certificates, keys and database."""
        return self.folder / "server"

    def site(self, name: str) -> Path:
        """What a site is given."""
        return self.folder / "sites" / name


def default_listen(host: str, port: int) -> str:
    """On this machine alone: at the sites' own port if they are here too, otherwise behind a proxy at another."""
    return f"127.0.0.1:{port if host in LOCAL else BEHIND}"


def _is_host(host: str) -> bool:
    """Whether sites could reach a server by this: an IP address, or a DNS name of at most 253 characters (RFC 1123)."""
    with suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return len(host) <= 253 and all(_LABEL.fullmatch(label) for label in host.split("."))


def check_names(names: Sequence[str]) -> None:
    """Names of sites and experiments become file names, key names and node names: plain ones only."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise FedpriorError(
                f"{shown(name)} cannot name a site or an experiment: use up to 40 letters, digits, '-', '_' and '.'."
            )
    if len({name.casefold() for name in names}) < len(names):
        raise FedpriorError("two sites or the experiment have the same name: rename one.")
