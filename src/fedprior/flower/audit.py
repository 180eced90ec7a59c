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
    "w": "weights of the shared network",
    "n": "number of training rows",
    "theta": "weights of the local model",
    "log_omega": "logarithm of the model's evidence weight",
    "v": "weights, or their variances over the local steps (FedBPS)",
    "base": "weights of the feature layers",
    "head": "weights of the last layer",
    "counts": "number of training rows of each class",
    "means": "mean features of each class",
    "scaled": "mean features of each class times its share",
    "mean": "mean features of each class, or of an input",
    "covariance": "covariance of the features within classes",
    "phi": "weights of the feature layers",
    "mu": "means of the weights",
    "rho": "widths of the weights' distribution",
    "tau": "confidence in the local weights",
    "variance": "spread of the local weights or features: one number or one per weight",
    "x": "weights of one of the shared models",
    "choice": "which of the shared models fits this site",
    "dx": "change of the weights",
    "dc": "change of the control variate",
    "experts": "the uplinks of the methods that are mixed",
    "score": "validation loss of each combination of the mixed methods",
    "scored": "number of validation rows that were scored, or whether there are any",
    "square": "sum of squares of an input around its mean",
    "message": "sums of the likelihood's derivatives over the rows",
    "missing": "number of missing values of an input",
}
"""What a field of an uplink is, by the first part of its name."""
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
        for name, field in fields.items():
            field["meaning"] = MEANING.get(name, "a field of the method's uplink")
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
