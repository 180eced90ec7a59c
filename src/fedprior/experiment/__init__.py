"""Runs: one method, several compared, and the resumption of either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from fedprior.data.federation import Federation
from fedprior.engine import AnyMethod
from fedprior.errors import FedpriorError
from fedprior.experiment.config import Settings, make_task
from fedprior.experiment.journal import Observer
from fedprior.experiment.loop import execute
from fedprior.experiment.participation import Participation
from fedprior.experiment.result import PersonalModel, Result, load_model
from fedprior.local import Train
from fedprior.methods.fedavg_ft import FedAvgFT
from fedprior.methods.local import Local
from fedprior.models.task import Task
from fedprior.options import check_names, plain_errors

__all__ = ["Participation", "PersonalModel", "Result", "Settings", "compare", "load_model", "run"]


def run(
    method: AnyMethod,
    federation: Federation,
    *,
    model: nn.Module | Mapping[str, Any] | None = None,
    reference: Result | None = None,
    observe: Observer | None = None,
    **settings: Any,
) -> Result:
    """Train a method on a federation.

    `model` is a network of yours or a section such as `{"name": "mlp", "hidden": [100]}`; without it, the
    federation's recipe decides, as it does for `method.train`. `settings` are the fields of `Settings`. With a
    `reference` (a finished run of Local), the result tells each client's gain over it.
    """
    check_names("the settings", settings, Settings.model_fields)
    with plain_errors("settings"):
        checked = Settings(**settings)
    spec, bound, data = _bind(method, federation, model, checked)
    return execute(bound, data, checked, model=spec, reference=reference, observe=observe)


def compare(
    methods: Sequence[AnyMethod],
    federation: Federation,
    *,
    model: nn.Module | Mapping[str, Any] | None = None,
    baselines: bool = True,
    observe: Observer | None = None,
    **settings: Any,
) -> dict[str, Result]:
    """Train several methods on the same partition, from the same weights, with Local and FedAvg-FT beside them."""
    chosen = {m.about.name: m for m in methods}
    if len(chosen) < len(methods):
        raise FedpriorError("a method stands twice among those to compare: compare its variants in runs of their own.")
    if baselines:
        beside: tuple[AnyMethod, ...] = (Local(), FedAvgFT())
        train = methods[0].train if methods else None
        for extra in beside:
            if extra.about.name not in chosen:
                chosen = {extra.about.name: extra if train is None else type(extra)(train=train)} | chosen
    ordered = sorted(chosen.values(), key=lambda m: m.about.name != "local")
    results: dict[str, Result] = {}
    for method in ordered:
        results[method.about.name] = run(
            method, federation, model=model, reference=results.get("local"), observe=observe, **settings
        )
    return results


def _bind(
    method: AnyMethod,
    federation: Federation,
    model: nn.Module | Mapping[str, Any] | None,
    settings: Settings,
) -> tuple[dict[str, Any], AnyMethod, Federation]:
    data = federation.to(settings.dtype)
    if isinstance(model, nn.Module):
        spec: dict[str, Any] = {"name": "custom"}
        task = Task(model, federation.classes, dtype=settings.dtype, mixed=settings.mixed)
    else:
        spec = dict(model or federation.recipe.get("model", {"name": "softmax"}))
        task = make_task(spec, data, settings)
    return spec, method.bind(task, Train(**federation.recipe.get("train", {}))), data
