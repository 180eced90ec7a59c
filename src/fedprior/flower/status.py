"""How an experiment is going, in one small file at the server that commands read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedprior.errors import FedpriorError
from fedprior.experiment.journal import Event, Observer
from fedprior.files import write_text


@contextmanager
def reported(path: Path) -> Iterator[Observer]:
    """Write what happens; at the end, how it ended."""

    def tell(state: str, **more: Any) -> None:
        write_text(path, json.dumps({"state": state, "pid": os.getpid(), **more}) + "\n")

    last: dict[str, Any] = {"round": 0}

    def observe(event: Event) -> None:
        if event["kind"] == "waiting":
            tell("waiting for the sites", missing=event["missing"])
            return
        last.update(round=event.get("round", last["round"]), **{k: event[k] for k in ("unfinished",) if k in event})
        tell("training", **last)

    tell("waiting for the sites")
    try:
        yield observe
    except FedpriorError as error:
        tell("failed", why=str(error), **last)
        raise
    except (SystemExit, KeyboardInterrupt):
        tell("failed", why="it was stopped: resume the experiment", **last)
        raise
    except BaseException as error:
        tell("failed", why=f"{type(error).__name__}; see the log of the server", **last)
        raise
    tell("finished", **last)


def read_status(path: Path) -> dict[str, Any]:
    """What was last reported; a process that is gone without a word has failed."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"state": "not started"}
    if found.get("state") not in ("finished", "failed") and not _alive(found.get("pid")):
        return {**found, "state": "failed", "why": "the process at the server is gone: resume the experiment"}
    return found


def _alive(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except (TypeError, ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return not _zombie(int(pid))


def _zombie(pid: int) -> bool:
    """Whether a process has died and nobody has asked how: Flower's SuperExec does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].startswith("Z")
    except OSError:  # no Linux, or gone just now
        return False
