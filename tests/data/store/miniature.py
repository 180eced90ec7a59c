"""Data sets of a few examples, files of every format made by hand, and a web server with moods."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import threading
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedprior.data.store import RECORDS, load
from fedprior.data.store.record import Record, Remote, Source, Url
from fedprior.errors import FedpriorError

IDX_NAMES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def mini(name: str, *sources: Source, **changes: Any) -> Record:
    """A record of the real name without the real sizes."""
    blank: dict[str, Any] = {
        "counts": {},
        "per_class": {},
        "groups": {},
        "checksums": {},
        "train_means": (),
        "otherwise": "",
    }
    return replace(RECORDS[name], **(blank | {"sources": sources} | changes))


def tiny_mnist(*sources: Source, **changes: Any) -> Record:
    """Digits of 4 × 5 pixels, 6 to train and 4 to test on."""
    return mini("mnist", *sources, **({"shape": (1, 4, 5), "counts": {"train": 6, "test": 4}} | changes))


def digits(seed: int = 0) -> dict[str, NDArray[np.uint8]]:
    """What `tiny_mnist` holds, without the axis of the channels."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (10, 4, 5), dtype=np.uint8)
    y = rng.integers(0, 10, 10, dtype=np.uint8)
    return {"x_train": x[:6], "y_train": y[:6], "x_test": x[6:], "y_test": y[6:]}


def idx(array: NDArray[np.uint8]) -> bytes:
    """An IDX file, by the book."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx_files(arrays: Mapping[str, NDArray[np.uint8]] | None = None) -> dict[str, bytes]:
    """MNIST's four files, compressed."""
    return {f"{IDX_NAMES[k]}.gz": gzip.compress(idx(v), mtime=0) for k, v in (arrays or digits()).items()}


def tar(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    """An archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Another archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def write(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Files in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


FILES = idx_files()
FIRST = next(iter(FILES))


def use(monkeypatch: pytest.MonkeyPatch, *sources: Source, **changes: Any) -> None:
    """Let `mnist` be the tiny one, from these sources."""
    monkeypatch.setitem(RECORDS, "mnist", tiny_mnist(*sources, **changes))


def refusal(function: Any, *args: Any, **options: Any) -> str:
    """The one sentence with which a call is refused."""
    with pytest.raises(FedpriorError) as error:
        function(*args, **options)
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


def whole() -> None:
    """What is stored as `mnist` is what was to be stored."""
    stored = load("mnist")
    for key, expected in digits().items():
        assert (stored[key].reshape(expected.shape) == expected).all()


def picture(pixels: NDArray[np.uint8], kind: str = "png", **options: Any) -> bytes:
    """An image file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


@dataclass
class Server:
    """Serves files from memory. How it behaves is set by its fields, and every request is noted."""

    files: dict[str, bytes]
    ranges: bool = True  # knows Range
    if_range: bool = True  # knows If-Range
    tag: str | None = None  # instead of an ETag made of the content; "" for none
    date: str = ""  # Last-Modified
    cut: list[int] = field(default_factory=list)  # bytes after which the next responses break off
    silent: bool = False  # accepts and does not answer
    pause: threading.Event | None = None  # half of each body, then it waits for this
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # file and Range of each request

    def __enter__(self) -> Self:
        server, outer = ThreadingHTTPServer(("127.0.0.1", 0), _Handler), self
        server.daemon_threads = True
        server.outer = outer  # type: ignore[attr-defined]
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.pause is not None:
            self.pause.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def source(self, *, wrong: str = "") -> Url:
        """All its files with their checksums; that of one may be made wrong."""
        sums = {name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()}
        return Url(self.base, tuple(Remote(name, "0" * 64 if name == wrong else sums[name]) for name in self.files))

    def ranges_asked(self, name: str) -> list[str | None]:
        return [span for file, span in self.asked if file == name]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # a connection a request: breaking off is closing it

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        outer: Server = self.server.outer  # type: ignore[attr-defined]
        name, span = self.path.lstrip("/"), self.headers.get("Range")
        outer.asked.append((name, span))
        if outer.silent:
            time.sleep(0.5)
            return
        if name not in outer.files:
            self.send_error(404, "Not Found")
            return
        content = outer.files[name]
        tag = f'"{hashlib.md5(content).hexdigest()}"' if outer.tag is None else outer.tag
        same = not outer.if_range or self.headers.get("If-Range") in (None, tag, outer.date)
        start = int(span.removeprefix("bytes=").rstrip("-")) if span and outer.ranges and same else 0
        if start >= len(content) > 0 and start:
            self.send_error(416, "Range Not Satisfiable")
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if tag:
            self.send_header("ETag", tag)
        if outer.date:
            self.send_header("Last-Modified", outer.date)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self._body(outer, content[start:])

    def _body(self, outer: Server, body: bytes) -> None:
        body = body[: outer.cut.pop(0)] if outer.cut else body
        half = len(body) // 2
        try:
            self.wfile.write(body[:half])
            self.wfile.flush()
            if outer.pause is not None:
                outer.pause.wait(60)
            self.wfile.write(body[half:])
        except OSError:
            pass  # the client has gone
