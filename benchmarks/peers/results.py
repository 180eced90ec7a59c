"""The results as a file: merged with what was measured before, judged, and written whole."""

from __future__ import annotations

import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

from .entrants import ENTRANTS, OURS, PLAIN

Entry = dict[str, Any]
"""One competitor on one task: its date, versions, machine, and the repeats."""

Results = dict[str, dict[str, Entry]]
"""By task, then by competitor."""

SCHEMA = 1


def load(path: Path) -> Results:
    """Earlier results, or none."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    if content["schema"] != SCHEMA:
        raise SystemExit(f"'{path}' has schema {content['schema']}, not {SCHEMA}: move it away and measure anew.")
    results: Results = content["results"]
    return results


def save(path: Path, results: Results) -> None:
    """All results, in the order of tasks and entrants."""
    order = list(ENTRANTS)
    ordered = {
        task: {key: results[task][key] for key in order if key in results[task]}
        for task in sorted(results, key=lambda name: (name.partition("@")[0], "@" in name, _clients(name)))
    }
    write_text(path, json.dumps({"schema": SCHEMA, "results": ordered}, indent=1) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(content)
    temporary.replace(path)


def _clients(name: str) -> int:
    return int(name.partition("@")[2] or 0)


def machine() -> dict[str, Any]:
    """What the numbers depend on beside the code."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# What the repeats of an entry say


def good(entry: Entry) -> list[dict[str, Any]]:
    """The repeats that came to an end."""
    return [repeat for repeat in entry["repeats"] if "error" not in repeat]


def values(entry: Entry, name: str) -> list[float]:
    """One number a repeat that came to an end: `round` is the median of all rounds but the first, `first` that one."""
    return [_value(repeat, name) for repeat in good(entry)]


def _value(repeat: dict[str, Any], name: str) -> float:
    if name == "round":
        return float(statistics.median(repeat["rounds"][1:] or repeat["rounds"]))
    return float(repeat["rounds"][0] if name == "first" else repeat[name])


def failed(entry: Entry) -> list[str]:
    """Why repeats came to no end."""
    return [repeat["error"] for repeat in entry["repeats"] if "error" in repeat]


def ratios(entry: Entry, ours: Entry) -> list[float]:
    """How many times longer a round takes than ours: repeat by repeat, or once if measured in different runs."""
    pairs = list(zip(entry["repeats"], ours["repeats"], strict=False))
    both = [(a, b) for a, b in pairs if "error" not in a and "error" not in b]
    if entry["run"] == ours["run"] and len(entry["repeats"]) == len(ours["repeats"]) and both:
        return [_value(a, "round") / _value(b, "round") for a, b in both]
    return [statistics.median(values(entry, "round")) / statistics.median(values(ours, "round"))]


def judge(results: Results) -> None:
    """Mark the entries that do not count: `void` says why, or is None."""
    for entries in results.values():
        for entry in entries.values():
            entry["void"] = _void(entry, entries.get(PLAIN))


def _void(entry: Entry, plain: Entry | None) -> str | None:
    if 2 * len(failed(entry)) > len(entry["repeats"]):
        return f"failed: {failed(entry)[0]}"
    if plain is None or not good(plain) or plain["task"] != entry["task"]:
        return "no plain loop on the same task to check against"
    task = entry["task"]
    accuracy, loss = (statistics.median(values(plain, name)) for name in ("accuracy", "loss"))
    theirs = statistics.median(values(entry, "accuracy"))  # a single one depends on the clients drawn
    if not abs(theirs - accuracy) <= task["accuracy_tolerance"]:
        return f"accuracy {theirs:.1f} % where the plain loop has {accuracy:.1f} %"
    for repeat in good(entry):
        if not abs(repeat["loss"] - loss) <= task["loss_tolerance"] * loss:
            return f"test loss {repeat['loss']:.4f} where the plain loop has {loss:.4f}"
    return None


def counts(entries: dict[str, Entry], key: str) -> bool:
    """Whether there is a row for `key` and it counts, and ours too, so that a ratio can be given."""
    return all(name in entries and entries[name]["void"] is None for name in (key, OURS))
