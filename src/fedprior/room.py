"""Whether something fits into memory, asked before it is made."""

from __future__ import annotations

import contextlib
from pathlib import Path

from fedprior.errors import FedpriorError


def available() -> int | None:
    """Bytes that this process may still take by the machine, its control group and its own limit; None: unknown."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="utf-8"))  # "max" is no number: no limit
        found.append(limit - int((group / "memory.current").read_text(encoding="utf-8")))
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        if limit != resource.RLIM_INFINITY:
            found.append(limit - pages * resource.getpagesize())
    return min(found, default=None)


def check_room(what: str, count: int, instead: str) -> None:
    """Refuse what would take so many bytes, if there are fewer."""
    room = available()
    if room is not None and count > room:
        raise FedpriorError(f"{what} would take about {gib(count)} but {gib(room)} of memory are free: {instead}.")


def gib(count: int) -> str:
    """Bytes for people."""
    if count >= 2**60:
        return "more than 2**30 GiB"
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{max(count, 0) / 2**20:.0f} MiB"
