"""The result of a run: each client's metrics and personal model, and a summary."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from fedprior import tree
from fedprior.data.federation import Federation
from fedprior.data.naming import names_of
from fedprior.engine import AnyMethod, Predictions
from fedprior.errors import FedpriorError, unknown
from fedprior.experiment import seal
from fedprior.experiment.journal import Journal, jsonable
from fedprior.experiment.personal import PersonalModel, load_model
from fedprior.experiment.prior import TOLD, Prior
from fedprior.experiment.seal import PRIOR
from fedprior.experiment.shelf import write_models
from fedprior.explanation import Explanation
from fedprior.files import pack, write_bytes, write_text
from fedprior.metrics import GAINS, Gain, Value, diverged, gain, main_metric, metrics_of, shown
from fedprior.metrics.certainty import certainty
from fedprior.names import on_screen, tensor_key

__all__ = ["Last", "PersonalModel", "Result", "load_model"]

HTML_ROWS = 30
"""Maximum number of clients that a notebook shows."""


class Last(NamedTuple):
    """The personal models after the last round, and their predictions."""

    predictions: Predictions
    models: Any  # P [N, ...]


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run; its personal models are those of the round that validation chose, or of the last on request.

    `clients` and `table` are DataFrames of metrics, `model(client)` and `predict(client, x)` give personal models and
    their predictions, `prior` is what a new site joins with, and `report(path)` writes a page.
    """

    method: AnyMethod
    federation: Federation
    journal: Journal
    predictions: Predictions  # of the personal models
    models: Any  # the personal models, P [N, ...]
    summary: dict[str, Any]
    reference: Result | None = field(default=None)
    last: Last | None = None  # None: the run was read from its folder
    server: Any = None  # S, the prior of the personal models; None: the run kept none

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method.about.name

    @property
    def seed(self) -> int:
        """The run's seed."""
        seed: int = self.summary["seed"]
        return seed

    @property
    def selected(self) -> int:
        """The round whose personal models these are."""
        number: int = self.summary["selected"]["round"]
        return number

    @property
    def scores(self) -> dict[str, Any]:
        """The cohort's metrics on the test splits: metric -> mean, std, worst_decile, pooled, undefined."""
        scores: dict[str, Any] = self.summary["selected"]["personal"]["test"]
        return scores

    def mean(self, metric: str) -> float:
        """A metric's mean over clients on their test splits.

        Args:
            metric: A name of the reference page of metrics, such as "nll" or "accuracy".

        Returns:
            The mean, each client counting the same; nan if a client's model diverged, or if no client has the metric.

        Raises:
            FedpriorError: If this target has no such metric.
        """
        if metric not in self.scores:
            raise unknown("metric", metric, self.scores)
        found = self.scores[metric]["mean"]
        return math.nan if found is None else float(found)

    @cached_property
    def values(self) -> dict[str, dict[str, Value]]:
        """Each client's metrics on its test split; None: undefined, nan: its model diverged."""
        return self.journal.values(self.selected, "test")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per client: its examples, its personal model's metrics on its test split, its gain over Local."""
        data, names = self.federation, self.federation.clients
        frame = pd.DataFrame({"client": names, "train": data.train.size, "test": data.test.size}).set_index("client")
        for metric in metrics_of(data.target):
            frame[metric] = np.array([self.values[c].get(metric) for c in names], dtype=np.float64)
        if self.reference is not None:
            main, found = main_metric(data.target).name, self.gain()
            theirs = self.reference.values
            frame[f"local_{main}"] = np.array([theirs[c].get(main) for c in names], dtype=np.float64)
            frame["gain"], frame["gain_low"], frame["gain_high"] = found.clients, found.low, found.high
        return frame

    @property
    def table(self) -> pd.DataFrame:
        """One row: the mean of every metric over clients, on their test splits."""
        means = {metric: self.mean(metric) for metric in metrics_of(self.federation.target)}
        return pd.DataFrame([means], index=pd.Index([self.name], name="method"))

    def gain(self, metric: str | None = None) -> Gain:
        """The gain over the reference, client by client and on average, with paired bootstrap intervals.

        Args:
            metric: One that is a mean over test examples; by default accuracy, or NLL if the target is a number.

        Returns:
            `clients`, `low` and `high` [N] (each client's gain with its 95 % interval; positive is better), their mean
            as `mean`, `mean_low` and `mean_high`, and the shares of clients with a gain above zero (`helped`) and below
            (`harmed`).

        Raises:
            FedpriorError: If the run has no reference, or there is no such metric.
        """
        if self.reference is None:
            raise FedpriorError("this run has no reference to compare with: pass reference=… or use fedprior.compare.")
        known = {name: m for name, m in metrics_of(self.federation.target).items() if m.each is not None}
        chosen = metric or next(name for name in GAINS if name in known)
        if chosen not in known:
            raise unknown("metric", chosen, known, "the gains of a run")
        if chosen not in self._gains:
            ours, theirs = (run.example_scores(chosen) for run in (self, self.reference))
            self._gains[chosen] = gain(ours, theirs, names=self.federation.clients, seed=self.seed)
        return self._gains[chosen]

    @cached_property
    def _gains(self) -> dict[str, Gain]:
        return {}

    def example_scores(self, metric: str) -> list[NDArray[Any]]:
        """Each client's score for every test example; higher is better, so the sign of a loss is changed.

        Args:
            metric: Its name. For a metric that is not a mean over examples (AUROC, RMSE), scores are pseudo-values.

        Returns:
            One array [n_test] per client, in the order of the federation's clients; nan where a client's model
            diverged, empty where the metric is undefined.

        Raises:
            FedpriorError: If this target has no such metric, or the metric has no such scores.
        """
        known = {name: m for name, m in metrics_of(self.federation.target).items() if m.each or m.pseudo}
        if metric not in known:
            raise unknown("metric", metric, known)
        entry = known[metric]
        shares = entry.each or entry.pseudo
        assert shares is not None
        scores: list[NDArray[Any]] = []
        for found, y in zip(self.predictions["test"], self.federation.labels("test"), strict=True):
            if diverged(found):
                scores.append(np.full(len(y), np.nan))
            else:
                each = shares(found.astype(np.float64), y) if len(y) else np.empty(0)
                scores.append(each if entry.better == "higher" else -each)
        return scores

    @cached_property
    def calibration(self) -> pd.DataFrame:
        """One row per client: how sure its model is on its test split, and how right it is to be so.

        `entropy` is the mean entropy of the predictive distributions in nats; a calibrated model's is near its `nll`.
        For classes, `confidence` is the mean probability of the predicted class, to be compared with `accuracy`.
        """
        told = [name for name in ("nll", "ece", "accuracy", "coverage50", "coverage90") if name in self.clients]
        frame = self.clients[["test", *told]].copy()
        sure = [certainty(self.federation.target, found) for found in self.predictions["test"]]
        for name in sure[0]:
            frame.insert(1, name, [row[name] for row in sure])
        return frame

    def numbers(self) -> dict[str, Any]:
        """The part of the summary about individual clients: their metrics, their gains, and what was learned."""
        found = {"gain": self.gain()._asdict()} if self.reference is not None else {}
        learned = {"explanation": self.explanation.document()} if self.explanation.tables else {}
        return {**found, **learned, "clients": self.clients.reset_index().to_dict(orient="records")}

    def arrays(self, client: str) -> dict[str, NDArray[Any]]:
        """One client's personal model as named arrays.

        Args:
            client: Its name, as in `result.federation.clients`.

        Returns:
            The arrays of the model's file by their names, such as `w/0.weight`.

        Raises:
            FedpriorError: If there is no such client.
        """
        row = self.federation.row(client)
        return {path: leaf[row].numpy(force=True).copy() for path, leaf in tree.items(self.models)}

    def model(self, client: str) -> PersonalModel:
        """One client's personal model.

        Args:
            client: Its name, as in `result.federation.clients`.

        Returns:
            A model that predicts by itself, without the run or its data.

        Raises:
            FedpriorError: If there is no such client.
        """
        data = self.federation
        encoder, arrays = data.encoder(client), self.arrays(client)
        return PersonalModel(client, self.method, arrays, self.seed, encoder, data.shape, data.target)

    @property
    def prior(self) -> Prior:
        """What a site that was not there needs to join, for `fedprior.join`; the folder has it as a file too."""
        if self.server is None:
            raise FedpriorError(
                f"the run of {self.method.about.title} kept no prior that a new site could join with: it was made by "
                "an earlier version (run it again), or the method keeps a part for each client at the server (use "
                "another method)."
            )
        return Prior.of(self.method, self.server, self.federation, self.summary)

    @cached_property
    def explanation(self) -> Explanation:
        """What the method learned, as tables and sentences; most methods have nothing to say."""
        if self.server is None:
            return Explanation()
        names = names_of(self.federation)
        if not all(len(leaf) for leaf in tree.leaves(self.models)):  # they stay at the sites of a real federation
            names = names._replace(clients=())
        return self.method.explain(self.server, self.models, names)

    @property
    def effects(self) -> pd.DataFrame:
        """The tables of the explanation in one, with the title of each in the column `part`."""
        found = [frame.reset_index().assign(part=title) for title, frame in self.explanation.tables.items()]
        if not found:
            raise FedpriorError(f"{self.method.about.title} does not say what it has learned: use mixed, for example.")
        return pd.concat(found, ignore_index=True)

    def predict(self, client: str, x: ArrayLike | pd.DataFrame, *, raw: bool = False) -> NDArray[np.float32]:
        """The predictions of one client's personal model, as `PersonalModel.predict` makes them.

        Args:
            client: Its name, as in `result.federation.clients`.
            x: A DataFrame, whose columns are found by name, or inputs [n, ...].
            raw: Whether an array holds values as measured, to be scaled as in training; a DataFrame always does.

        Returns:
            Class probabilities [n, classes]; or, for a number, its mean and standard deviation [n, 2].

        Raises:
            FedpriorError: If there is no such client, a column is missing, or a value is not finite.
        """
        return self.model(client).predict(x, raw=raw)

    def save(self, folder: str | Path) -> None:
        """Write the models, the prior, the test predictions and, last, the summary, which marks the folder as complete.

        `fedprior.run` does this by itself if it is given `out`.

        Args:
            folder: Where to; it is created if it does not exist.
        """
        place = Path(folder)
        about = {k: self.summary[k] for k in TOLD}
        data, tell = self.federation, self._saved
        if not data.elsewhere:  # else every site has its own
            write_models(place / "models", self.models, data.clients, data.encoders, about, tell)
            test = dict(zip(map(tensor_key, data.clients), self.predictions["test"], strict=True))
            write_bytes(place / "predictions.safetensors", pack(test))
        if self.server is not None:
            self.prior.save(place / PRIOR)
        seal.record(place, self.summary, self.journal.seals() if self.journal.folder == place else {})
        write_text(place / "summary.json", json.dumps(jsonable(self.summary), indent=2) + "\n")

    def _saved(self, models: int) -> None:
        """Inform the observer; this event is not recorded in any file."""
        if self.journal.observe is not None:
            told = {
                "kind": "saving",
                "round": self.summary["last"]["round"],
                "models": models,
                "of": len(self.federation),
            }
            self.journal.observe(told)

    def report(self, path: str | Path) -> Path:
        """Write the report of this run: one HTML page that opens offline.

        Args:
            path: The file to write, such as "report.html".

        Returns:
            Its path.
        """
        from fedprior.report.page.writing import write

        return write(self, Path(path))

    def __repr__(self) -> str:
        main = main_metric(self.federation.target)
        value, where = shown(main, self.mean(main.name)), on_screen(self.federation.name, 40)
        return (
            f"Result({self.method.about.title} on {where}, {len(self.federation)} clients: test {main.title} {value} "
            f"with the models of round {self.selected} of {self.summary['last']['round']})"
        )

    def _repr_html_(self) -> str:
        rows = self.clients.head(HTML_ROWS)
        more = f"<p>… {len(self.clients) - HTML_ROWS} more</p>" if len(self.clients) > HTML_ROWS else ""
        return f"<p>{escape(repr(self))}</p>{rows.to_html(float_format='{:.3f}'.format)}{more}"
