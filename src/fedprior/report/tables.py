"""Tables for the terminal: one row per client, or one row per method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from fedprior.data.federation import SPLITS, Federation
from fedprior.data.target import Classes, Target
from fedprior.experiment import Result
from fedprior.experiment.catalogue import REFERENCE, catalogue
from fedprior.experiment.selection import source
from fedprior.metrics import GAINS, Metric, Value, main_metric, metrics_of, shown
from fedprior.names import on_screen
from fedprior.report.options import Option

SHOWN = 30
"""Largest number of clients in a table; files always hold all."""
HEADLINE = ("accuracy", "auroc", "balanced_accuracy", "rmse", "nll", "ece", "mae", "r2", "coverage90")
"""The metrics that tables show, the main one first, if the target has them; files hold all."""
SHORT = {"accuracy": "acc", "balanced_accuracy": "bal", "coverage90": "cover 90"}


LABEL = 24
"""Characters of a label in a table."""


def plain_table(title: str, caption: str | None = None) -> Table:
    """An empty table in the style of all."""
    return Table(
        title=Text(title, style="table.title", justify="left"),
        caption=None if caption is None else Text(caption, style="table.caption", justify="left"),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
    )


def headline(target: Target, most: int = 4) -> list[Metric]:
    """The metrics that a table shows for a target: with two classes, AUROC replaces balanced accuracy."""
    known = metrics_of(target)
    hidden = "balanced_accuracy" if "sensitivity" in known else "auroc"
    return [known[name] for name in HEADLINE if name in known and name != hidden][:most]


def heading(metric: Metric) -> str:
    """`acc %`, `NLL`."""
    return SHORT.get(metric.name, metric.title) + (" %" if metric.unit == "%" else "")


def signed(value: float, low: float, high: float, scale: float = 100, *, tested: bool = True) -> Text:
    """A gain with its interval: green if the interval is above zero, red if below. In points by default.

    There is none without test examples or for a model that diverged.
    """
    if math.isnan(value):
        return Text("diverged" if tested else "–")
    if math.isinf(value):
        return Text(f"{value:+}")
    style = "green" if low > 0 else "red" if high < 0 else ""
    digits = 1 if scale == 100 else 3
    told = f"{scale * value:+.{digits}f} [{scale * low:+.{digits}f}, {scale * high:+.{digits}f}]"
    return Text(told, style=style)


def _gain_scale(target: Target) -> tuple[str, float]:
    """The unit of gains, and its scale."""
    name = next(name for name in GAINS if name in metrics_of(target))
    return ("points", 100.0) if name == "accuracy" else (f"{metrics_of(target)[name].title}, in nats", 1.0)


def size(count: float | None) -> str:
    """Readable bytes; a dash where there are none to tell of."""
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def clients(result: Result) -> Table:
    """Each client's metrics with its personal model, beside Local if it was run."""
    title, frame, target = result.method.about.title, result.clients, result.federation.target
    main, *others = headline(target, 3)
    compared, values = result.reference is not None, result.values
    what = f"test {main.title}" + (" (%)" if main.unit == "%" else "")
    table = plain_table(
        f"{title}: {what} of each personal model, {result.method.moment}{_chosen(result)}", _caption(result)
    )
    headings = ["client", "train", "test", *(["Local"] if compared else []), title, *(heading(m) for m in others)]
    for name in headings:
        table.add_column(name, justify="left" if name == "client" else "right", no_wrap=True)
    if compared:
        table.add_column("gain [95 %]", justify="right", no_wrap=True)
    scale = _gain_scale(target)[1]
    for client, row in frame.head(SHOWN).iterrows():
        own = values[str(client)]
        cells: list[str | Text] = [_name(client), str(int(row["train"])), str(int(row["test"]))]
        cells += [_value(main, result.reference.values[str(client)])] if result.reference is not None else []
        cells += [_value(metric, own) for metric in (main, *others)]
        cells += (
            [signed(row["gain"], row["gain_low"], row["gain_high"], scale, tested=row["test"] > 0)] if compared else []
        )
        table.add_row(*cells)
    if len(frame) > SHOWN:
        table.add_row(f"… {len(frame) - SHOWN} more")
    table.add_section()
    cells = ["mean", str(int(frame["train"].sum())), str(int(frame["test"].sum()))]
    cells += [_mean(main, result.reference.scores)] if result.reference is not None else []
    cells += [_mean(metric, result.scores) for metric in (main, *others)]
    cells += [_gained(result)] if compared else []
    table.add_row(*cells, style="bold")
    return table


