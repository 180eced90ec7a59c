"""What a method learned about each site, and what the server holds: the numbers that it logs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedprior.bayes.effects import INTERCEPT
from fedprior.experiment.wording import title
from fedprior.names import apart, on_screen
from fedprior.report.charts import outcomes, palette
from fedprior.report.page.blocks import Block, Choice, Column, Details, Figure, Prose, Side, Table
from fedprior.report.page.facts import RunFacts, Story

HIDDEN = ("round", "client", "updated", "loss")
DRAWN = 6
"""Logs of a method that are drawn; its table has all."""
SHARE = ".weight"
"""The ending of an expert's weight, which the chart of all experts' weights shows."""
MEANING = {
    "tau": "τ, the weight of the site's posterior at the server",
    "rho": "ρ, deviation of the site's prior",
    "deviation": "distance of the site's model from the prior's mean",
    "beta": "β, weight of the site's own means (0: the shared ones)",
    "beta_covariance": "β, weight of the site's own covariance (0: the shared one)",
    "log_omega": "log ω, weight of the site at the server",
    "mask_share": "share of the parameters that are personal",
    "within": "median variance of a weight",
    "kl": "KL divergence of the site's posterior from the prior",
    "self_weight": "weight of the site's own model",
    "largest_weight": "largest weight of a component",
    "centre_shift": "shift of the prior's centre",
    "temperature": "temperature of the predictions",
}
"""The numbers that methods log, in words."""


def learned(story: Story) -> list[Block]:
    """Method by method, the one that is shown first."""
    runs = {run.title: _blocks(run) for run in story.runs.values()}
    runs = {title: blocks for title, blocks in runs.items() if blocks}
    shown = story.runs[story.shown].title
    if not runs:
        return []
    once: list[Block] = [Prose("On the first split.", "note")] if story.splits > 1 else []
    return [*once, Choice("Method:", runs, shown if shown in runs else next(iter(runs)))]


def _blocks(run: RunFacts) -> list[Block]:
    rows = run.logs()
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if not _hidden(name)]
    names = [name for name in names if any(_known(row, name) for row in rows)]
    blocks: list[Block] = []
    if names:
        sites = apart(row["client"] for row in rows)
        drawn = [name for name in names if not name.endswith(SHARE)]
        figures = [_figure(run, rows, sites, name) for name in drawn[:DRAWN]]
        columns = [Column("site"), *(Column(_title(name), 4) for name in names), Column("last update in round", 0)]
        told = [[sites[i], *(row.get(n) for n in names), row["updated"]] for i, row in enumerate(rows)]
        blocks = [Side(figures), Details("All sites in numbers", [Table(columns, told)])]
    return [*_explained(run), *blocks, *_server(run)]


def _explained(run: RunFacts) -> list[Block]:
    """What the method itself says of what it learned."""
    found = (run.summary or {}).get("explanation") or {}
    blocks: list[Block] = [Prose(told) for told in found.get("sentences", [])]
    for name, rows in found.get("tables", {}).items():
        if rows:
            blocks += [
                *_shares(run, name, rows),
                *_effects(run, name, rows),
                Details(f"In numbers: {on_screen(name)}", [_table(rows)]),
            ]
    return blocks


def _table(rows: list[dict[str, Any]]) -> Block:
    numbers = {name for row in rows for name, value in row.items() if isinstance(value, float)}
    columns = [Column(on_screen(name), 3 if name in numbers else None) for name in rows[0]]
    told = [[value if isinstance(value, float) else _text(value) for value in row.values()] for row in rows]
    return Table(columns, told)


def _text(value: object) -> str | None:
    return None if value is None else on_screen(value)


def _shares(run: RunFacts, name: str, rows: list[dict[str, Any]]) -> list[Block]:
    """Weights that add up to one at every site are drawn."""
    names = [key for key, value in rows[0].items() if isinstance(value, float) and key != "temperature"]
    whole = all(math.isclose(sum(_of(row, names)), 1, abs_tol=1e-3) for row in rows)
    if "site" not in rows[0] or len(names) < 2 or not whole:
        return []
    shown, sites = apart(names), apart(row["site"] for row in rows)
    drawn = [
        {"site": sites[i], "series": shown[k], "value": row[key], "place": k}
        for i, row in enumerate(rows[: outcomes.DRAWN])
        for k, key in enumerate(names)
    ]
    first = f"The first {outcomes.DRAWN} of {len(rows):,} are drawn." if len(rows) > outcomes.DRAWN else ""
    return [Figure(outcomes.shares(drawn, palette(shown)), f"{run.title}: {on_screen(name)}", first)]


def _effects(run: RunFacts, name: str, rows: list[dict[str, Any]]) -> list[Block]:
    """Estimates with intervals are drawn, but for intercepts, whose scale is another."""
    if not {"estimate", "low", "high"} <= rows[0].keys():
        return []
    kept = [row for row in rows if INTERCEPT not in row.values() and row["estimate"] is not None]
    labels = apart(" · ".join(on_screen(v) for v in row.values() if isinstance(v, str)) for row in kept)
    drawn = [
        {"site": label, "value": row["estimate"], "low": row["low"], "high": row["high"]}
        for label, row in zip(labels, kept, strict=True)
    ]
    told = f"{outcomes.DRAWN} of {len(drawn):,} are drawn, half from each end." if len(drawn) > outcomes.DRAWN else ""
    return [Figure(outcomes.effects(drawn), f"{run.title}: {on_screen(name)}", told)] if drawn else []


def _of(row: dict[str, Any], names: list[str]) -> list[float]:
    return [row[name] if isinstance(row[name], float) else math.nan for name in names]


def _hidden(name: str) -> bool:
    """What every method logs, and those that a method of methods has within."""
    return name in HIDDEN or name.endswith(".loss")


def _known(row: Mapping[str, Any], name: str) -> bool:
    return row.get(name) is not None and math.isfinite(row[name])


def _title(name: str) -> str:
    method, dot, own = name.rpartition(".")
    told = MEANING.get(own, on_screen(own).replace("_", " "))
    return f"{title(method)}: {told}" if dot else told


def _figure(run: RunFacts, rows: list[dict[str, Any]], sites: list[str], name: str) -> Block:
    drawn = [{"site": sites[i], "value": row[name]} for i, row in enumerate(rows) if _known(row, name)]
    return Figure(outcomes.learned(drawn, on_screen(name)), f"{run.title}: {_title(name)}", outcomes.cut(drawn, name))


def _server(run: RunFacts) -> list[Block]:
    """The single numbers of the server's state."""
    rounds = [event for event in run.trained if event["round"] == run.selected]
    found = rounds[0].get("server", {}) if rounds else {}
    rows = [[on_screen(name), value] for name, value in found.items() if value is not None]
    return [
        Details("The shared prior in numbers", [Table([Column("of the server"), Column("value", 4)], rows)])
    ] * bool(rows)
