"""The results as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from .entrants import ENTRANTS, OURS
from .results import Entry, Results, counts, failed, ratios, values

TARGETS: dict[str, dict[str, float]] = {
    "T1": {"flwr": 100, "pfl-2": 20, "fluke": 25, "fedlab": 25, "plain": 15},
    "T2": {"flwr": 30, "pfl-2": 7, "fluke": 9, "fedlab": 9, "plain": 6},
    "T3": {"flwr": 2.8, "pfl-2": 1.6, "fluke": 3, "fedlab": 3, "plain": 2.8},
    "T4": {"flwr": 30, "fluke": 8, "plain": 5},
}
"""How many times faster fedprior with two workers should be."""

COLUMNS = ("start-up s", "first round s", "round ms (range)", "CPU s", "peak MiB", "accuracy %", "loss", "× fedprior")


def markdown(results: Results) -> str:
    """The whole report."""
    tasks = [name for name in results if "@" not in name]
    sweep = [name for name in results if "@" in name]
    parts = ["# fedprior and its peers", _preface(results), "## How many times longer a round takes", _summary(results)]
    for name in tasks:
        parts += [f"## {name}: {_describe(results[name])}", _rows(results[name]), *_remarks(results[name])]
    if sweep:
        parts += ["## As the federation grows", _sweep(results, sweep)]
    return "\n\n".join(parts) + "\n"


def _preface(results: Results) -> str:
    entries = [entry for found in results.values() for entry in found.values()]
    dates = sorted({entry["date"] for entry in entries})
    machines = sorted({f"{e['machine']['cpu']}, {e['machine']['cores']} cores" for e in entries})
    others = [repeat["others"] for entry in entries for repeat in entry["repeats"]]
    versions = {f"{name} {v}" for e in entries for name, v in e["versions"].items() if name != "numpy"}
    return (
        f"Measured {' and '.join(dates)} on {' and '.join(machines)}. Meanwhile other processes took "
        f"{statistics.median(others):.2f} of a core, and at most {max(others):.2f}. {', '.join(sorted(versions))}.\n\n"
        "Medians over repeats, with the range where it says so. Start-up: from the start of the process, imports "
        "included, to the first round. Round: median of all rounds but the first. CPU and peak memory (proportional "
        "set size): of the whole process tree, from start to end. × fedprior: a round's time divided by that of "
        "fedprior with 2 workers in the same repeat. A void row did other work than the plain loop, or failed."
    )


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(header)]
    lines += [["---"] * len(lines[0]), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _summary(results: Results) -> str:
    peers = ("flwr", "pfl-2", "fluke", "fedlab", "plain")
    rows = []
    for name in (task for task in TARGETS if task in results):
        row = [name]
        for key in peers:
            target = TARGETS[name].get(key)
            if target is None:
                row.append("—")
            elif not counts(results[name], key):
                row.append(f"{_why_none(results[name], key)} (target {target:g})")
            else:
                ratio = statistics.median(ratios(results[name][key], results[name][OURS]))
                row.append(f"**{_short(ratio)}** (target {target:g}{'' if ratio >= target else ', missed'})")
        rows.append(row)
    return _table(("task", *(ENTRANTS[key].title for key in peers)), rows)


def _describe(entries: dict[str, Entry]) -> str:
    entry = next(iter(entries.values()))
    task = entry["task"]
    steps = task["examples"] // task["batch"]
    sampled = f", {task['cohort']} sampled a round" if task["cohort"] < task["clients"] else ""
    models = " on the shared model and as many on the personal one" if task["pull"] is not None else ""
    repeats = len(entry["repeats"])
    return (
        f"{task['title']}, {task['clients']} clients{sampled}, batch {task['batch']}, {steps} steps{models}; "
        f"{task['rounds']} rounds, {repeats} repeat{'s' if repeats > 1 else ''}"
    )


def _rows(entries: dict[str, Entry]) -> str:
    task = next(iter(entries.values()))["task"]["name"]
    rows = []
    for key, entrant in ENTRANTS.items():
        if key in entries:
            rows.append([entrant.title, *_cells(entries, key)])
        elif task not in entrant.only and key in TARGETS["T1"]:
            rows.append([entrant.title, *["—"] * len(COLUMNS)])
    return _table(("", *COLUMNS), rows)


def _cells(entries: dict[str, Entry], key: str) -> list[str]:
    entry = entries[key]
    if not values(entry, "round"):
        return [*["—"] * (len(COLUMNS) - 1), "void"]
    middle = {name: statistics.median(values(entry, name)) for name in ("startup", "first", "cpu", "peak", "loss")}
    accuracy = statistics.median(values(entry, "accuracy"))
    return [
        f"{middle['startup']:.1f}",
        f"{middle['first']:.2f}",
        _spread([1e3 * v for v in values(entry, "round")]),
        f"{middle['cpu']:.0f}",
        f"{middle['peak'] / 2**20:.0f}",
        f"{accuracy:.1f}",
        f"{middle['loss']:.3f}",
        _spread(ratios(entry, entries[OURS])) if counts(entries, key) else _why_none(entries, key),
    ]


def _why_none(entries: dict[str, Entry], key: str) -> str:
    """Why there is no ratio."""
    if key not in entries:
        return "not run"
    return "void" if entries[key]["void"] else "fedprior void"


def _spread(found: list[float]) -> str:
    middle = _short(statistics.median(found))
    return f"{middle} ({_short(min(found))}-{_short(max(found))})" if len(found) > 1 else middle


def _short(value: float) -> str:
    """Three digits that count."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _remarks(entries: dict[str, Entry]) -> list[str]:
    remarks = [f"* {ENTRANTS[key].title} is void: {e['void']}." for key, e in entries.items() if e["void"]]
    remarks += [f"* {_failures(key, e)}" for key, e in entries.items() if failed(e) and not e["void"]]
    if len({entry["run"] for entry in entries.values()}) > 1:
        when = ", ".join(f"{ENTRANTS[key].title} {entry['run'][:16]}" for key, entry in entries.items())
        remarks.append(f"* Measured in different runs, across which ratios are not paired: {when}.")
    task = next(iter(entries.values()))["task"]
    remarks.append(
        f"* A row counts if its median accuracy is within {task['accuracy_tolerance']:g} points of the plain loop's "
        f"and the test loss of every repeat within {100 * task['loss_tolerance']:g} %."
    )
    return ["\n".join(remarks)]