def _name(client: object) -> Text:
    return Text(on_screen(client))


def _value(metric: Metric, values: Mapping[str, Value]) -> str:
    return shown(metric, values.get(metric.name))


def _gained(result: Result) -> Text:
    """The mean gain."""
    found, scale = result.gain(), _gain_scale(result.federation.target)[1]
    return signed(found.mean, found.mean_low, found.mean_high, scale, tested=any(result.federation.test.size))


def _mean(metric: Metric, scores: Mapping[str, Any], of: str = "mean") -> str:
    """A number of the cohort; if no client diverged, nan means that it is undefined for all."""
    value = scores[metric.name][of]
    if scores.get("diverged"):
        return "diverged"
    return shown(metric, None if value is None or math.isnan(value) else value)


def _chosen(result: Result) -> str:
    """The round that the models come from."""
    rounds = result.summary["last"]["round"]
    return "" if result.selected == rounds else f", of round {result.selected} of {rounds}"


def _caption(result: Result) -> str | None:
    if result.reference is None:
        return None
    found, (unit, _) = result.gain(), _gain_scale(result.federation.target)
    return (
        f"{title_of(result)} beats Local at {found.helped:.0%} of the clients and loses at {found.harmed:.0%}. "
        f"Gains in {unit}; intervals by paired bootstrap over {found.over}, for this one training run. Each method's "
        f"models are those of {source([result.summary])}."
    )


def title_of(result: Result) -> str:
    """The method's display name."""
    return result.method.about.title


def comparison(results: Mapping[str, Result], *, wide: bool = True) -> Table:
    """One row per method: its selected personal models on the clients' test splits; fewer columns if not wide."""
    first = next(iter(results.values()))
    rounds, target = first.summary["rounds"], first.federation.target
    main, *others = headline(target)
    unit, name = _gain_scale(target)[0], on_screen(first.federation.name)
    table = plain_table(
        f"{name}: personal models of {len(first.federation)} clients, {rounds} rounds, test split",
        f"{SHORT.get(main.name, main.title)}: mean ± std over clients; gain over Local in {unit}, 95 % paired "
        "bootstrap over test examples; helps: share of clients that gain"
        + (
            "; worst: mean of the worst tenth; global: the shared model; sent: bytes per round; round: chosen by "
            "validation NLL."
            if wide
            else "."
        ),
    )
    headings = [*(heading(metric) for metric in (main, *others)), "gain [95 %]", "helps"]
    headings += ["worst", "global", "sent", "round", "time"] if wide else []
    table.add_column("method", no_wrap=True)
    for name in headings:
        table.add_column(name, justify="right", no_wrap=True)
    for result in results.values():
        table.add_row(title_of(result), *_scores(result), *(_extras(result) if wide else []))
    return table


def by_client(results: Mapping[str, Result]) -> Table:
    """One row per client, one column per method: the main metric, marked where it clearly differs from Local's."""
    first = next(iter(results.values()))
    main = main_metric(first.federation.target)
    table = plain_table(
        f"Test {main.title}{' (%)' if main.unit == '%' else ''} of each client's personal model",
        f"▲ ▼: the 95 % interval of the gain over Local in {_gain_scale(first.federation.target)[0]} (paired bootstrap "
        "over test examples) lies above or below zero.",
    )
    for name in ("client", "train", *(title_of(result) for result in results.values())):
        table.add_column(name, justify="left" if name == "client" else "right", no_wrap=True)
    for i, client in enumerate(first.federation.clients[:SHOWN]):
        train = str(first.federation.train.size[i])
        table.add_row(_name(client), train, *(_marked(main, result, client) for result in results.values()))
    if len(first.federation) > SHOWN:
        table.add_row(f"… {len(first.federation) - SHOWN} more")
    return table


