"""Run a table, or the rest of it."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedprior import tree
from fedprior.data.federation import Federation
from fedprior.errors import FedpriorError
from fedprior.experiment.folder import COMPLETE, begin, carry_out
from fedprior.experiment.journal import Journal
from fedprior.experiment.notebook import Observers
from fedprior.experiment.placing import at_work
from fedprior.experiment.seal import JOURNALS, check
from fedprior.papers import figures, provenance
from fedprior.papers.cell import Cell, folded
from fedprior.papers.definition import Scale, Table
from fedprior.papers.outcome import Kind, Number, Outcome
from fedprior.papers.values import spread_of, value_of
from fedprior.rng import Key

HEAVY = ("models", "checkpoint", "predictions.safetensors", "prior.safetensors")
"""Files that a cell's folder need not keep: a table needs only numbers."""


def reproduce(
    table: Table,
    out: Path,
    observers: Observers,
    *,
    scale: Scale = "paper",
    seeds: int | None = None,
    columns: list[str] | None = None,
    rows: list[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    keep_models: bool = False,
    so_far: bool = False,
    known: Outcome | None = None,
) -> Outcome:
    """Do all runs that `out` does not have yet (none, with `so_far`), and collect the numbers of all that it has.

    Runs whose numbers are `known` are left out: what is found can be added to these (`saved.together`).
    """
    chosen, methods = table.limited(scale, columns, rows)
    if not so_far or table.metric == "parameters":
        table.refuse(chosen)
    count = table.count(scale, seeds)
    what = (table.name, table.title, table.paper, scale, table.metric, table.per, table.at)
    outcome = Outcome(*what, chosen, methods, count)
    outcome.unknown, outcome.stand_in = table.unknown, table.stand_in
    outcome.chosen = {row: table.chosen[row] for row in methods if row in table.chosen}
    outcome.quick = folded(table.quick.run) if scale == "quick" else {}
    outcome.plus_minus = table.plus_minus
    outcome.figure = table.figure.model_dump() if table.figure else {}
    data = Loaded()
    seconds: dict[str, float] = {}  # by folder: columns may share a run
    ran: set[tuple[str, str, int]] = set()
    gaps: set[tuple[str, str]] = set()
    for planned in _unknown(table.cells(scale, chosen, methods, count), known):
        cell = planned._replace(config=planned.config.model_copy(update=dict(settings or {})))
        if table.figure and table.figure.draw == "partition":
            outcome.drawn += figures.partition(cell, data.of(cell))
            ran.add((cell.row, cell.column, cell.seed))
            continue
        if table.metric == "parameters":
            number = Number(table.rows[cell.row].paper.get(cell.column), [parameters(cell, data) / table.unit])
            outcome.cells.setdefault("personal", {}).setdefault(cell.row, {})[cell.column] = number
            ran.add((cell.row, cell.column, cell.seed))
            continue
        if so_far and not (out / cell.folder / COMPLETE).exists():
            gaps.add((cell.row, cell.column))
        if (cell.row, cell.column) in gaps:
            continue  # a later seed than one that is missing waits for it
        summary, journal = done(cell, out / cell.folder, observers, data, keep_models=keep_models)
        seconds[cell.folder] = float(summary["timing"]["seconds"])
        _enter(outcome, table, cell, summary, journal)
        outcome.drawn += figures.drawn(table, cell, summary, journal)
        ran.add((cell.row, cell.column, cell.seed))
    if so_far and not ran:
        raise FedpriorError(f"nothing of {table.name} is finished in '{out}': run it without --so-far.")
    if known and not ran:
        raise FedpriorError(f"the saved results of {table.name} have all of these runs: leave out --more.")
    if so_far or known:
        _narrow(outcome, table, ran)
    _relate(outcome, table.whole)
    outcome.about = provenance.about(sum(seconds.values()))
    outcome.about["command"] = provenance.command(table, outcome)
    outcome.about["part"] = provenance.part(table, outcome)
    return outcome


def _unknown(cells: Iterable[Cell], known: Outcome | None) -> Iterator[Cell]:
    """The cells that have no number yet."""
    return (cell for cell in cells if known is None or cell.seed >= known.seeds_of(cell.row, cell.column))


def _relate(outcome: Outcome, whole: str) -> None:
    """Seconds as a percentage of those of the row `whole`, seed by seed."""
    numbers = outcome.cells.get("personal", {}) if whole else {}
    for column in outcome.columns if whole in numbers else ():
        hundred = list(numbers[whole][column].values)
        for row in numbers.values():
            row[column] = row[column]._replace(
                values=[100 * v / h for v, h in zip(row[column].values, hundred, strict=False)]
            )


def _narrow(outcome: Outcome, table: Table, ran: set[tuple[str, str, int]]) -> None:
    """Leave out rows, columns and seeds with no finished run; other gaps have only the paper's number."""
    rows, columns, seeds = (set(names) for names in zip(*ran, strict=True))
    outcome.rows = [row for row in outcome.rows if row in rows]
    outcome.columns = [column for column in outcome.columns if column in columns]
    outcome.seeds = max(seeds) + 1
    outcome.chosen = {row: setting for row, setting in outcome.chosen.items() if row in rows}
    every = itertools.product(outcome.rows, outcome.columns, range(outcome.seeds))
    outcome.missing = [run for run in every if run not in ran]
    for row, column, _ in outcome.missing:
        numbers = outcome.cells.setdefault("personal", {}).setdefault(row, {})
        numbers.setdefault(column, Number(table.rows[row].paper.get(column), []))


class Left(NamedTuple):
    """What `reproduce` still has to do."""

    runs: int
    minutes: float
    """On two cores, if all runs of the table take equally long."""


def left(
    table: Table,
    out: Path,
    *,
    scale: Scale = "paper",
    seeds: int | None = None,
    columns: list[str] | None = None,
    rows: list[str] | None = None,
    known: Outcome | None = None,
) -> Left:
    """How much of a table, or of a part of it, is neither in `out` nor `known` yet."""
    every = _folders(table.cells(scale, *table.limited(scale, None, None), table.count(scale)))
    part = table.cells(scale, *table.limited(scale, columns, rows), table.count(scale, seeds))
    asked = _folders(_unknown(part, known))
    runs = sum(not (out / name / COMPLETE).exists() for name in asked)
    minutes = table.minutes if scale == "paper" else table.quick.minutes or 0.0
    return Left(runs, minutes * runs / len(every))


def _folders(cells: Iterable[Cell]) -> set[str]:
    """The runs of a part of the table: cells may share one."""
    return {cell.folder for cell in cells}


class Loaded:
    """The federation of the cell before: neighbours mostly share it, and large ones take seconds to load."""

    def __init__(self) -> None:
        self.key, self.federation = "", None

    federation: Federation | None

    def of(self, cell: Cell) -> Federation:
        """The cell's federation."""
        config = cell.config
        key = json.dumps([config.data, config.data.get("seed", config.seed), config.precision], sort_keys=True)
        if self.federation is None or key != self.key:
            self.key, self.federation = key, config.load_data()
        return self.federation


def parameters(cell: Cell, data: Loaded) -> float:
    """Floating-point numbers in the server's message to one client."""
    method = cell.config.setup(data.of(cell)).method
    down = method.broadcast(method.init_server(Key.from_seed(cell.seed), 1), torch.zeros(1, dtype=torch.int64))
    return float(sum(leaf.numel() for leaf in tree.leaves(down) if leaf.is_floating_point()))


def done(
    cell: Cell, folder: Path, observers: Observers, data: Loaded, *, keep_models: bool = False
) -> tuple[dict[str, Any], Journal]:
    """The cell's summary and history, from its folder or from a run."""
    if not (folder / COMPLETE).exists():
        setup = cell.config.setup(data.of(cell))
        with at_work(folder, lambda: begin(setup, folder), within=folder.parent):
            carry_out(setup, folder, None, observers(cell.config.method["name"], cell.config.rounds))
    for heavy in () if keep_models else HEAVY:  # may remain after an interruption
        path = folder / heavy
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    journal = Journal(folder)
    try:
        summary = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
        check(folder, summary, JOURNALS)
        journal.load()
        end = summary.get("last", {}).get("round", summary["rounds"])  # earlier, if the method converged
        last = [row for row in journal.rows if row["round"] == end]
        complete = summary["timing"]["seconds"] >= 0 and len(last) > 0 and len(last) % len(summary["clients"]) == 0
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        complete = False
    if not complete:
        raise FedpriorError(f"the run in '{folder}' is damaged: delete that folder and run the table again.")
    return summary, journal


def _enter(outcome: Outcome, table: Table, cell: Cell, summary: Mapping[str, Any], journal: Journal) -> None:
    row, column = table.rows[cell.row], table.columns[cell.column]
    kinds: tuple[tuple[Kind, dict[str, float], dict[str, float]], ...] = (
        ("personal", row.paper, row.error),
        ("global", row.paper_global, row.error_global),
    )
    for kind, published, errors in kinds:
        value = value_of(table, column, kind, summary, journal, per=table.per)
        if value is None or (kind == "global" and not row.paper_global):
            continue
        numbers = outcome.cells.setdefault(kind, {}).setdefault(cell.row, {})
        number = numbers.get(cell.column, Number(published.get(cell.column), [], paper_error=errors.get(cell.column)))
        number.values.append(value / table.unit)
        spread = spread_of(table, column, kind, summary, journal) if table.plus_minus == "clients" else None
        if spread is not None:
            number = number._replace(spread=(*number.spread, spread / table.unit))
        if table.per == "example" and (by_client := value_of(table, column, kind, summary, journal)) is not None:
            number = number._replace(by_client=(*number.by_client, by_client / table.unit))
        numbers[cell.column] = number
