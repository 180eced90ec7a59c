"""What a site's folder says: its name, and where the server is."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple, Self

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
    version: str = __version__  # of fedprior, when the federation was set up

    @property
    def address(self) -> str:
        """Of the server."""
        return f"{self.host}:{self.port}"

    def write(self, folder: Path) -> None:
        """Write it down."""
        write_text(folder / FILE, tomli_w.dumps(self._asdict()))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what `write` wrote."""
        try:
            found = tomllib.loads((folder / FILE).read_text(encoding="utf-8"))
            return cls(
                str(found["site"]), str(found["host"]), int(found["port"]), str(found.get("version", __version__))
            )
        except FileNotFoundError:
            raise FedpriorError(f"'{folder}' is not a site's folder: it has no {FILE}.") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FedpriorError(f"'{folder / FILE}' cannot be read ({error}): ask for it again.") from None
