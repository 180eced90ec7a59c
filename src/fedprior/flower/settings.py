"""What a site's folder says: its name, where the server is, and what is planned."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import tomli_w

from fedprior import __version__
from fedprior.errors import FedpriorError
from fedprior.files import write_text

FILE = "site.toml"


class SiteSettings(NamedTuple):
    """A site's own file."""

    site: str
    host: str
    port: int
    sites: int  # how many there are
    run: Mapping[str, Any]  # method, model and rounds as planned; what is agreed on later counts
    version: str = __version__  # of fedprior, when the federation was set up

    @property
    def address(self) -> str:
        """Of the server."""
        return f"{self.host}:{self.port}"

    def write(self, folder: Path) -> None:
        """Write it down."""
        write_text(folder / FILE, tomli_w.dumps({**self._asdict(), "run": dict(self.run)}))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what `write` wrote."""
        try:
            found = tomllib.loads((folder / FILE).read_text(encoding="utf-8"))
            where = str(found["site"]), str(found["host"]), int(found["port"])
            return cls(*where, int(found["sites"]), dict(found["run"]), str(found.get("version", __version__)))
        except FileNotFoundError:
            raise FedpriorError(f"'{folder}' is not a site's folder: it has no {FILE}.") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FedpriorError(f"'{folder / FILE}' cannot be read ({error}): ask for it again.") from None
