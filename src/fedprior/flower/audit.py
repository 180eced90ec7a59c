"""What has left a site, read from the site's own record: fields, what they mean, how many bytes, and what to mind."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedprior.errors import FedpriorError
from fedprior.flower.store import AGREEMENT, SENT, noted

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
    "scaling.n": "number of known values of each input",
    "scaling.mean": "mean of each input",
    "scaling.square": "sum of squares of each input around its mean",
    "scaling.missing": "number of missing values of each input",
}
"""What a field of an uplink is, by the first part of its name; METHOD/FIELD where a method means something else."""
AGREED = {
    "problems": "which columns do not fit",
    "sizes": "numbers of rows",
    "labels": "number and sum of the target's values",
    "square": "sum of squares of the target around the mean of all sites",
}
"""What a site tells at the agreement, beside whether its table fits and the sums for shared scaling."""


def meaning(field: str, method: str) -> str:
    """What a field tells, in the messages of a method; the sums for shared scaling begin with `scaling.`."""
    return MEANING.get(f"{method}/{field}") or MEANING.get(field, "a field of the method's uplink")


def audited(state: Path) -> list[dict[str, Any]]:
    """One entry per experiment and site: every message, and each field with its meaning, messages and bytes."""
    found = [audited_site(path.parent) for path in sorted(state.glob(f"*/*/{SENT}"))]
    if not found:
        raise FedpriorError(f"nothing has left '{state}' yet: it has no {SENT} of any experiment.")
    return found


def audited_site(folder: Path) -> dict[str, Any]:
    """What has left one site in one experiment, from the folder with its record."""
    messages, lost = _messages(folder / SENT)
    fields: dict[str, dict[str, Any]] = defaultdict(lambda: {"messages": 0, "bytes": 0})
    for message in messages:
        for name, size in message["fields"].items():
            fields[name]["messages"] += 1
            fields[name]["bytes"] += size
    agreed = _agreed(folder)
    for name, field in fields.items():
        field["meaning"] = meaning(name, agreed["method"])
    return {
        "experiment": folder.parent.name,
        "site": folder.name,
        "rounds": sorted({message["round"] for message in messages if message["fields"] and message["round"]}),
        "bytes": sum(field["bytes"] for field in fields.values()),
        "fields": dict(fields),
        "agreed": sorted({told for message in messages for told in message["agreed"]}),
        "logs": sorted({name for message in messages for name in message["logs"]}),
        "metrics": any(message["metrics"] for message in messages),
        "messages": messages,
        "warnings": [warning for warning in (agreed["warning"], lost) if warning],
    }


def _messages(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    """All messages that can be read, and a warning if there are lines that cannot."""
    entries, lost = noted(path)
    messages = []
    for entry in entries:
        try:
            messages.append(_message(entry))
        except (KeyError, TypeError, AttributeError):
            lost += 1
    if not messages:
        raise FedpriorError(f"'{path}' has no message that can be read: it is damaged.")
    return messages, f"{lost} of its messages cannot be read in '{path}', which is damaged" if lost else None


def _message(entry: Mapping[str, Any]) -> dict[str, Any]:
    """One message: the round that it belongs to, and the bytes of each field."""
    sizes: dict[str, int] = defaultdict(int)
    for field in entry["fields"]:
        name = field["name"].split("/")[0]
        sizes[f"scaling.{name}" if entry["kind"] == "check" else name] += field["bytes"]
    told = entry["told"]
    return {
        "time": entry["time"],
        "kind": entry["kind"],
        "round": None if entry["round"] is None else entry["round"] + 1,
        "fields": dict(sizes),
        "agreed": [text for name, text in AGREED.items() if name in told],
        "logs": told.get("logs", []),
        "metrics": told.get("scores", []),
        "refused": told.get("refused"),
    }


def _agreed(folder: Path) -> dict[str, Any]:
    """What the site wrote down when it agreed: the experiment's method without its wrappers, and a warning."""
    try:
        found = json.loads((folder / AGREEMENT).read_text(encoding="utf-8"))
        return {"method": str(found["config"]["method"]["name"]).split("+")[0], "warning": found.get("warning")}
    except (OSError, ValueError, KeyError, TypeError):
        return {"method": "", "warning": None}


def lines(found: list[dict[str, Any]], *, each: bool = False) -> list[str]:
    """For a terminal; `each`: one line per message, too."""
    told = []
    for entry in found:
        rounds = entry["rounds"]
        told.append(
            f"{entry['site']}, experiment {entry['experiment']}: {len(entry['messages'])} messages, "
            f"{f'rounds {rounds[0]} to {rounds[-1]}' if rounds else 'no round yet'}, {entry['bytes']:,} bytes of arrays"
        )
        told.append(f"  at the agreement: {', '.join([FITS, *entry['agreed']])}")
        for name, field in entry["fields"].items():
            told.append(f"  {name}: {field['meaning']}; {field['messages']} messages, {field['bytes']:,} bytes")
        if entry["logs"]:
            told.append(f"  numbers about training: {', '.join(entry['logs'])}")
        if entry["metrics"]:
            told.append("  metrics of this site's model on its validation and test rows")
        told += [f"  warning: {warning}" for warning in entry["warnings"]]
        told += [f"  {_line(message)}" for message in entry["messages"]] if each else []
    return told


FITS = "whether the table fits"
KINDS = {"check": ("agreement", FITS), "spread": ("agreement", ""), "finish": ("the end", "that the model was written")}


def _line(message: Mapping[str, Any]) -> str:
    """One message in a line: when, for which round, and what."""
    fields = [f"{name} {size:,} bytes" for name, size in message["fields"].items()]
    logs = [f"numbers about training ({len(message['logs'])})"] if message["logs"] else []
    metrics = [f"metrics on {' and '.join(message['metrics'])} rows"] if message["metrics"] else []
    refused = [f"refused: {message['refused']}"] if message["refused"] else []
    number = message["round"] or 1
    trained = f"round {number}" if fields or logs else f"after round {number - 1}"
    where, what = KINDS.get(message["kind"], (trained, ""))
    said = [what] if what and not refused else []
    return f"{message['time']}  {where}: {', '.join([*said, *message['agreed'], *fields, *logs, *metrics, *refused])}"
