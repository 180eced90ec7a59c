"""What a real federation costs: a server and three sites on this machine, with TLS, registered keys and real processes.

    .venv-flower/bin/python benchmarks/federation.py [--rounds 5] [--parameters 10000000] [--out FILE]

1. Small: FedMAP on three tables of breast cancer. Seconds by the clock and CPU-seconds per round, bytes on the wire
   (counted by a relay between the sites and the server, so with TLS and Flower's frame) against the method's own count,
   and the time from the start to the verdict.
2. Large: FedAvg with so many parameters, two rounds. Peak resident memory of a process at the server and at a site.

CPU-seconds are those of all processes that the federation started, read from /proc every 50 ms: what a process uses in
its last moment is missed. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from fedprior.flower import link, trial
from fedprior.flower.layout import init
from fedprior.flower.place import Place
from fedprior.flower.processes import free_port

EVERY = 0.05


@dataclass
class Usage:
    """CPU-seconds and peak resident bytes of every process under this one, by what it is."""

    cpu: dict[int, float] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                used, kind = child.cpu_times(), _kind(child)
                self.cpu[child.pid] = used.user + used.system
                self.peak[kind] = max(self.peak.get(kind, 0), child.memory_info().rss)

    @property
    def seconds(self) -> float:
        return sum(self.cpu.values())


def _kind(process: psutil.Process) -> str:
    names = ("flwr-serverapp", "flwr-clientapp", "flower-superlink", "flower-supernode", "flower-superexec", "flwr ")
    words = " ".join(process.cmdline())
    return next((name.strip() for name in names if name in words), "other")


@contextlib.contextmanager
def watched() -> Iterator[Usage]:
    usage, over = Usage(), threading.Event()

    def watch() -> None:
        while not over.wait(EVERY):
            usage.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield usage
    finally:
        over.set()
        thread.join()


class Relay:
    """Passes bytes between sites and server as they are, and counts them."""

    def __init__(self, port: int, target: int) -> None:
        self.up = self.down = 0
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            site, _ = self.listener.accept()
            server = socket.create_connection(("127.0.0.1", self.target))
            for source, sink, name in ((site, server, "up"), (server, site, "down")):
                threading.Thread(target=self._pass, args=(source, sink, name), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                sink.sendall(content)
                setattr(self, name, getattr(self, name) + len(content))
            sink.shutdown(socket.SHUT_WR)


def made(folder: Path, sections: dict[str, Any]) -> tuple[Place, dict[str, Path]]:
    paths = trial.write_tables(folder / "tables")
    schema = trial.schema_of(paths, "target")
    given: dict[str, Any] = {"experiment": "small", "timeout": 600, "patience": 120, "port": free_port()}
    listen = f"127.0.0.1:{free_port()}"
    return init(folder / "federation", trial.SITES, schema, sections, listen=listen, **given), paths


def small(folder: Path, rounds: int) -> dict[str, Any]:
    sections = {"method": {"name": "fedmap"}, "rounds": rounds, "data": {"name": "sites"}}
    began = time.monotonic()
    place, paths = made(folder, sections)
    with trial.server(place), watched() as usage:
        relay = Relay(place.port, place.local[1])
        with trial.nodes(place, paths, folder / "sites"):
            link.submit(place)
            marks: dict[int, tuple[float, float, int, int]] = {}  # by the rounds done

            def mark(found: dict[str, Any]) -> None:
                marks.setdefault(found.get("round", 0), (time.monotonic(), usage.seconds, relay.up, relay.down))

            ended = link.follow(place, mark, poll=EVERY)
        assert ended["state"] == "finished", ended
    different, _ = trial.differences(place, paths, folder / "sites")
    verdict = time.monotonic() - began
    events = [json.loads(line) for line in (place.run / "events.jsonl").read_text().splitlines()]
    counted = [event for event in events if event["kind"] == "round"]
    each = [(last - first) / (rounds - 1) for first, last in zip(marks[1], marks[rounds], strict=True)]
    return {
        "rounds": rounds,
        "identical": not different,
        "seconds_per_round": each[0],
        "cpu_seconds_per_round": each[1],
        "wire_bytes_up_per_round": each[2],
        "wire_bytes_down_per_round": each[3],
        "method_bytes_up_per_round": counted[-1]["bytes_up"],
        "method_bytes_down_per_round": counted[-1]["bytes_down"],
        "seconds_to_the_verdict": verdict,
        "cpu_seconds_in_all": usage.seconds,
    }


def large(folder: Path, parameters: int) -> dict[str, Any]:
    """One hidden layer of the width that gives so many weights: 30 inputs, 2 classes."""
    width = parameters // (30 + 1 + 2)
    sections = {
        "method": {"name": "fedavg"},
        "rounds": 2,
        "eval_every": 2,
        "data": {"name": "sites"},
        "model": {"name": "mlp", "hidden": [width]},
        "train": {"epochs": 1},
    }
    place, paths = made(folder, sections)
    place = replace(place, port=place.local[1])
    with trial.server(place), watched() as usage, trial.nodes(place, paths, folder / "sites"):
        link.submit(place)
        ended = link.follow(place, lambda found: None)
        assert ended["state"] == "finished", ended
    return {"parameters": 33 * width + 2, "peak_megabytes": {k: round(v / 1e6) for k, v in sorted(usage.peak.items())}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parameters", type=int, default=10_000_000, help="0: leave the large one out")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {"load": os.getloadavg()[0], "small": small(Path(folder) / "small", given.rounds)}
        if given.parameters:
            found["large"] = large(Path(folder) / "large", given.parameters)
    text = json.dumps(found, indent=2)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
