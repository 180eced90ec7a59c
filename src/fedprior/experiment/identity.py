"""Which run a folder holds: the whole resolved configuration, of which little may change when the run is continued.

`workers`, `engine` and `ray_address` have no influence on the result. `rounds` may grow. Nothing else may change: not
`chunk` either, since the size of a stack has a say in how sums are rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprior.errors import FedpriorError
from fedprior.experiment.config import Section, Setup
from fedprior.experiment.settings import Settings

FREE = ("workers", "engine", "ray_address")
"""Settings that have no influence on the result, and may differ when a run is continued."""
GROWS = "rounds"
"""The setting that may become larger when a run is continued."""


def flat(document: Mapping[str, Any], prefix: str = "") -> Section:
    """Every option by its full name, such as `method.sigma2`."""
    found: Section = {}
    for key, value in document.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def identity(setup: Setup) -> Section:
    """All that makes a run what it is, by full names."""
    return {key: value for key, value in flat(setup.document()).items() if key not in FREE}


def refuse_another(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse to take the run in a folder for another: in one sentence, which says what differs."""
    known = flat(Settings().model_dump(exclude_none=True))  # an older file lacks younger settings
    there, here = known | dict(there), known | dict(here)
    for key in sorted({*there, *here} - set(FREE), key=lambda key: (key.count("."), key)):
        if there.get(key) != here.get(key) and not (key == GROWS and _more(there[key], here[key])):
            raise FedpriorError(
                f"'{folder}' holds another run, whose {key} is {_told(there, key)}, not {_told(here, key)}: choose "
                "another folder, or continue that run as it was begun."
            )


def _told(options: Mapping[str, Any], key: str) -> str:
    return repr(options[key]) if key in options else "not set"


def _more(before: Any, now: Any) -> bool:
    return isinstance(before, int) and isinstance(now, int) and now > before
