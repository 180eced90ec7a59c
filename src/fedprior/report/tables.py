"""Tables for the terminal: one row a client, or one row a method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedprior.data.federation import SPLITS, Federation
from fedprior.experiment import Result
from fedprior.experiment.catalogue import REFERENCE, catalogue

SHOWN = 30
"""Clients in a table before it is cut; files always hold all."""


def _table(title: str, caption: str | None = None) -> Table:
    return Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
    )


def percent(value: float | None) -> str:
    """0.8123 -> 81.2."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.1f}"


def number(value: float | None) -> str:
    """Three decimals."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.3f}"


def signed(value: float, low: float, high: float) -> Text:
    """A gain in points with its interval: green if surely above zero, red if surely below."""
    if not math.isfinite(value):
        return Text("–")
    style = "green" if low > 0 else "red" if high < 0 else ""
    return Text(f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]", style=style)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def clients(result: Result) -> Table:
    """Each client's accuracy with its personal model, beside Local where that was run."""
    title, frame = result.method.about.title, result.clients
    compared = result.reference is not None
    moment = result.method.moment
    table = _table(f"{title}: test accuracy (%) of each personal model, {moment}", _caption(result))
    headings = ["client", "train", "test", *(["Local"] if compared else []), title, "balanced", "NLL"]
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "client" else "right", no_wrap=True)
    if compared:
        table.add_column("gain [95 %]", justify="right", no_wrap=True)
    for name, row in frame.head(SHOWN).iterrows():
        cells: list[str | Text] = [str(name), str(int(row["train"])), str(int(row["test"]))]
        cells += [percent(row["local_accuracy"])] if compared else []
        cells += [percent(row["accuracy"]), percent(row["balanced_accuracy"]), number(row["nll"])]
        cells += [signed(row["gain"], row["gain_low"], row["gain_high"])] if compared else []
        table.add_row(*cells)
    if len(frame) > SHOWN:
        table.add_row(f"… {len(frame) - SHOWN} more")
    table.add_section()
    last = _last(result)
    cells = ["mean", str(int(frame["train"].sum())), str(int(frame["test"].sum()))]
    cells += [percent(float(frame["local_accuracy"].mean()))] if compared else []
    cells += [
        percent(last["accuracy"]["mean"]),
        percent(last["balanced_accuracy"]["mean"]),
        number(last["nll"]["mean"]),
    ]
    if compared:
        found = result.gain()
        cells += [signed(found.mean, found.mean_low, found.mean_high)]
    table.add_row(*cells, style="bold")
    return table


def _caption(result: Result) -> str | None:
    if result.reference is None:
        return None
    found = result.gain()
    return (
        f"{title_of(result)} beats Local at {found.helped:.0%} of the clients and loses at {found.harmed:.0%}. "
        f"Gains in points; intervals by paired bootstrap over {found.over}, for this one training run."
    )


def title_of(result: Result) -> str:
    """The method's name for people."""
    return result.method.about.title


def _last(result: Result) -> dict[str, Any]:
    scores: dict[str, Any] = result.summary["last"]["personal"]["test"]
    return scores


