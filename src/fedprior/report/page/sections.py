"""The sections of a report, each from what the runs tell; a section without anything to say is left out."""

from __future__ import annotations

import math
from typing import Any

from fedprior.data.target import Classes
from fedprior.experiment.selection import FITTED, source
from fedprior.experiment.wording import privacy
from fedprior.metrics import SELECTS, Metric
from fedprior.names import apart
from fedprior.report.charts import outcomes, palette
from fedprior.report.page import federation, origin
from fedprior.report.page.blocks import Block, Choice, Column, Details, Figure, Prose, Section, Side, Table
from fedprior.report.page.document import Page
from fedprior.report.page.facts import RunFacts, Story
from fedprior.report.page.learned import learned
from fedprior.report.tables import size

SHOWN = ("nll", "accuracy", "auroc", "rmse", "ece", "mae", "r2", "coverage90")
"""The metrics of a page's tables, if the target has them; files have all."""
CURVES = 8
"""Methods that a chart of curves has colours for; beyond, those with the lowest validation NLL are drawn."""
ONCE = "Lines are 95 % intervals over test examples, for this one training run."
REPEATED = (
    "Lines are 95 % intervals over splits and test examples, one site at a time; the verdicts allow for the number of "
    "sites (Benjamini-Hochberg, 5 %), and may be more cautious."
)
FAR = 10
"""A value is not drawn if it is as many times farther from the least as three quarters of all are."""
RELIABLE = 6
"""Methods that a chart of reliability has room for."""


def report(story: Story) -> Page:
    """The page of a run or comparison."""
    sections = [
        Section("What to make of it", verdict(story)),
        Section("What each site gains", gains(story)),
        Section("Learning curves", curves(story)),
        Section("Are the predictions as sure as they should be?", reliability(story)),
        Section("How the sites differ", [] if story.data is None else federation.blocks(story.data)),
        Section("What the method learned about each site", learned(story)),
        Section("What was sent", traffic(story)),
        Section("How it was run", origin.blocks(story)),
    ]
    return Page(story.title, origin.note(story), sections)


def verdict(story: Story) -> list[Block]:
    """The answer in words, and the methods in numbers."""
    told = story.text if story.finished else origin.progress(story)
    diverged = [run.title for run in story.runs.values() if run.diverged()]
    blocks: list[Block] = [Prose(told, "lead")]
    if diverged:
        blocks.append(Prose(f"Training diverged at some sites: {', '.join(diverged)}. Lower train.lr.", "warning"))
    return [*blocks, *_methods(story)]


def _shown(story: Story) -> list[Metric]:
    """Without R² over several splits: it divides by the variance of a site's test rows, which a split has few of."""
    several = story.splits > 1
    return [story.metrics[name] for name in SHOWN if name in story.metrics and not (several and name == "r2")]


def _methods(story: Story) -> list[Block]:
    metrics = _shown(story)
    if not metrics:
        return []
    compared = any(run.mean for run in story.runs.values())
    columns = [Column("method"), Column("validation NLL", 3), *(Column(_heading(m), _digits(m)) for m in metrics)]
    columns += [Column("NLL gain [95 %]", 3, signed=True)] * compared
    columns += [Column("round", 0), Column("time, s", 1)]
    rows = [_method(run, metrics, compared=compared) for run in story.runs.values()]
    for row, name in zip(rows, story.runs, strict=True):
        row[0] += " (recommended)" if len(rows) > 1 and name == story.recommended else ""
    for name, values in story.references.items():
        rows.append(
            [
                name,
                None,
                *(_scaled(m, values.get(m.name)) for m in metrics),
                *[None] * (len(columns) - 2 - len(metrics)),
            ]
        )
    chosen = source(run.summary for run in story.runs.values() if run.summary is not None)
    told = f"Means over sites on their test examples, with the models of {chosen}; {FITTED}"
    if compared:
        told += "; NLL gain: over Local, positive is better, with its 95 % interval"
    return [Table(columns, rows, f"{told}.")]


def _method(run: RunFacts, metrics: list[Metric], *, compared: bool) -> list[Any]:
    row: list[Any] = [run.title, run.score(SELECTS, "validation"), *(_scaled(m, run.score(m.name)) for m in metrics)]
    row += [run.mean.get(SELECTS)] * compared
    seconds = sum(event["seconds"] for event in run.trained)
    return [*row, run.selected, seconds]


