"""The answer of a comparison in words and numbers: which method to use, and what federation does for each site."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

from fedprior.errors import FedpriorError
from fedprior.experiment.journal import jsonable
from fedprior.files import write_text

Effect = Literal["helps", "harms", "no difference", "cannot tell"]
FILE = "verdict.json"
POOLED, SITE_EFFECTS = "reference_pooled", "reference_site_effects"
"""References that need all rows in one place: no federation could have them."""


class Interval(NamedTuple):
    """A mean with its 95 % interval; nan where there is none."""

    mean: float
    low: float
    high: float

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """From JSON, where null is nan."""
        return cls(*(float("nan") if document[name] is None else float(document[name]) for name in cls._fields))


@dataclass(frozen=True)
class SiteVerdict:
    """What the recommended method does for one site, compared with Local: positive gains are better."""

    verdict: Effect
    n_test: int  # distinct test rows over all splits
    gain_nll: Interval
    gains: Mapping[str, Interval] = field(default_factory=dict)  # in other metrics

    def document(self) -> dict[str, Any]:
        """As JSON."""
        gains = {name: gain._asdict() for name, gain in self.gains.items()}
        return {"verdict": self.verdict, "n_test": self.n_test, "gain_nll": self.gain_nll._asdict(), "gains": gains}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `document`."""
        if document["verdict"] not in get_args(Effect):
            raise ValueError(f"there is no verdict '{document['verdict']}'")
        gains = {name: Interval.from_document(gain) for name, gain in document.get("gains", {}).items()}
        return cls(document["verdict"], int(document["n_test"]), Interval.from_document(document["gain_nll"]), gains)


@dataclass(frozen=True)
class Verdict:
    """`methods`: the mean over sites of each metric on the test rows, of the models that validation selected.

    The two references, if any, are among them as `reference_pooled` and `reference_site_effects`.
    """

    recommended: str | None  # the method with the lowest validation NLL
    text: str
    methods: Mapping[str, Mapping[str, float]]
    sites: Mapping[str, SiteVerdict]
    mean_gain_nll: Interval | None = None  # over sites, of the method whose gains `sites` has; None: nothing to compare

    def document(self) -> dict[str, Any]:
        """As JSON."""
        plain = {
            "recommended": self.recommended,
            "text": self.text,
            "methods": {name: dict(metrics) for name, metrics in self.methods.items()},
            "sites": {name: site.document() for name, site in self.sites.items()},
            "mean_gain_nll": None if self.mean_gain_nll is None else self.mean_gain_nll._asdict(),
        }
        return dict(jsonable(plain))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `document`."""
        methods = {
            str(name): {metric: float("nan") if value is None else float(value) for metric, value in metrics.items()}
            for name, metrics in document["methods"].items()
        }
        sites = {str(name): SiteVerdict.from_document(site) for name, site in document["sites"].items()}
        mean = document.get("mean_gain_nll")
        gained = None if mean is None else Interval.from_document(mean)
        return cls(document["recommended"], str(document["text"]), methods, sites, gained)

    def write(self, folder: Path) -> None:
        """Write `verdict.json`."""
        write_text(folder / FILE, json.dumps(self.document(), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The verdict of a comparison's folder."""
        path = folder / FILE
        if not path.is_file():
            raise FedpriorError(f"'{folder}' has no {FILE}: give the folder of a finished comparison of a table.")
        try:
            return cls.from_document(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FedpriorError(f"'{path}' is damaged and cannot be read: {error}.") from None
