"""One run of a table, and how the sections of its configuration are merged."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedprior.experiment.config import Config, Section


class Cell(NamedTuple):
    """One run."""

    row: str
    column: str
    seed: int
    config: Config

    @property
    def folder(self) -> str:
        """A name that two cells share exactly when their runs are the same."""
        settled = self.config.model_dump(exclude={"workers", "engine", "ray_address"}, mode="json")
        digest = hashlib.sha256(json.dumps(settled, sort_keys=True).encode()).hexdigest()
        return f"{self.config.method['name']}-seed{self.seed}-{digest[:12]}"


def unfolded(setting: Section) -> dict[str, Any]:
    """{"train.lr": 0.1} -> {"train": {"lr": 0.1}}."""
    done: dict[str, Any] = {}
    for key, value in setting.items():
        *sections, last = key.split(".")
        place = done
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return done


def folded(sections: Mapping[str, Any], within: str = "") -> Section:
    """{"train": {"lr": 0.1}} -> {"train.lr": 0.1}."""
    done: Section = {}
    for key, value in sections.items():
        done |= folded(value, f"{within}{key}.") if isinstance(value, Mapping) else {f"{within}{key}": value}
    return done


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Merged sections, later ones taking precedence; a section with a different name replaces an earlier one."""
    done: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            below = done.get(key)
            same = (
                isinstance(below, dict)
                and isinstance(value, Mapping)
                and value.get("name", below.get("name")) == (below.get("name"))
            )
            done[key] = merged(below, value) if same and isinstance(below, dict) else copy.deepcopy(value)
    return done
