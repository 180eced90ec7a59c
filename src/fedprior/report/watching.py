"""A run's page on this machine alone, made anew whenever the run's journals have grown."""

from __future__ import annotations

import sys
import threading
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedprior.errors import FedpriorError
from fedprior.experiment.folder import COMPLETE
from fedprior.experiment.seal import JOURNALS
from fedprior.report.page.folder import from_files, run_folders
from fedprior.report.page.writing import main, page

HERE = "127.0.0.1"


class Watch(ThreadingHTTPServer):
    """Serves one page, `/`, and its changing part, `/main`; port 0 is any that is free."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.made: tuple[str, str] = ("", "")  # version, and the part of that version
        run_folders(folder)  # refuses what holds no run
        try:
            super().__init__((HERE, port), partial(_Answer))
        except (OSError, OverflowError):
            told = f"port {port} cannot be used: choose another with --port, or leave it out for any that is free."
            raise FedpriorError(told) from None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HERE}:{self.server_port}/"

    def version(self) -> str:
        """Changes whenever a journal has."""
        found = []
        for place in run_folders(self.folder).values():
            for name in (*JOURNALS, COMPLETE):
                path = place / name
                found.append(f"{path.stat().st_size}.{path.stat().st_mtime_ns}" if path.exists() else "-")
        return '"' + "_".join(found) + '"'

    def part(self) -> tuple[str, str]:
        """The version, and the part of the page that changes; made once per version."""
        with self.lock:
            version = self.version()
            if self.made[0] != version:
                self.made = (version, main(from_files(self.folder)))
            return self.made

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that does not wait for its answer is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def whole(self) -> str:
        """The page."""
        return page(from_files(self.folder), watched=True)


class _Answer(BaseHTTPRequestHandler):
    server: Watch

    def do_GET(self) -> None:
        """The page, its part, or nothing."""
        try:
            asked = urlsplit(self.path)
        except ValueError:  # `http://[`
            asked = urlsplit("/none")
        if not self._is_meant():
            self._say(HTTPStatus.FORBIDDEN, "this page is served to this machine only")
        elif asked.path not in ("/", "/main"):
            self._say(HTTPStatus.NOT_FOUND, "there is only one page: /")
        else:
            try:
                self._page() if asked.path == "/" else self._part(parse_qs(asked.query).get("version", [""])[0])
            except (FedpriorError, OSError) as error:  # a journal that is just being written
                self._say(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _is_meant(self) -> bool:
        """Whether the browser asks for this machine by name: another site's name may lead here too."""
        port = self.server.server_port
        return self.headers.get("Host") in {f"{name}:{port}" for name in (HERE, "localhost")}

    def _page(self) -> None:
        self._send(HTTPStatus.OK, self.server.whole())

    def _part(self, known: str) -> None:
        version, part = self.server.part()
        if version == known:
            self._send(HTTPStatus.NO_CONTENT, "")
        else:
            self._send(HTTPStatus.OK, part, {"ETag": version})

    def _say(self, status: HTTPStatus, told: str) -> None:
        self._send(status, told + "\n", kind="text/plain")

    def _send(
        self, status: HTTPStatus, text: str, headers: dict[str, str] | None = None, kind: str = "text/html"
    ) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        """Not which Python this is."""
        return "fedprior"

    def log_message(self, *told: Any) -> None:
        """Nothing: the page asks once a second."""
