"""The loop: rounds, evaluations, checkpoints. Simulation and deployment share it and differ in the engine's runner."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior import tree
from fedprior.data.federation import Federation
from fedprior.engine import AnyMethod, Engine, Evaluation, Predictions, RunnerFactory
from fedprior.engine.memory import single_thread
from fedprior.errors import FedpriorError, FedpriorWarning
from fedprior.experiment.checkpoint import Checkpoint, Saver, damaged
from fedprior.experiment.config import Settings, Setup
from fedprior.experiment.describe import describe, outcome
from fedprior.experiment.identity import GROWS, identity
from fedprior.experiment.journal import Event, Journal, Observer
from fedprior.experiment.result import Last, Result
from fedprior.experiment.selection import Selection, validation_score
from fedprior.experiment.track import Track
from fedprior.metrics import SELECTS, Cohort, cohort, cohort_metrics, metrics_of

JUDGED = ("validation", "test")
Logged = tuple[NDArray[np.int64], dict[str, NDArray[np.float64]]]
"""The round of each client's last update, and what the method logged of it."""


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
    runner: RunnerFactory | None = None,
    track: Track | None = None,
) -> Result:
    """Run a bound method from the start, or from the newest checkpoint of `folder`.

    With a `track`, the method follows it if it can, and leaves one otherwise.
    """
    began = time.perf_counter()
    with (
        single_thread(),
        Engine(
            method,
            federation,
            settings.seed,
            chunk=settings.chunk,
            workers=settings.workers,
            runner=runner or settings.runner(),
            min_answers=settings.min_answers,
            evaluations=1 if folder is not None else settings.rounds // settings.every(settings.eval_every) + 1,
        ) as engine,
    ):
        config = identity(Setup(method, federation, dict(model), settings))
        run = Run(engine, settings, Journal(folder, observe), folder, config)
        first = run.restored() if resume else 0
        shared = run.join(track, first)
        done = first
        while not run.over(done):
            run.advance(done)
            done += 1
        run.evaluate(done)
        if track is not None:
            track.end()
        models, selection, last = engine.kept, run.selection, Last(run.last, engine.memory.personal)
        server = engine.prior
        converged = run.converged
    summary = describe(method, federation, settings, model)
    summary |= outcome(run.journal, done, selection.round, "converged" if converged else settings.select)
    summary["selected"]["cross_fitted"] = selection.cross_fit.mean(federation.validation.size)
    seconds = time.perf_counter() - began + shared.get("trained_seconds", 0.0)  # what the method takes alone
    summary["timing"] = {"seconds": seconds, "first_round": first, **shared}
    assert selection.predictions is not None
    result = Result(method, federation, run.journal, selection.predictions, models, summary, reference, last, server)
    summary |= result.numbers()
    if folder is not None:
        result.save(folder)
    return result