def _heading(metric: Metric) -> str:
    return f"{metric.title}, %" if metric.unit == "%" else metric.title


def _digits(metric: Metric) -> int:
    return 1 if metric.unit == "%" else 3


def _scaled(metric: Metric, value: float | None) -> float | None:
    return value if value is None or metric.unit != "%" else 100 * value


def gains(story: Story) -> list[Block]:
    """Site by site, for the method that the reader chooses; without Local, the metrics alone."""
    runs = {run.title: _site_blocks(run, story) for run in story.runs.values() if run.sites or not _compared(story)}
    runs = {title: blocks for title, blocks in runs.items() if blocks}
    shown = story.runs[story.shown].title
    return [Choice("Method:", runs, shown if shown in runs else next(iter(runs)))] if runs else []


def _compared(story: Story) -> bool:
    return any(run.sites for run in story.runs.values())


def _site_blocks(run: RunFacts, story: Story) -> list[Block]:
    values = run.values()
    if not values:
        return []
    shown = dict(zip(values, apart(values), strict=True))
    blocks: list[Block] = []
    if run.sites:
        rows = [
            {"site": shown[site], "series": own.verdict, "n": own.n_test}
            | dict(zip(("gain", "low", "high"), own.gain_nll, strict=True))
            for site, own in run.sites.items()
        ]
        told = f"{REPEATED if story.splits > 1 else ONCE} {outcomes.cut(rows, 'gain')}"
        title = f"{run.title}: gain of each site over training alone"
        blocks.append(Figure(outcomes.gains(rows, "NLL in nats"), title, told))
    return [*blocks, _site_table(run, story, shown)]


def _site_table(run: RunFacts, story: Story, shown: dict[str, str]) -> Block:
    metrics = _shown(story)
    others = dict.fromkeys(name for own in run.sites.values() for name in own.gains)
    columns = [Column("site"), *([Column("verdict"), Column("NLL gain [95 %]", 3, signed=True)] if run.sites else [])]
    for name in others:
        metric = story.metrics[name]
        unit = ", points" if metric.unit == "%" else ""
        columns.append(Column(f"{metric.title} gain{unit}", _digits(metric), signed=True))
    columns += [Column("test examples", 0), *(Column(_heading(m), _digits(m)) for m in metrics)]
    rows = []
    for site, row in run.values().items():
        own = run.sites.get(site)
        cells: list[Any] = [shown[site], *([own.verdict, own.gain_nll] if own is not None else [])]
        for name in others:
            cells.append(None if own is None else [_scaled(story.metrics[name], v) for v in own.gains[name]])
        rows.append([*cells, row["examples"], *(_scaled(m, row.get(m.name)) for m in metrics)])
    return Table(columns, rows)


def curves(story: Story) -> list[Block]:
    """The NLL, which chooses the round, and the main metric."""
    drawn = _drawn(story)
    wanted = dict.fromkeys([SELECTS, *([story.main.name] if story.main else [])])
    figures = [figure for name in wanted if (figure := _curve(story, drawn, name)) is not None]
    if not figures:
        return []
    told = "Solid: validation. Dashed: test, which chooses nothing. Ring: the round that validation chose."
    more = f" {len(drawn)} of {len(story.runs)} methods are drawn." if len(drawn) < len(story.runs) else ""
    return [
        Prose(f"Means over sites{_first(story)}. {told}{more} Click a method in the legend to see it alone.", "note"),
        Side(figures),
    ]


def _first(story: Story) -> str:
    """That a block tells of one split only, where there are more."""
    return ", on the first split" if story.splits > 1 else ""


def _drawn(story: Story) -> list[RunFacts]:
    """The runs that have a colour."""
    scores = {name: run.score(SELECTS, "validation") for name, run in story.runs.items()}
    best = sorted(story.runs, key=lambda name: math.inf if scores[name] is None else float(scores[name] or 0))
    first = [name for name in ("local", story.shown) if name in story.runs]
    kept = list(dict.fromkeys([*first, *best]))[:CURVES]
    return [run for name, run in story.runs.items() if name in kept]


