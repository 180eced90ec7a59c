"""The end of an experiment at a site: its own model, a summary and a model card. None of them leaves the site."""

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

MODEL, SUMMARY, CARD = "model.safetensors", "summary.json", "model-card.md"


def finish(site: Site, agreement: Agreement, selected: int) -> Path:
    """Keep the personal model of the selected round, or the newest before it that this site has."""
    known = [number for number in site.store.numbers("personal") if number <= selected]
    if not known:
        raise RefusedError("state", f"no personal model was evaluated up to round {selected}.")
    number, folder = known[-1], site.store.folder
    arrays = {
        path: values[0] for path, values in encode(site.store.read("personal", number, site.layouts.personal)).items()
    }
    context, about = site.context, described(site, agreement)
    (client,) = context.federation.clients
    encoder, shape = context.federation.encoder(client), context.federation.shape
    model = PersonalModel(client, context.method, arrays, agreement.configuration.seed, encoder, shape)
    model.save(folder / MODEL, about)
    summary = {**about, "site": client, "experiment": agreement.experiment, "round": number, "selected": selected}
    summary["rows"] = dict(agreement.sites[client])
    write_text(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
    write_text(folder / CARD, card(summary, site))
    site.store.prune("personal", lambda kept: kept == number)
    return folder / MODEL


def described(site: Site, agreement: Agreement) -> dict[str, Any]:
    """How to build the method again, as every personal model's file says."""
    method, data, settings = site.context.method, site.context.federation, agreement.configuration.settings()
    return {
        "version": __version__,
        "method": {"name": method.about.name, **method.hyperparameters()},
        "model": dict(agreement.setup().model),
        "target": data.target.document(),
        "shape": list(data.shape),
        "precision": settings.precision,
        "seed": settings.seed,
    }


def card(summary: dict[str, Any], site: Site) -> str:
    """What a reader of the model must know, on one page."""
    about, rows = site.context.method.about, summary["rows"]
    return f"""# Model card: {summary["site"]}, experiment {summary["experiment"]}

* **What it is**: the personal model of this site, by {about.title} ({about.paper} {about.year}).
* **Trained on**: {rows["train"]} rows of this site; {rows["validation"]} rows for validation and {rows["test"]} for
  testing were held out. Rows of other sites were not seen; their influence comes through the shared prior alone.
* **Round**: {summary["round"]}; validation over all sites chose round {summary["selected"]}.
* **Use it**: `fedprior.load_model("{MODEL}").predict(table)`, which scales raw columns as in training.
* **Limits**: it was evaluated on this site's held-out rows only, and is for data like this site's.
* **Made with**: fedprior {summary["version"]}, seed {summary["seed"]}.
"""