class Run:
    """A run under way."""

    def __init__(
        self, engine: Engine, settings: Settings, journal: Journal, folder: Path | None, config: Mapping[str, Any]
    ) -> None:
        self.engine, self.settings, self.journal, self.folder = engine, settings, journal, folder
        self.selection = Selection()
        self.last: Predictions = {}
        self.pending: Logged | None = None  # an evaluation that the next round brings along
        self.warned = False
        self.track: Track | None = None
        self.follows = False
        self.saver = None
        if folder is not None:
            self.saver = Saver(folder / "checkpoint", engine.federation.fingerprint(), config)

    @property
    def converged(self) -> bool:
        """Whether the method needs no further round."""
        return bool(self.engine.method.converged(self.engine.server))

    def over(self, done: int) -> bool:
        """Whether there is no round left."""
        return done == self.settings.rounds or (done > 0 and self.converged)

    def join(self, track: Track | None, first: int) -> dict[str, Any]:
        """Follow a track if it goes far enough back, or leave one; what the timing says of training by another."""
        self.track, self.follows = track, track is not None and track.covers(first)
        if track is not None and not self.follows:
            track.begin(self.engine.method.about.name, first)
        return track.shared(first) if track is not None and self.follows else {}

    def restored(self) -> int:
        """Restore the newest checkpoint; returns the number of rounds that it covers."""
        if self.saver is None or self.folder is None:
            return 0
        found, settings = self.saver.read(), self.settings
        done = 0 if found is None else found.round
        if found is not None:
            self._take_up(found)
        over = self.over(done)
        self.journal.rewind(None if found is None else found.journals)
        (self.folder / "summary.json").unlink(missing_ok=True)  # exists if a finished run gets more rounds
        due = done > 0 and not over and done % settings.every(settings.eval_every) == 0
        if due and not self.journal.evaluated(done):  # it was the last, which comes after the checkpoint
            self.evaluate(done)
        return done

    def _take_up(self, found: Checkpoint) -> None:
        assert self.saver is not None
        part, rounds = self.settings.participation, self.settings.rounds
        if part.last_round_all and part.rule != "all" and found.round == found.config.get(GROWS, rounds) < rounds:
            raise FedpriorError(
                f"the run in '{self.folder}' cannot have more rounds: with participation.last_round_all its last round "
                "would have been a different one; start it again in a new folder."
            )
        try:
            self.engine.restore(found.tensors)
            self.selection.restore(found.tensors, JUDGED)
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            raise damaged(self.saver.folder, f"it does not fit this run: {str(error).splitlines()[0]}") from None

    def advance(self, number: int) -> None:
        """One round, and the evaluation and the checkpoint that are due after it."""
        settings, done = self.settings, number + 1
        judged = done == settings.rounds or done % settings.every(settings.eval_every) == 0
        saved = done % settings.every(settings.checkpoint_every) == 0
        event = self._followed(number) if self.follows else self._round(number, judged=judged)
        self.journal.event(event)
        last = self.over(done)
        if self.track is not None and not self.follows:
            self.track.add(event, self.engine.snapshot() if judged or saved or last else None)
        if judged and not last:  # the last evaluation comes after the last checkpoint, and always runs
            if self.engine.federation.elsewhere:
                self.pending = self._logged()  # a message to a real site costs seconds: the next one asks for both
            else:
                self.evaluate(done)
        if self.saver is not None and (last or saved):
            self.saver.save(done, self.engine.snapshot() | self.selection.snapshot(), self.journal.seals())

    def _followed(self, number: int) -> Event:
        """A round that another method trained; the engine catches up whenever its state is needed."""
        assert self.track is not None
        if number + 1 in self.track.states:
            self.engine.restore(self.track.states[number + 1])
        return self.track.event(number)

    def _round(self, number: int, *, judged: bool) -> Event:
        began = time.perf_counter()
        engine, method, clients = self.engine, self.engine.method, self.engine.federation.clients
        everyone = method.hints.everyone_trains and (judged or not method.memoryless)
        rounds = self.settings.rounds
        drawn = self.settings.participation.draw(engine.root, clients, number, rounds, everyone_trains=everyone)
        splits, pending, self.pending = None if self.pending is None else JUDGED, self.pending, None
        done = engine.round(number, drawn.trainers, drawn.reporters, splits)
        if done.evaluation is not None and pending is not None:
            self._judge(number, done.evaluation, pending)
        up, down = engine.message_bytes()
        event = {
            "kind": "round",
            "round": number + 1,
            "trainers": len(drawn.trainers),
            "reporters": len(drawn.reporters),
            "counted": len(done.counted),
            "left_out": {clients[row]: why for row, why in sorted(done.left_out.items())},
            "bytes_up": up * len(drawn.reporters),
            "bytes_down": down * len(drawn.trainers),
            "logs": {name: _mean(values) for name, values in done.logs.items()},
            "server": {k: v.item() for k, v in tree.items(method.shareable(engine.server)) if v.dim() == 0},
            "seconds": time.perf_counter() - began,
            **({"converged": True} if self.converged else {}),
        }
        loss = done.logs.get("loss", np.zeros(len(clients)))
        lost = {row for row in drawn.trainers if not np.isfinite(loss[row])} | set(done.left_out)
        if lost and not self.warned:  # once; the run continues, since other clients may be fine
            self.warned = True
            _warn(method, number + 1, len(lost), len(clients), Counter(done.left_out.values()))
        return event

    def evaluate(self, done: int) -> None:
        """Metrics of every client's personal model, and of the global one, on validation and test."""
        self._judge(done, self.engine.evaluate(done, JUDGED), self._logged())

    def _logged(self) -> Logged:
        return self.engine.updated.copy(), {name: values.copy() for name, values in self.engine.logs.items()}

    def _judge(self, done: int, found: Evaluation, logged: Logged) -> None:
        engine, journal, clients = self.engine, self.journal, self.engine.federation.clients
        shared = engine.predict_global(JUDGED)
        judged = {"personal": {split: self._personal(found, split) for split in JUDGED}}
        if shared is not None:
            judged["global"] = {split: self._shared(shared, split) for split in JUDGED}
        scores: dict[str, dict[str, Any]] = {}
        for kind, splits in judged.items():
            for split, of in splits.items():
                told = {**of.summary, "evaluated": of.evaluated, "diverged": of.diverged}
                scores.setdefault(kind, {})[split] = told
                journal.evaluation(done, kind, split, clients, of)
        journal.client_logs(done, clients, *logged)
        self.last = found.predictions
        silent = [client for client, values in zip(clients, found.scores["test"], strict=True) if not values]
        score = math.nan if silent else validation_score(scores)  # a mean without the worst site must not be chosen
        chosen = self.settings.select != "last" and not engine.method.converged(engine.judged)
        if not silent:
            scored = [values.get(SELECTS) for values in found.scores["validation"]]
            self.selection.cross_fit.take(scored, chosen=chosen)
        if not chosen or self.selection.better(score):
            engine.keep()
            self.selection.take(done, score, found.predictions)
        unanswered = {"unanswered": silent} if silent else {}
        journal.event({"kind": "evaluation", "round": done, "selected": self.selection.round, **unanswered, **scores})

    def _personal(self, found: Evaluation, split: str) -> Cohort:
        federation, scores = self.engine.federation, found.scores[split]
        metrics, sizes = metrics_of(federation.target), federation.split(split).size
        if federation.elsewhere:  # a site that did not answer has no examples this time
            answered = [size if values else 0 for size, values in zip(sizes, scores, strict=True)]
            return cohort(metrics, [values or dict.fromkeys(metrics) for values in scores], answered, None)
        pairs = list(zip(found.predictions[split], federation.labels(split), strict=True))
        return cohort(metrics, scores, sizes, pairs)

    def _shared(self, found: Predictions, split: str) -> Cohort:
        federation = self.engine.federation
        pairs = list(zip(found[split], federation.labels(split), strict=True))
        return cohort_metrics(metrics_of(federation.target), pairs)


def _warn(method: AnyMethod, done: int, lost: int, clients: int, reasons: Counter[str]) -> None:
    what = f"the loss of {lost} of {clients} clients is not finite"
    if reasons:
        what = f"{lost} of {clients} clients were left out ({', '.join(reasons)})"
    told = f"{method.about.title} is diverging in round {done}: {what}; lower train.lr, or the method's own steps."
    warnings.warn(told, FedpriorWarning, stacklevel=4)


def _mean(values: NDArray[np.float64]) -> float:
    """Over the clients that trained."""
    trained = values[~np.isnan(values)]
    return float(trained.mean()) if len(trained) else float("nan")
