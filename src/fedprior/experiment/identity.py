"""The identity of a run: its whole resolved configuration, of which little may change when the run is continued.

`workers`, `engine` and `ray_address` do not affect the result, and `rounds` may grow. Nothing else may change, not even
`chunk`, because the size of a stack affects how sums are rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprior.errors import FedpriorError
from fedprior.experiment.config import Section, Setup
from fedprior.experiment.settings import Settings

FREE = ("workers", "engine", "ray_address")
"""Settings that do not affect the result and may differ when a run is continued."""
GROWS = "rounds"
"""The setting that may become larger when a run is continued."""


def flat(document: Mapping[str, Any], prefix: str = "") -> Section:
    """Every option by its full name, such as `method.sigma2`."""
    found: Section = {}
    for key, value in document.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def identity(setup: Setup) -> Section:
    """Every option that identifies a run, by its full name."""
    return {key: value for key, value in flat(setup.document()).items() if key not in FREE}


def refuse_another(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse to continue the run in a folder as a different one, and say what differs."""
    known = flat(Settings().model_dump(exclude_none=True))  # an older file lacks newer settings
    there, here = known | dict(there), known | dict(here)
    for key in sorted({*there, *here} - set(FREE), key=_by_weight):
        if there.get(key) != here.get(key) and not (key == GROWS and _more(there[key], here[key])):
            raise FedpriorError(
                f"'{folder}' holds another run, whose {key} is {_told(there, key)}, not {_told(here, key)}: choose "
                "another folder, or continue that run as it was begun."
            )


def _by_weight(key: str) -> tuple[bool, int, str]:
    """Names of methods and data sets first: their options differ because of them."""
    return not key.endswith(".name"), key.count("."), key


def _told(options: Mapping[str, Any], key: str) -> str:
    return repr(options[key]) if key in options else "left out"


def _more(before: Any, now: Any) -> bool:
    return isinstance(before, int) and isinstance(now, int) and now > before