def comparison(results: Mapping[str, Result], *, wide: bool = True) -> Table:
    """One row a method: personal models on the clients' test splits after the last round; fewer columns if not wide."""
    first = next(iter(results.values()))
    rounds = first.summary["rounds"]
    table = _table(
        f"{first.federation.name}: personal models of {len(first.federation)} clients, {rounds} rounds, test split",
        "acc: mean ± std over clients; bal: balanced; gain over Local in points, 95 % paired bootstrap over test "
        "examples; helps: share of clients that gain"
        + ("; worst: mean of the worst tenth; global: the shared model; sent: bytes per round." if wide else "."),
    )
    headings = ["acc %", "bal %", "NLL", "ECE %", "gain [95 %]", "helps"]
    headings += ["worst %", "global %", "sent", "time"] if wide else []
    table.add_column("method", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results.values():
        table.add_row(title_of(result), *_scores(result), *(_extras(result, rounds) if wide else []))
    return table


def by_client(results: Mapping[str, Result]) -> Table:
    """One row a client, one column a method: test accuracy, marked where it surely differs from Local's."""
    first = next(iter(results.values()))
    table = _table(
        "Test accuracy (%) of each client's personal model",
        "▲ ▼: the 95 % interval of the gain over Local (paired bootstrap over test examples) lies above or below zero.",
    )
    for heading in ("client", "train", *(title_of(result) for result in results.values())):
        table.add_column(heading, justify="left" if heading == "client" else "right", no_wrap=True)
    frames = [result.clients for result in results.values()]
    for i, client in enumerate(first.federation.clients[:SHOWN]):
        train = str(first.federation.train.size[i])
        table.add_row(client, train, *(_marked(frame.iloc[i]) for frame in frames))
    if len(first.federation) > SHOWN:
        table.add_row(f"… {len(first.federation) - SHOWN} more")
    return table


def _marked(row: Any) -> Text:
    low, high = row.get("gain_low", 0.0), row.get("gain_high", 0.0)
    mark, style = ("▲", "green") if low > 0 else ("▼", "red") if high < 0 else (" ", "")
    return Text(f"{percent(row['accuracy'])}{mark}", style=style)


def _scores(result: Result) -> list[str | Text]:
    last = _last(result)
    cells: list[str | Text] = [
        f"{percent(last['accuracy']['mean'])} ± {percent(last['accuracy']['std'])}",
        percent(last["balanced_accuracy"]["mean"]),
        number(last["nll"]["mean"]),
        percent(last["ece"]["mean"]),
    ]
    if result.reference is None:
        return [*cells, "", ""]
    found = result.gain()
    return [*cells, signed(found.mean, found.mean_low, found.mean_high), f"{found.helped:.0%}"]


def _extras(result: Result, rounds: int) -> list[str]:
    shared, sent = result.summary["last"].get("global"), result.summary["bytes"]
    return [
        percent(_last(result)["accuracy"]["worst_decile"]),
        percent(shared["test"]["accuracy"]["mean"]) if shared else "–",
        size((sent["up"] + sent["down"]) / rounds),
        f"{result.summary['timing']['seconds']:.1f} s",
    ]


def methods() -> Table:
    """All methods, grouped; papers in full are in the JSON and the documentation."""
    table = _table("Methods", f"up, down: bytes of one client's messages per round for {REFERENCE}")
    for heading in ("group", "name", "method", "venue", "up", "down", "personal"):
        table.add_column(
            heading, justify="right" if heading in ("up", "down") else "left", no_wrap=heading != "personal"
        )
    group = ""
    for entry in catalogue():
        shown = "" if entry["group"] == group else entry["group"]
        if shown:
            table.add_section()
        group = entry["group"]
        venue = f"{entry['paper'].rpartition(', ')[2]} {entry['year']}" if ", " in entry["paper"] else ""
        sent = size(entry["bytes_up"]), size(entry["bytes_down"])
        table.add_row(shown, entry["name"], entry["title"], venue, *sent, entry["personal"])
    return table


def federation(data: Federation) -> Table:
    """Sizes and labels of every client."""
    table = _table(f"{data.name}: {len(data)} clients, {data.classes} classes, inputs {data.shape}")
    for heading in ("client", *SPLITS, "labels in training"):
        table.add_column(heading, justify="left" if heading in ("client", "labels in training") else "right")
    for i, counts in enumerate(data.label_counts()[:SHOWN]):
        labels = "  ".join(f"{label}:{count}" for label, count in enumerate(counts) if count)
        table.add_row(data.clients[i], *(str(data.split(s).size[i]) for s in SPLITS), labels)
    if len(data) > SHOWN:
        table.add_row(f"… {len(data) - SHOWN} more")
    return table
