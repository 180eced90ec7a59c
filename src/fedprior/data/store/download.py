"""Downloads that continue where they were interrupted.

A file grows as `<file>.part`, with `<file>.part.json` beside it: the address, and the ETag or date by which the server
tells its versions apart. If those are unchanged, the next run requests only the rest; if the server cannot do that, or
now has another version, the download starts again. A published checksum decides whether the file is kept.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from fedprior.data.store.layout import Progress
from fedprior.data.store.record import Remote
from fedprior.files import write_text

TIMEOUT = 10.0  # seconds to connect, and of silence
TRIES = 3
CHUNK = 1 << 20


class SourceError(Exception):
    """Why a source could not give its files; the next one is tried."""


class _BrokenOff(Exception):  # noqa: N818 - never seen outside
    """The connection ended before the file did; what came is kept."""


class Version(NamedTuple):
    """What distinguishes two versions of a file on a server."""

    tag: str  # a strong ETag, or the date of the last change
    total: int | None  # bytes


UNKNOWN = Version("", None)


@dataclass
class _Part:
    """A file on its way, and what the server said of it."""

    path: Path
    url: str

    @property
    def _notes(self) -> Path:
        return self.path.with_name(self.path.name + ".json")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> Version:
        """The version that the bytes here are of; its tag is "" if unknown, and then the bytes are useless."""
        try:
            notes = json.loads(self._notes.read_text(encoding="utf-8"))
            return Version(str(notes["tag"]), notes["total"]) if notes["url"] == self.url else UNKNOWN
        except (OSError, ValueError, KeyError, TypeError):
            return UNKNOWN

    def begin(self, version: Version) -> None:
        self.discard()
        write_text(self._notes, json.dumps({"url": self.url, **version._asdict()}))

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._notes.unlink(missing_ok=True)

    def finish(self, target: Path) -> None:
        self.path.replace(target)
        self._notes.unlink(missing_ok=True)


def download(url: str, file: Remote, folder: Path, progress: Progress) -> Path:
    """The file at an address, in `folder`, with the right checksum."""
    target = folder / file.name
    if target.is_file() and file.checksum and _is(file, target):
        return target
    part = _Part(folder / f"{file.name}.part", url)
    for attempt in range(TRIES):
        before = part.size()
        try:
            _transfer(part, file, progress)
            break
        except _BrokenOff as error:
            if part.size() <= before or attempt == TRIES - 1:
                raise SourceError(f"{file.name}: {error}") from None
    if file.checksum and not _is(file, part.path):
        part.discard()
        raise SourceError(f"{file.name} has the wrong checksum and was deleted")
    part.finish(target)
    return target


def _is(file: Remote, path: Path) -> bool:
    """Whether the file's SHA-256 is the published one."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == file.checksum


def _transfer(part: _Part, file: Remote, progress: Progress) -> None:
    """Ask for what is missing and append it."""
    version = part.version()
    start = part.size() if version.tag else 0
    if start and start == version.total:
        return  # complete, but the last run ended before recording it
    with _open(part, start, version.tag) as response:
        start = start if response.status == 206 else 0
        now = _version(response, start)
        if file.size and now.total and now.total != file.size:
            raise SourceError(f"{file.name} has {now.total} bytes there, not {file.size}")
        most = file.size or file.most
        if now.total and now.total > most:
            raise SourceError(f"{file.name} has {now.total} bytes there, more than the {most} that it may have")
        if not start:
            part.begin(now)
        if not start or (now.tag in ("", version.tag) and now.total == version.total):
            _copy(response, part.path, start, now.total, lambda done: progress(done, now.total, file.name), most)
            if part.size() > most:
                part.discard()
                raise SourceError(f"{file.name} has more than the {most} bytes that it may have and was deleted")
            return
    part.discard()  # the server has another version by now and does not know If-Range
    _transfer(part, file, progress)


def _open(part: _Part, start: int, tag: str) -> HTTPResponse:
    """The response: 206 with the bytes from `start`, or 200 with all of them."""
    request = Request(part.url, headers={"User-Agent": "fedprior"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", tag)
    try:
        response = cast(HTTPResponse, urlopen(request, timeout=TIMEOUT))
    except HTTPError as error:
        error.close()
        if error.code == 416 and start:  # there is nothing after `start`: the file has changed
            part.discard()
            return _open(part, 0, "")
        raise SourceError(f"the server says {error.code} {_why(error)}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise SourceError(_why(error)) from None
    if response.status == 206 and not (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-"):
        response.close()
        part.discard()
        raise SourceError("the server sent a different range from the one requested")
    return response


def _version(response: HTTPResponse, start: int) -> Version:
    """A weak ETag (`W/...`) does not vouch for the bytes."""
    tag, length = response.headers.get("ETag") or "", response.headers.get("Content-Length")
    tag = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified") or ""
    return Version(tag, start + int(length) if length and length.isdecimal() else None)


def _copy(
    response: HTTPResponse, path: Path, start: int, total: int | None, tell: Callable[[int], None], most: int
) -> None:
    """Append what comes, up to the first piece beyond `most`: a server need not say how much it will send."""
    done = start
    with path.open("ab") as out:  # errors of the disk pass through; those of the network are _BrokenOff
        while chunk := _read(response):
            out.write(chunk)
            done += len(chunk)
            tell(done)
            if done > most:
                return
    if total is not None and done < total:
        raise _BrokenOff(f"the connection ended after {done} of {total} bytes")


def _read(response: HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK)
    except (OSError, HTTPException) as error:
        raise _BrokenOff(_why(error)) from None


def _why(error: Any) -> str:
    """A network error as text."""
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, socket.gaierror):
        return "its name cannot be resolved: is there a network?"
    if isinstance(reason, TimeoutError):
        return f"no answer within {TIMEOUT:.0f} s"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror.lower()
    return " ".join(str(reason).split()) or type(reason).__name__