def _failures(key: str, entry: Entry) -> str:
    """Repeats that are missing from a row."""
    return (
        f"{ENTRANTS[key].title} failed in {len(failed(entry))} of {len(entry['repeats'])} repeats, which are left out."
    )


def _sweep(results: Results, names: list[str]) -> str:
    keys = [key for key in ENTRANTS if any(key in results[name] for name in names)]
    rows = []
    for name in names:
        row = [name.partition("@")[2]]
        for key in keys:
            if not counts(results[name], key):
                row.append(_why_none(results[name], key))
            else:
                entry = results[name][key]
                ratio = statistics.median(ratios(entry, results[name][OURS]))
                row.append(f"{_short(1e3 * statistics.median(values(entry, 'round')))} ({_short(ratio)}×)")
        rows.append(row)
    remarks = [
        f"* {name.partition('@')[2]} clients, {ENTRANTS[key].title} is void: {entry['void']}."
        for name in names
        for key, entry in results[name].items()
        if entry["void"]
    ]
    remarks += [
        f"* {name.partition('@')[2]} clients: {_failures(key, entry)}"
        for name in names
        for key, entry in results[name].items()
        if failed(entry) and not entry["void"]
    ]
    intro = "T2's network, every client in every round: milliseconds a round (times fedprior with 2 workers)."
    skipped = "Flower is left out of the larger federations for the time it takes (`--flower-limit`)."
    grid = _table(("clients", *(ENTRANTS[k].title for k in keys)), rows)
    return "\n\n".join([intro, grid, skipped, "\n".join(remarks)])
