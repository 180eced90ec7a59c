"""The end of an experiment at a site: its own model, a summary, a model card and a report, none of which leaves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedprior import __version__
from fedprior.experiment.personal import PersonalModel
from fedprior.files import write_text
from fedprior.flower.agreement import Agreement
from fedprior.flower.codec import encode
from fedprior.flower.refusal import RefusedError
from fedprior.flower.site import Site
from fedprior.guards import spent

MODEL, SUMMARY, CARD, REPORT = "model.safetensors", "summary.json", "model-card.md", "report.html"


def finish(site: Site, agreement: Agreement, selected: int) -> Path:
    """Keep the personal model of the selected round, or the newest before it that this site has."""
    from fedprior.flower.site_report import report  # draws charts: not needed before the end
    from fedprior.report.card import card_at_site

    known = [number for number in site.store.numbers("personal") if number <= selected]
    if not known:
        raise RefusedError("state", f"no personal model was evaluated up to round {selected}.")
    number, folder = known[-1], site.store.folder
    arrays = {
        path: values[0] for path, values in encode(site.store.read("personal", number, site.layouts.personal)).items()
    }
    context, about = site.context, described(site, agreement)
    (client,) = context.federation.clients
    data, seed = context.federation, agreement.configuration.seed
    model = PersonalModel(client, context.method, arrays, seed, data.encoder(client), data.shape, data.target)
    model.save(folder / MODEL, about)
    summary = {**about, **summarised(site, agreement, number, selected)}
    write_text(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
    write_text(folder / CARD, card_at_site(model, folder / MODEL, summary))
    write_text(folder / REPORT, report(folder, summary, context.federation.target))
    site.store.prune("personal", lambda kept: kept == number)
    return folder / MODEL


def described(site: Site, agreement: Agreement) -> dict[str, Any]:
    """How to build the method again, as every personal model's file says."""
    method, data, settings = site.context.method, site.context.federation, agreement.configuration.settings()
    private = spent(method, settings.rounds)
    return {
        **({} if private is None else {"privacy": private}),
        "version": __version__,
        "method": {"name": method.about.name, **method.hyperparameters()},
        "model": dict(agreement.setup().model),
        "target": data.target.document(),
        "shape": list(data.shape),
        "precision": settings.precision,
        "seed": settings.seed,
    }


def summarised(site: Site, agreement: Agreement, number: int, selected: int) -> dict[str, Any]:
    """What a run's summary says, as far as a site knows it: everyone's numbers of rows, and its own metrics."""
    (client,) = site.context.federation.clients
    scores = site.store.scores()
    own = scores.get(number, {}).get("test") or {}
    return {
        "site": client,
        "experiment": agreement.experiment,
        "parameters": site.context.method.task.size,
        "rounds": agreement.configuration.rounds,
        "selected": {"round": number, "by": _chosen(number, selected)},
        "clients": [
            {"client": name, **sizes, **(own if name == client else {})}
            for name, sizes in sorted(agreement.sites.items())
        ],
        "evaluations": [{"round": key, **value} for key, value in sorted(scores.items())],
    }


def _chosen(number: int, selected: int) -> str:
    if number == selected:
        return "chosen over all sites"
    return f"round {selected} was chosen over all sites, and this site did not take part in its evaluation"
