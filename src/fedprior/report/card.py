"""A model card in Markdown: what a site's model is, what it was trained on, how good it is, and what it is not for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from scipy.stats import binomtest

from fedprior.data.schema import Schema
from fedprior.data.target import Classes
from fedprior.errors import FedpriorError
from fedprior.experiment.assessment import LOCAL
from fedprior.experiment.joining import FOLDER as JOINED
from fedprior.experiment.opened import find_model, run_folder, sites_of, summary_of
from fedprior.experiment.personal import PersonalModel
from fedprior.experiment.verdict import FILE as VERDICT
from fedprior.experiment.verdict import Effect, SiteVerdict, Verdict
from fedprior.files import write_text
from fedprior.metrics import Metric, metrics_of, shown
from fedprior.names import on_screen

PROPORTIONS = ("accuracy", "coverage50", "coverage90")
"""Metrics that are shares of the test rows, and so have an interval of their own."""
CALIBRATION = {
    "ece": "the mean distance between predicted and observed shares; 0 is ideal, and few rows alone make it larger",
    "coverage50": "the share of rows inside their 50 % interval; 50 is ideal",
    "coverage90": "the share of rows inside their 90 % interval; 90 is ideal",
}
WORDS: Mapping[Effect, str] = {
    "helps": "Federation helps this site",
    "harms": "Federation harms this site",
    "no difference": "No difference to training alone was found",
    "cannot tell": "It cannot be told whether federation helps this site",
}
_MARKS = re.compile(r"([\\`*_{}\[\]<>()#+.!|~&$:@-])")


def write_cards(place: Path, site: str | None = None, method: str | None = None) -> list[Path]:
    """Write the card of one site, or of all, beside its model."""
    folder, written = run_folder(place, method), []
    for name in sites_of(folder) if site is None else [site]:
        _, path = find_model(folder, name)
        written.append(path.with_suffix(".md"))
        write_text(written[-1], card(place, name, method))
    if not written:
        raise FedpriorError(f"'{folder}' holds no models: run it again.")
    return written


def card(place: Path, site: str, method: str | None = None) -> str:
    """One site's card, from what lies in the folder of a run or comparison."""
    folder = run_folder(place, method)
    model, path = find_model(folder, site)
    summary = summary_of(folder)
    parts = [_heading(model, summary), _data(model, summary)]
    if path.parent.name == JOINED:
        parts.append(_joined(json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))))
    else:
        parts += [_quality(model, summary), _federation(_verdict(place, folder, site), folder.name, site, summary)]
    return _joined_parts([*parts, _limits(model), _use(model, path)])


def card_at_site(model: PersonalModel, path: Path, summary: Mapping[str, Any]) -> str:
    """The card of a model that was trained at its own site, from what the site knows."""
    parts = [_heading(model, summary), _data(model, summary), _quality(model, summary)]
    parts += [_federation(None, model.method.about.name, model.client, summary), _limits(model), _use(model, path)]
    return _joined_parts(parts)


def _joined_parts(parts: Sequence[Sequence[str]]) -> str:
    return "\n".join(line for part in parts for line in [*part, ""])


def plain(name: object) -> str:
    """A name in which Markdown sees no mark and no HTML."""
    return _MARKS.sub(r"\\\1", on_screen(name))


def _heading(model: PersonalModel, summary: Mapping[str, Any]) -> list[str]:
    about = model.method.about
    return [
        f"# Model of {plain(model.client)}",
        "",
        f"A personal model made by {plain(about.title)} ({plain(about.paper)}) in a federation of "
        f"{len(summary['clients'])} sites, with fedprior {plain(summary['version'])}. Personal is: {about.personal}. "
        f"The network is {plain(summary['model'].get('name'))} with {summary['parameters']:,} parameters, after round "
        f"{summary['selected']['round']} of {summary['rounds']} ({summary['selected'].get('by', 'the last round')}), "
        f"seed {summary['seed']}.",
    ]


def _data(model: PersonalModel, summary: Mapping[str, Any]) -> list[str]:
    row = next((row for row in summary["clients"] if row["client"] == model.client), None)
    lines = ["## Data", ""]
    if row is not None:
        lines += [f"{row['train']} training rows and {row['test']} test rows of this site.", ""]
    schema = None if model.encoder is None else model.encoder.schema
    if schema is not None:
        return lines + _columns(schema)
    pictured = model.encoder is not None and model.encoder.takes_pixels
    return [*lines, *(_images(model) if pictured else ["Inputs are arrays without names."])]


def _images(model: PersonalModel) -> list[str]:
    assert model.shape is not None, "the file of a model of images says it"
    assert isinstance(model.target, Classes), "folders name classes"
    channels, height, width = model.shape
    colours = "in colour" if channels == 3 else "in grey"
    levels = ", ".join(plain(level) for level in model.target.levels)
    return [f"Inputs are images {colours}, resized to {height} × {width} pixels. Predicted: one of {levels}."]


def _columns(schema: Schema) -> list[str]:
    target = schema.target
    names = [plain(level) for level in target.levels] if isinstance(target, Classes) else []
    levels = f"one of {', '.join(names)}" if names else f"a {target.kind}"
    lines = [
        f"Predicted: {plain(schema.target_name)}, {levels}.",
        "",
        "| column | kind | may be missing |",
        "| --- | --- | --- |",
    ]
    for column in schema.used:
        kind = f"category, {len(column.levels)} levels" if column.kind == "category" else column.kind
        lines.append(f"| {plain(column.name)} | {kind} | {'yes' if column.missing else 'no'} |")
    if schema.left_out:
        lines += ["", f"Not used: {', '.join(plain(name) for name in schema.left_out)}."]
    return lines


