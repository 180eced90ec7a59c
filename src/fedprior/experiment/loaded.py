"""A finished run, read from its folder."""

from __future__ import annotations

import json
from pathlib import Path

from fedprior.data.federation import Federation
from fedprior.engine import AnyMethod
from fedprior.errors import FedpriorError
from fedprior.experiment import seal
from fedprior.experiment.journal import Journal
from fedprior.experiment.personal import outline
from fedprior.experiment.prior import load_prior
from fedprior.experiment.result import Result
from fedprior.experiment.seal import PRIOR
from fedprior.experiment.shelf import read_models
from fedprior.files import read_tensors
from fedprior.metrics import metrics_of
from fedprior.names import on_screen, tensor_key

SAID = ("mean", "std", "worst_decile", "pooled", "undefined")
"""What a summary contains for each metric."""


def load_result(folder: Path, method: AnyMethod, federation: Federation, reference: Result | None = None) -> Result:
    """A finished run from its folder, given the bound method and the federation that its config builds."""
    journal = Journal(folder)
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        seal.check(folder, summary)
        if "left_out" not in summary:  # an older run, which kept the models of its last round
            summary["selected"] = summary["last"]
        if not {"seed", "rounds", "timing"} <= summary.keys() or "round" not in summary["selected"]:
            raise KeyError("it lacks what every summary has")
        for metric in metrics_of(federation.target):  # one that an older run did not know
            summary["selected"]["personal"]["test"].setdefault(metric, dict.fromkeys(SAID))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FedpriorError(f"'{folder / 'summary.json'}' is damaged and cannot be read: {error}.") from None
    if federation.elsewhere:  # every site has its own model and predictions
        return Result(method, federation, journal, {}, None, summary, reference)
    test, _ = read_tensors(folder / "predictions.safetensors")
    expected = outline(method, federation.shape, federation.target)
    models = read_models(folder / "models", federation.clients, method.types[-1], expected)
    result = Result(
        method,
        federation,
        journal,
        {"test": [test[tensor_key(c)].numpy() for c in federation.clients]},
        models,
        summary,
        reference,
        server=load_prior(folder / PRIOR, method.task.module).server if (folder / PRIOR).exists() else None,
    )
    if missing := sorted(set(federation.clients) - result.values.keys()):
        raise FedpriorError(
            f"'{folder / seal.CLIENTS}' is damaged (it lacks '{on_screen(missing[0])}' in round {result.selected}): "
            "restore a copy of it, or run it again in a new folder."
        )
    return result
