"""A verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedprior.errors import FedpriorError
from fedprior.experiment.verdict import POOLED, SITE_EFFECTS, Effect, Interval, SiteVerdict
from fedprior.methods import build
from fedprior.metrics import SELECTS
from fedprior.names import on_screen

NAMED = 6
"""Sites that a sentence names."""
REFERENCES = {
    POOLED: "a regression on the pooled rows",
    SITE_EFFECTS: "a regression on the pooled rows with an effect per site",
}
Means = Mapping[str, Mapping[str, float]]


def title(name: str) -> str:
    """A method's name for people."""
    if name in REFERENCES:
        return REFERENCES[name]
    try:
        return build(name).about.title
    except FedpriorError:
        return on_screen(name)


def sentences(
    best: str | None,
    judged: str | None,
    methods: Means,
    sites: Mapping[str, SiteVerdict],
    mean: Interval | None = None,
) -> str:
    """Whom federation helps and harms, what to use, and whether a reference does better."""
    if best is None:
        return "No method has a validation NLL to be chosen by: give more rows, or a larger share for validation."
    if judged is None:
        return f"Use {title(best)}: no other method was compared."
    by = {effect: [name for name, site in sites.items() if site.verdict == effect] for effect in _EFFECTS}
    low, high = (0.0, 0.0) if mean is None or len(sites) < 2 else (mean.low, mean.high)
    parts = [_whom("helps", by["helps"], len(sites) if low > 0 else 0) or "helps no site for certain"]
    if by["no difference"]:
        everyone = not by["helps"] and not by["harms"] and not by["cannot tell"]
        parts += [] if everyone else [f"no evidence for {_listed(by['no difference'])}"]
    if by["cannot tell"]:
        told = [f"{on_screen(name)} (n = {sites[name].n_test})" for name in by["cannot tell"]]
        parts.append(f"cannot tell for {_joined(told)}")
    parts.append(_whom("harms", by["harms"], len(sites) if high < 0 else 0) or "harms nobody")
    lead = "Federation" if best == judged else f"Federation by {title(judged)}, the best method after Local,"
    said = [f"{lead} {'; '.join(parts)}.", *_average(mean, len(sites))]
    return " ".join([*said, f"Use {title(best)} (chosen on validation).", *_beaten(methods)])


def _whom(does: str, names: list[str], together: int) -> str:
    """The sites for which it is certain, or else all `together`; nothing where it is neither."""
    if names:
        return f"{does} {_listed(names)}"
    return f"{does} the {together} sites on average, but no single one for certain" if together else ""


def _average(mean: Interval | None, sites: int) -> list[str]:
    if mean is None or math.isnan(mean.low) or sites < 2:
        return []
    return [f"On average over {sites} sites it gains {mean.mean:+.3f} [{mean.low:+.3f}, {mean.high:+.3f}] in NLL."]


_EFFECTS: tuple[Effect, ...] = ("helps", "harms", "no difference", "cannot tell")


def _beaten(methods: Means) -> list[str]:
    """Whether a reference has a lower NLL than every method, by the digits that are told."""
    scores = {name: round(metrics[SELECTS], 3) for name, metrics in methods.items()}
    ours = min((score for name, score in scores.items() if name not in REFERENCES), default=float("nan"))
    better = [name for name in REFERENCES if scores.get(name, float("inf")) < ours]
    if not better:
        return []
    name = min(better, key=scores.__getitem__)
    told = f"with an NLL of {scores[name]:.3f} against {ours:.3f}; it needs all rows in one place"
    return [f"On the test rows, {REFERENCES[name]} beats every method, {told}."]


def _listed(names: list[str]) -> str:
    return _joined([on_screen(name) for name in names])


def _joined(told: list[str]) -> str:
    if len(told) > NAMED:
        return f"{', '.join(told[: NAMED - 1])} and {len(told) - NAMED + 1} more"
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def privacy(summary: Mapping[str, Any]) -> list[str]:
    """What a run with `+dp` promises, from its summary; nothing where nothing is promised."""
    found = summary.get("privacy")
    if not found:
        return []
    spent = ", ".join(f"ε = {value:.3g} at δ = {delta}" for delta, value in found["epsilon_at_delta"].items())
    return [f"Differential privacy of {found['covers']}: {spent}. Metrics, logs and personal models are not covered."]
