"""What has left a site, read from the site's own record: fields, what they mean, how many bytes, and what to mind."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprior.errors import FedpriorError
from fedprior.flower.store import AGREEMENT, SENT

MEANING = {
    "base": "weights of the feature layers",
    "choice": "which of the shared models fits this site",
    "counts": "number of training rows of each class",
    "covariance": "covariance of the features within classes",
    "dc": "change of the control variate",
    "dx": "change of the weights",
    "experts": "the uplinks of the methods that are mixed",
    "head": "weights of the last layer",
    "log_omega": "logarithm of the evidence weight",
    "mean": "mean features of each class",
    "means": "mean features of each class, after training",
    "message": "sums over the rows of the likelihood's derivatives",
    "missing": "number of missing values of each input",
    "mu": "means of the weights",
    "n": "number of training rows",
    "phi": "weights of the feature layers",
    "rho": "widths of the weights' distribution",
    "scaled": "mean features of each class times its share, before training",
    "score": "validation loss of each combination of the mixed methods",
    "scored": "whether there are validation rows",
    "square": "sum of squares of each input around its mean",
    "tau": "confidence in the local weights",
    "theta": "weights of the local model",
    "v": "weights of the local model",
    "variance": "spread of the local weights or features",
    "w": "weights of the local model that are shared",
    "x": "weights of the chosen model",
    "fedbps/v": "variance of each weight over the local steps",
    "fedem/theta": "weights of all shared models",
    "fedmap/variance": "spread of each local weight, if it is learned",
    "fedpac/variance": "spread of the features, one number",
    "mixed/mean": "mean of each input",
    "stack/rho": "share of each combination of the mixed methods",
}
"""What a field of an uplink is, by the first part of its name; METHOD/FIELD where a method means something else."""


def meaning(field: str, method: str) -> str:
    """What a field tells, in the messages of a method; those of shared scaling have no method."""
    return MEANING.get(f"{method}/{field}") or MEANING.get(field, "a field of the method's uplink")


CLASS_MEANS = {"means", "scaled", "mean", "counts"}
FEW = 5
"""Rows of a class below which its mean is close to a patient's own features."""


def audited(state: Path) -> list[dict[str, Any]]:
    """One entry per experiment and site: rounds, and each field with its meaning, messages and bytes."""
    found = []
    for path in sorted(state.glob(f"*/*/{SENT}")):
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        fields: dict[str, dict[str, Any]] = defaultdict(lambda: {"messages": 0, "bytes": 0})
        for entry in entries:
            for part in {field["name"].split("/")[0] for field in entry["fields"]}:
                fields[part]["messages"] += 1
            for field in entry["fields"]:
                fields[field["name"].split("/")[0]]["bytes"] += field["bytes"]
        method = _method(path.parent)
        for name, field in fields.items():
            field["meaning"] = meaning(name, method)
        numbers = sorted({name for entry in entries for name in entry["told"].get("logs", [])})
        metrics = any(entry["told"].get("scores") for entry in entries)
        found.append(
            {
                "experiment": path.parent.parent.name,
                "site": path.parent.name,
                "messages": len(entries),
                "rounds": sorted({entry["round"] + 1 for entry in entries if entry["round"] is not None}),
                "bytes": sum(field["bytes"] for field in fields.values()),
                "fields": dict(fields),
                "logs": numbers,
                "metrics": metrics,
                "warnings": _warnings(path.parent, fields),
            }
        )
    if not found:
        raise FedpriorError(f"nothing has left '{state}' yet: it has no {SENT} of any experiment.")
    return found


def _method(folder: Path) -> str:
    """The experiment's method, without its wrappers."""
    try:
        found = json.loads((folder / AGREEMENT).read_text(encoding="utf-8"))["config"]["method"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return str(found).split("+")[0]


def _warnings(folder: Path, fields: Mapping[str, Any]) -> list[str]:
    """Of class means that few rows are in; the counts themselves stay here."""
    if not CLASS_MEANS & fields.keys() or ("phi" not in fields and "counts" not in fields):
        return []
    try:
        smallest = json.loads((folder / AGREEMENT).read_text(encoding="utf-8")).get("smallest_class")
    except (OSError, ValueError):
        return []
    if smallest is None or smallest >= FEW:
        return []
    return [
        f"this method sends the mean features of every class, and your smallest class has {smallest} training rows: "
        f"a mean of fewer than {FEW} is close to single patients. Ask for another method, or merge classes."
    ]


def lines(found: list[dict[str, Any]]) -> list[str]:
    """For a terminal."""
    told = []
    for entry in found:
        rounds = f"rounds {entry['rounds'][0]} to {entry['rounds'][-1]}" if entry["rounds"] else "no round yet"
        told.append(
            f"{entry['site']}, experiment {entry['experiment']}: {entry['messages']} messages, {rounds}, "
            f"{entry['bytes']:,} bytes of arrays"
        )
        for name, field in entry["fields"].items():
            told.append(f"  {name}: {field['meaning']}; {field['messages']} messages, {field['bytes']:,} bytes")
        if entry["logs"]:
            told.append(f"  numbers about training: {', '.join(entry['logs'])}")
        if entry["metrics"]:
            told.append("  metrics of this site's model on its validation and test rows")
        told += [f"  warning: {warning}" for warning in entry["warnings"]]
    return told