def _marked(main: Metric, result: Result, client: str) -> Text:
    row: Any = result.clients.loc[client]
    low, high = row.get("gain_low", 0.0), row.get("gain_high", 0.0)
    mark, style = ("▲", "green") if low > 0 else ("▼", "red") if high < 0 else (" ", "")
    return Text(f"{_value(main, result.values[client])}{mark}", style=style)


def _scores(result: Result) -> list[str | Text]:
    target = result.federation.target
    main, *others = headline(target)
    scores = result.scores
    mean = _mean(main, scores)
    cells: list[str | Text] = [mean if scores.get("diverged") else f"{mean} ± {_mean(main, scores, 'std')}"]
    cells += [_mean(metric, scores) for metric in others]
    if result.reference is None:
        return [*cells, "", ""]
    helped = result.gain().helped
    return [*cells, _gained(result), f"{helped:.0%}" if math.isfinite(helped) else "–"]


def _extras(result: Result) -> list[str]:
    main, rounds = main_metric(result.federation.target), result.summary["last"]["round"]
    shared, sent = result.summary["selected"].get("global"), result.summary["bytes"]
    return [
        _mean(main, result.scores, "worst_decile"),
        _mean(main, shared["test"]) if shared else "–",
        size((sent["up"] + sent["down"]) / rounds),
        str(result.selected),
        f"{result.summary['timing']['seconds']:.1f} s",
    ]


def methods() -> Table:
    """All methods, grouped; papers in full are in the JSON and the documentation."""
    table = plain_table("Methods", f"up, down: bytes of one client's messages per round for {REFERENCE}")
    for name in ("group", "name", "method", "venue", "up", "down", "personal"):
        table.add_column(name, justify="right" if name in ("up", "down") else "left", no_wrap=name != "personal")
    group = ""
    for entry in catalogue():
        told = "" if entry["group"] == group else entry["group"]
        if told:
            table.add_section()
        group = entry["group"]
        venue = f"{entry['paper'].rpartition(', ')[2]} {entry['year']}" if ", " in entry["paper"] else ""
        sent = size(entry["bytes_up"]), size(entry["bytes_down"])
        table.add_row(told, entry["name"], entry["title"], venue, *sent, entry["personal"])
    return table


def options(found: list[Option]) -> Table:
    """Options of a method, one row each."""
    table = plain_table("Options", "give one as method.OPTION=value, in a comparison as methods.NAME.OPTION=value")
    for name in ("option", "default", "range", "meaning"):
        table.add_column(name, no_wrap=name == "option")
    for option in found:
        table.add_row(*(Text(cell) for cell in option))
    return table


def federation(data: Federation) -> Table:
    """Sizes of every client, and its labels in training: counts of classes, or the mean and deviation of a number."""
    what, column, labels = _labels(data)
    table = plain_table(f"{on_screen(data.name)}: {len(data)} clients, {what}, inputs {data.shape}")
    for name in ("client", *SPLITS, column):
        table.add_column(name, justify="left" if name in ("client", column) else "right")
    for i, client in enumerate(data.clients[:SHOWN]):
        table.add_row(_name(client), *(str(data.split(s).size[i]) for s in SPLITS), Text(labels[i]))
    if len(data) > SHOWN:
        table.add_row(f"… {len(data) - SHOWN} more")
    return table


def _labels(data: Federation) -> tuple[str, str, list[str]]:
    """What is predicted, the name of the column, and its cells for the clients that are shown."""
    if isinstance(data.target, Classes):
        counts = data.label_counts()
        rows = (counts.iloc[i].items() for i in range(min(SHOWN, len(counts))))
        cells = ["  ".join(f"{on_screen(label, LABEL)}:{count}" for label, count in row if count) for row in rows]
        return f"{len(counts.columns)} labels", "labels in training", cells
    cells = [f"{y.mean():.4g} ± {y.std():.3g}" for y in data.labels("train")[:SHOWN]]
    return f"a {data.target.kind} to predict", "target in training, mean ± deviation", cells