def _quality(model: PersonalModel, summary: Mapping[str, Any]) -> list[str]:
    """The site's metrics on its test rows."""
    row = next(row for row in summary["clients"] if row["client"] == model.client)
    lines = ["## Quality on the site's test rows", "", "| metric | value | 95 % interval |", "| --- | --- | --- |"]
    for metric in metrics_of(_target(model)).values():
        if metric.name in row:
            lines.append(
                f"| {metric.title}{unit(metric)} | {shown(metric, row[metric.name])} | {_interval(metric, row)} |"
            )
    told = [f"* {name}: {CALIBRATION[name]}." for name in CALIBRATION if name in row]
    return [
        *lines,
        "",
        "Intervals are Wilson's, over the test rows of one training run.",
        "",
        "Calibration:",
        "",
        *told,
    ]


def _target(model: PersonalModel) -> Any:
    from fedprior.data.target import Count, Number
    from fedprior.models.likelihood import Categorical, Counts

    likelihood = model.method.task.likelihood
    if isinstance(likelihood, Categorical):
        return Classes.numbered(likelihood.classes)
    return Count() if isinstance(likelihood, Counts) else Number()


def unit(metric: Metric) -> str:
    """What stands behind a metric's name."""
    return " (%)" if metric.unit == "%" else " (nats)" if metric.unit == "nats" else ""


def _interval(metric: Metric, row: Mapping[str, Any]) -> str:
    value, n = row[metric.name], int(row["test"])
    if metric.name not in PROPORTIONS or value is None or not n:
        return ""
    found = binomtest(round(value * n), n).proportion_ci(0.95, "wilson")
    return f"{100 * found.low:.1f} to {100 * found.high:.1f}"


def _verdict(place: Path, folder: Path, site: str) -> SiteVerdict | None:
    """What a comparison says of the site, if this is the method that it recommends."""
    if not (place / VERDICT).is_file():
        return None
    found = Verdict.read(place)
    return found.sites.get(site) if found.recommended == folder.name else None


def _federation(verdict: SiteVerdict | None, method: str, site: str, summary: Mapping[str, Any]) -> list[str]:
    """What federation gave the site, by the verdict of the comparison or by the run's own reference."""
    lines = ["## What federation gave this site", ""]
    if method == LOCAL:  # whose verdict, if any, is that of the best of the others
        lines += ["Nothing: the model was trained on the site's own rows alone.", ""]
        best = None if verdict is None or not math.isfinite(verdict.gain_nll.mean) else verdict
        return lines if best is None else [*lines, f"The best federated method: {_gain(best)}"]
    if verdict is not None:
        told = _gain(verdict) if math.isfinite(verdict.gain_nll.mean) else f"{verdict.n_test} test rows."
        return [*lines, f"{WORDS[verdict.verdict]}: {told}"]
    row = next(row for row in summary["clients"] if row["client"] == site)
    if row.get("gain") is None:
        return [*lines, "Not measured: the run was not compared with Local."]
    scale, unit = (100, "points of accuracy") if "accuracy" in row else (1, "nats")
    mean, low, high = (scale * float(row[name]) for name in ("gain", "gain_low", "gain_high"))
    return [
        *lines,
        f"Gain over training alone: {mean:+.1f} [{low:+.1f}, {high:+.1f}] {unit}, paired bootstrap over test rows.",
    ]


def _gain(verdict: SiteVerdict) -> str:
    mean, low, high = verdict.gain_nll
    return f"gain in NLL over Local {mean:+.3f} [{low:+.3f}, {high:+.3f}], {verdict.n_test} test rows."


def _joined(document: Mapping[str, Any]) -> list[str]:
    lines = [
        "## Quality",
        "",
        f"This site joined after training, with {document['rows']} rows; none was left for a test.",
    ]
    curve = document.get("curve")
    return lines if curve is None else [*lines, f"{curve['text']} The curve is in the JSON file beside the model."]


def _limits(model: PersonalModel) -> list[str]:
    return [
        "## Limits",
        "",
        f"* It is made for {plain(model.client)} as it was in training; elsewhere or later it may be wrong without "
        "notice. `fedprior predict` flags rows unlike the training data, one column at a time.",
        "* It was judged on rows of the same site and period. It has not been validated on other data, and it is not a "
        "medical device.",
        "* Probabilities are as good as the calibration above, and intervals do not cover the choice of the seed.",
        "* It was trained on the site's own rows and may reveal something about them: share it with the same care.",
    ]


def _use(model: PersonalModel, path: Path) -> list[str]:
    pictured = model.encoder is not None and model.encoder.takes_pixels
    given = "images/" if pictured else "patients.csv"
    call = "model.predict(table)  # a DataFrame with the columns above, in any order"
    return [
        "## Use",
        "",
        "```python",
        f'model = fedprior.load_model("{path.name}")',
        f"model.predict(x, raw=True)  # levels of 0 to 255, {['n', *(model.shape or ())]}" if pictured else call,
        "```",
        "",
        f"On the command line: `fedprior predict {quote(path.name)} {given}`.",  # no name has a backtick
    ]