def _colours(story: Story, runs: list[RunFacts]) -> dict[str, str]:
    """A colour per method, the same in every chart; those of the curves come first."""
    every = [*_drawn(story), *story.runs.values()]
    known = palette(list(dict.fromkeys(run.title for run in every)))
    return {run.title: known[run.title] for run in runs}


def _curve(story: Story, runs: list[RunFacts], name: str) -> Block | None:
    metric = story.metrics.get(name)
    if metric is None:
        return None
    rows = [
        {
            "series": run.title,
            "round": event["round"],
            "split": split,
            "value": _scaled(metric, event["personal"][split].get(name, {}).get("mean")),
            "selected": event["round"] == run.selected,
        }
        for run in runs
        for event in run.evaluations
        for split in ("validation", "test")
    ]
    rows = [row for row in rows if row["value"] is not None and math.isfinite(row["value"])]
    if not rows:
        return None
    drawn, told = _within(rows)
    chart = outcomes.curves(drawn, _colours(story, runs), _heading(metric))
    return Figure(chart, metric.title[0].upper() + metric.title[1:], told)


def _within(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The rows without those far above the rest, as of a run that went astray for some rounds; and what is left out."""
    values = sorted(row["value"] for row in rows)
    usual = values[3 * (len(values) - 1) // 4]
    limit = usual + FAR * (usual - values[0])
    kept = [row for row in rows if row["value"] <= limit] if usual > values[0] else rows
    left = len(rows) - len(kept)
    return kept, f"{left} values above {limit:.4g} are not drawn." if left else ""


def reliability(story: Story) -> list[Block]:
    """What was claimed and what came true: of the method shown, of Local, and before and after calibration."""
    pairs = [name for run in story.runs for name in (run.replace("+cal", ""), run) if "+cal" in run]
    wanted = dict.fromkeys(name for name in (story.shown, *pairs, "local") if name in story.runs)
    runs = [run for name in list(wanted)[:RELIABLE] if (run := story.runs[name]).reliability]
    if not runs or story.data is None:
        return []
    target = story.data.target
    claim, truth, told = _claims(target.count if isinstance(target, Classes) else None)
    rows = [{"series": run.title, **point._asdict()} for run in runs for point in run.reliability]
    chart = outcomes.reliability(rows, _colours(story, runs), claim, truth)
    note = "Lines are 95 % intervals (Wilson). Examples of all sites together."
    return [Prose(told), Figure(chart, f"{truth[0].upper()}{truth[1:]} by {claim}", note)]


def _claims(classes: int | None) -> tuple[str, str, str]:
    if classes is None:
        told = "On the dashed line, 70 % intervals hold 70 % of the labels; below it, intervals are too narrow."
        return "level of the interval", "share of labels inside", told
    if classes == 2:
        told = "On the dashed line, what is predicted with 70 % happens in 70 % of the cases."
        return "predicted probability", "observed frequency", told
    told = (
        "On the dashed line, predictions made with 70 % are right in 70 % of the cases; below it, models are too sure."
    )
    return "probability of the predicted class", "accuracy", told


def traffic(story: Story) -> list[Block]:
    """Bytes per round, and in all."""
    runs = [run for run in story.runs.values() if run.trained]
    rows = [
        {"method": run.title, "bytes": run.sent(way), "series": title}
        for run in runs
        for way, title in (("down", "to the sites"), ("up", "to the server"))
    ]
    if not rows:
        return []
    columns = [
        Column("method"),
        Column("to the sites, per round"),
        Column("to the server, per round"),
        Column("in all"),
    ]
    told = [[run.title, size(run.sent("down")), size(run.sent("up")), size(_all(run))] for run in runs]
    setup = 0 if story.data is None else story.data.setup_bytes
    note = [Prose(f"Before the first round, each site sent {size(setup)} for shared scaling.", "note")] * bool(setup)
    promised = [
        Prose(f"{run.title}: {sentence}")
        for run in runs
        if run.summary is not None
        for sentence in privacy(run.summary)
    ]
    figure = Figure(outcomes.traffic(rows), "Bytes per round")
    return [*promised, figure, Details("In numbers", [Table(columns, told)]), *note]


def _all(run: RunFacts) -> float:
    return float(sum(event["bytes_up"] + event["bytes_down"] for event in run.trained))
