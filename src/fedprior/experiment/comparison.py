"""Several methods on one federation: a mapping from their names to results, with what they say together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from html import escape
from pathlib import Path

import pandas as pd

from fedprior.experiment.result import Result
from fedprior.experiment.selection import compared_by
from fedprior.metrics import SELECTS, main_metric, metrics_of, shown
from fedprior.names import on_screen

SHOWN = 6
"""Methods that a line of text names."""


class Comparison(Mapping[str, Result]):
    """Several methods on one federation: a mapping from a method's name to its `Result`, Local and FedAvg-FT first.

    `comparison["fedmap"]` is the `Result` of FedMAP. `table` and `clients` are DataFrames, `best` is the name of the
    method that validation chooses, `verdict` says it in words, and `report(path)` writes a page.
    """

    def __init__(self, results: Mapping[str, Result]) -> None:
        self.results = dict(results)

    def __getitem__(self, name: str) -> Result:
        return self.results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per method: the mean of every metric over clients on their test splits, and the gain over Local."""
        frame = pd.concat([result.table for result in self.values()])
        frame["validation"] = [self.validation(name) for name in self]
        for column in ("mean", "mean_low", "mean_high", "helped", "harmed"):
            gains = [None if r.reference is None else getattr(r.gain(), column) for r in self.values()]
            frame[f"gain_{column}".replace("gain_mean", "gain")] = pd.Series(gains, index=frame.index, dtype="float64")
        return frame

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per client, one column per method: the main metric of its personal model on its test split."""
        first = next(iter(self.values()))
        main = main_metric(first.federation.target).name
        return pd.DataFrame({name: result.clients[main] for name, result in self.items()})

    def validation(self, name: str) -> float:
        """The cross-fitted validation NLL of a method, by which methods are compared.

        Each client is scored in the round that the validation examples of the others choose. The NLL of the selected
        round would be too low, the more so the more rounds there were to choose from.

        Args:
            name: The method's name, such as "fedmap".

        Returns:
            The mean over clients; nan where there is none.
        """
        return compared_by(self[name].summary)

    @property
    def best(self) -> str | None:
        """The method with the lowest cross-fitted validation NLL; test data have no say.

        None where no method has one: there are no validation examples, or all have diverged.
        """
        scores = {name: score for name in self if not math.isnan(score := self.validation(name))}
        return min(scores, key=scores.__getitem__, default=None)

    @property
    def verdict(self) -> str:
        """What validation recommends, and what the test splits say of it, in two sentences."""
        if self.best is None:
            return "No method has a validation NLL to be chosen by."
        best = self[self.best]
        said = f"{best.method.about.title} has the lowest validation NLL of {len(self)} methods."
        if best.reference is None:
            return said
        found = best.gain(SELECTS)
        helps, harms = int((found.low > 0).sum()), int((found.high < 0).sum())
        gained = f"{found.mean:+.3f} [{found.mean_low:+.3f}, {found.mean_high:+.3f}] in NLL"
        return (
            f"{said} Over Local it gains {gained} per client on test; of {len(found.clients)} clients it "
            f"clearly helps {helps} and harms {harms}."
        )

    def report(self, path: str | Path) -> Path:
        """Write the report of this comparison: one HTML page that opens offline.

        Args:
            path: The file to write, such as "report.html".

        Returns:
            Its path.
        """
        from fedprior.report.page.writing import write

        return write(self, Path(path))

    def __repr__(self) -> str:
        first = next(iter(self.values()))
        main = main_metric(first.federation.target)
        told = [f"{name} {shown(main, result.mean(main.name))}" for name, result in self.items()]
        more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        where = f"{on_screen(first.federation.name, 40)}, {len(first.federation)} clients"
        return f"Comparison({where}, test {main.title}: {', '.join(told[:SHOWN])}{more})"

    def _repr_html_(self) -> str:
        known = [*metrics_of(next(iter(self.values())).federation.target), "gain", "gain_low", "gain_high"]
        frame = self.table[[column for column in known if column in self.table]]
        return f"<p>{escape(self.verdict)}</p>{frame.to_html(float_format='{:.3f}'.format)}"
