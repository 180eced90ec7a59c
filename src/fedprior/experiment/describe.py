"""The summary of a run: what was run, and the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedprior import __version__
from fedprior.data.federation import Federation
from fedprior.engine import AnyMethod
from fedprior.experiment.config import Settings, data_section
from fedprior.experiment.journal import Journal
from fedprior.experiment.seal import EVENTS
from fedprior.experiment.selection import BY
from fedprior.guards import spent
from fedprior.rng import Key


def describe(method: AnyMethod, federation: Federation, settings: Settings, model: Mapping[str, Any]) -> dict[str, Any]:
    """What was run: enough to interpret the numbers and to rebuild the method."""
    participation = settings.participation
    newcomers = participation.newcomer_ids(Key.from_seed(settings.seed), federation.clients)
    private = spent(method, settings.rounds)
    return {
        **({} if private is None else {"privacy": private}),
        "version": __version__,
        "method": {"name": method.about.name, **method.hyperparameters()},
        "data": data_section(federation, settings.seed),
        "model": dict(model),
        "train": asdict(method.train),
        "target": federation.target.document(),
        "shape": list(federation.shape),
        "parameters": method.task.size,
        "precision": settings.precision,
        "seed": settings.seed,
        "rounds": settings.rounds,
        "participation": asdict(participation),
        "newcomers": [federation.clients[i] for i in newcomers],
        "heterogeneity": federation.heterogeneity(),
        "evaluation": {
            "personal": f"each client's own model, {method.moment}, on its own split",
            "global": "the shared model after aggregation, on each client's split",
            "selected": BY[settings.select],
            "cross_fitted": "validation NLL, each client's in the round that the others choose, by n / (n + 10)",
            "clients": f"all {len(federation)}",
            "mean": "unweighted over the clients that have the metric; null if one of them diverged",
            "std": "over clients (ddof 1)",
            "pooled": "all clients' examples together",
            "worst_decile": "mean of the worst tenth of the clients",
        },
    }


def outcome(journal: Journal, last: int, selected: int, by: str) -> dict[str, Any]:
    """The metrics of the last and the selected round, the bytes sent, and how often each client was left out."""
    scores: dict[int, dict[str, Any]] = {}
    sent, left_out = Counter(up=0, down=0), Counter[str]()
    for event in journal.read(EVENTS):
        if event["kind"] == "round":
            sent.update(up=event["bytes_up"], down=event["bytes_down"])
            left_out.update(event.get("left_out", {}).keys())
        elif event["round"] in (last, selected):
            scores[event["round"]] = {k: event[k] for k in ("personal", "global") if k in event}
    return {
        "last": {"round": last, **scores[last]},
        "selected": {"round": selected, "by": BY[by], **scores[selected]},
        "bytes": dict(sent),
        "left_out": dict(left_out),
    }
