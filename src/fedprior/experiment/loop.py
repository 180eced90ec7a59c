"""The loop: rounds, evaluations, checkpoints."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior import __version__, tree
from fedprior.data.federation import Federation
from fedprior.engine import AnyMethod, Engine, Predictions
from fedprior.engine.memory import single_thread
from fedprior.errors import FedpriorWarning
from fedprior.experiment.checkpoint import Saver
from fedprior.experiment.config import Settings
from fedprior.experiment.journal import Journal, Observer
from fedprior.experiment.result import Result, labelled
from fedprior.metrics import cohort_metrics
from fedprior.rng import Key

SPLITS = ("validation", "test")


def execute(
    method: AnyMethod,
    federation: Federation,
    settings: Settings,
    *,
    model: Mapping[str, Any],
    folder: Path | None = None,
    resume: bool = False,
    reference: Result | None = None,
    observe: Observer | None = None,
) -> Result:
    """Run a bound method from the start, or from the newest checkpoint of `folder`."""
    began = time.perf_counter()
    journal = Journal(folder, observe)
    how: dict[str, Any] = {"backend": settings.engine, "address": settings.ray_address}
    with (
        single_thread(),
        Engine(method, federation, settings.seed, chunk=settings.chunk, workers=settings.workers, **how) as engine,
    ):
        saver = Saver(folder / "checkpoint", engine, federation.fingerprint()) if folder is not None else None
        first, diverged = 0, False
        if resume and saver is not None:
            first = saver.restore()
            journal.rewind(first, settings.rounds)
        for number in range(first, settings.rounds):
            done = number + 1
            last = done == settings.rounds
            judged = last or done % settings.every(settings.eval_every) == 0
            lost = _round(engine, settings, journal, number, judged=judged)
            if lost and not diverged:  # said once; the run goes on, since others may be fine
                diverged = True
                _warn(method, done, f"{lost} of {len(federation)} clients")
            if judged and not last:
                _evaluate(engine, journal, done)
            if saver is not None and (last or done % settings.every(settings.checkpoint_every) == 0):
                saver.save(done)
        predictions, models = _evaluate(engine, journal, settings.rounds, models=True)
    summary = describe(method, federation, settings, model) | outcome(journal, settings.rounds)
    summary["timing"] = {"seconds": time.perf_counter() - began, "first_round": first}
    result = Result(method, federation, settings.seed, journal, predictions, models, summary, reference)
    if reference is not None:
        summary["gain"] = result.gain()._asdict()
    summary["clients"] = result.clients.reset_index().to_dict(orient="records")
    if folder is not None:
        result.save(folder)
    return result


def _round(engine: Engine, settings: Settings, journal: Journal, number: int, *, judged: bool) -> int:
    """One round; the number of clients whose loss is not finite."""
    began = time.perf_counter()
    method, clients = engine.method, engine.federation.clients
    everyone = method.about.everyone_trains and (judged or not method.memoryless)
    cohort = settings.participation.draw(engine.root, clients, number, settings.rounds, everyone_trains=everyone)
    logs = engine.round(number, cohort.trainers, cohort.reporters)
    up, down = engine.message_bytes()
    journal.event(
        {
            "kind": "round",
            "round": number + 1,
            "trainers": len(cohort.trainers),
            "reporters": len(cohort.reporters),
            "bytes_up": up * len(cohort.reporters),
            "bytes_down": down * len(cohort.trainers),
            "logs": {name: _mean(values) for name, values in logs.items()},
            "server": {path: leaf.item() for path, leaf in tree.items(engine.server) if leaf.dim() == 0},
            "seconds": time.perf_counter() - began,
        }
    )
    loss = logs.get("loss")
    return 0 if loss is None else int((~np.isfinite(loss[cohort.trainers])).sum())


def _warn(method: AnyMethod, done: int, clients: str) -> None:
    told = f"{method.about.title} diverged in round {done}: the loss of {clients} is no finite number; lower train.lr"
    warnings.warn(f"{told}, or the method's own steps.", FedpriorWarning, stacklevel=3)


def _mean(values: NDArray[np.float64]) -> float:
    """Over the clients that trained."""
    trained = values[~np.isnan(values)]
    return float(trained.mean()) if len(trained) else float("nan")


def _evaluate(
    engine: Engine, journal: Journal, done: int, *, models: bool = False
) -> tuple[Predictions, list[dict[str, NDArray[Any]]]]:
    """Metrics of every client's personal model, and of the global one, on validation and test."""
    federation = engine.federation
    personal, trees = engine.predict(done, SPLITS, models=models)
    scores: dict[str, dict[str, Any]] = {}
    for kind, predictions in (("personal", personal), ("global", engine.predict_global(SPLITS))):
        if predictions is None:
            continue
        scores[kind] = {}
        for split in SPLITS:
            cohort = cohort_metrics(labelled(predictions[split], federation, split))
            scores[kind][split] = {**cohort.summary, "evaluated": cohort.evaluated}
            journal.evaluation(done, kind, split, federation.clients, cohort)
    journal.event({"kind": "evaluation", "round": done, **scores})
    return personal, trees


def describe(method: AnyMethod, federation: Federation, settings: Settings, model: Mapping[str, Any]) -> dict[str, Any]:
    """What was run: enough to read the numbers by, and to build the method again."""
    about = method.about
    return {
        "version": __version__,
        "method": {"name": about.name, **method.hyperparameters()},
        "data": {"name": federation.name, **federation.options},
        "model": dict(model),
        "train": asdict(method.train),
        "classes": federation.classes,
        "shape": list(federation.shape),
        "parameters": method.task.size,
        "precision": settings.precision,
        "seed": settings.seed,
        "rounds": settings.rounds,
        "participation": asdict(settings.participation),
        "newcomers": [
            federation.clients[i] for i in settings.participation.late(Key.from_seed(settings.seed), federation.clients)
        ],
        "heterogeneity": federation.heterogeneity(),
        "evaluation": {
            "personal": f"each client's own model, {method.moment}, on its own split",
            "global": "the shared model after aggregation, on each client's split",
            "clients": f"all {len(federation)}",
            "mean": "unweighted over clients",
            "std": "over clients (ddof 1)",
            "pooled": "all clients' examples together",
            "worst_decile": "mean of the worst tenth of the clients",
        },
    }


def outcome(journal: Journal, rounds: int) -> dict[str, Any]:
    """The metrics of the last round and of the round that validation would choose, and the bytes sent."""
    evaluations = [e for e in journal.events if e["kind"] == "evaluation"]
    scores: dict[int, dict[str, Any]] = {
        e["round"]: {k: e[k] for k in ("personal", "global") if k in e} for e in evaluations
    }
    chosen = max(scores, key=lambda r: (_validation(scores[r]), -r))
    by = "highest mean validation accuracy of the personal models; the first such round"
    trained = [e for e in journal.events if e["kind"] == "round"]
    return {
        "last": {"round": rounds, **scores[rounds]},
        "selected": {"round": chosen, "by": by, **scores[chosen]},
        "bytes": {"up": sum(e["bytes_up"] for e in trained), "down": sum(e["bytes_down"] for e in trained)},
    }


def _validation(scores: dict[str, Any]) -> float:
    value = scores["personal"]["validation"]["accuracy"]["mean"]
    return -1.0 if value is None or np.isnan(value) else float(value)
