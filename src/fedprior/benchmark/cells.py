"""A cell is a method on a federation and a seed: all its tries are trained, and validation chooses one."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedprior import experiment
from fedprior.benchmark.lines import Line, add_line, read_lines
from fedprior.benchmark.own import load_own
from fedprior.benchmark.search import Try, drawn
from fedprior.benchmark.suite import PLACES
from fedprior.data.federation import Federation
from fedprior.engine.lifeline import tie
from fedprior.engine.memory import how_to_start
from fedprior.errors import FedpriorError
from fedprior.experiment.result import Result
from fedprior.files import folder_lock
from fedprior.methods import build
from fedprior.metrics import SELECTS
from fedprior.training import Train

DIGITS = 5
"""Decimals of a figure in a line."""


class Cell(NamedTuple):
    """A method on a federation and a seed."""

    federation: str
    seed: int
    method: str


class Plan(NamedTuple):
    """What is run: cells, and what each may spend."""

    cells: Sequence[Cell]
    tries: int
    rounds: int | None = None  # at most; None: each federation's own
    own: tuple[Path, ...] = ()  # files with methods of the user's own

    def rounds_of(self, federation: str) -> int:
        """Rounds of every method on a federation."""
        usual = PLACES[federation].rounds
        return usual if self.rounds is None else min(usual, self.rounds)


def run_cells(plan: Plan, out: Path, workers: int = 1, tell: Callable[[Line, int], None] | None = None) -> list[Line]:
    """Run what is not finished, and return all lines of the folder.

    `tell` is called with each finished cell and the number of those that are left.
    """
    for path in plan.own:
        load_own(path)
    with folder_lock(out):
        out.mkdir(parents=True, exist_ok=True)
        known = read_lines(out)
        _check_budget(plan, known, out)
        done = {(line.federation, line.seed, line.method) for line in known}
        waiting = [cell for cell in plan.cells if cell not in done]
        for left, line in zip(range(len(waiting) - 1, -1, -1), _lines(plan, waiting, workers), strict=True):
            add_line(out, line)
            if tell is not None:
                tell(line, left)
        return read_lines(out)


def _check_budget(plan: Plan, known: list[Line], out: Path) -> None:
    for line in known:
        rounds = plan.rounds_of(line.federation) if line.federation in PLACES else line.rounds
        if (line.tries, line.rounds) != (plan.tries, rounds):
            raise FedpriorError(
                f"'{out}' has cells with {line.tries} tries and {line.rounds} rounds on {line.federation}, not "
                f"{plan.tries} and {rounds}: use the same --tries and --rounds, or another --out."
            )


def _lines(plan: Plan, waiting: Sequence[Cell], workers: int) -> Iterator[Line]:
    """Finished cells, in any order if there are several workers."""
    if workers == 1 or len(waiting) < 2:
        yield from (run_cell(plan, cell) for cell in waiting)
        return
    context = multiprocessing.get_context(how_to_start())
    with ProcessPoolExecutor(min(workers, len(waiting)), context, initializer=_begin, initargs=(plan.own,)) as pool:
        futures = [pool.submit(run_cell, plan, cell) for cell in waiting]
        try:
            yield from (future.result() for future in as_completed(futures))
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(own: Sequence[Path]) -> None:
    tie()
    torch.set_num_threads(1)
    for path in own:
        load_own(path)


def run_cell(plan: Plan, cell: Cell) -> Line:
    """All tries of a cell; the one with the lowest validation NLL is its figures."""
    rounds = plan.rounds_of(cell.federation)
    empty = Line(*cell, tries=plan.tries, rounds=rounds)
    best: Line | None = None
    why = ""
    for number, one in enumerate(drawn(cell.method, cell.federation, cell.seed, plan.tries)):
        try:
            line = _tried(empty, one)
        except FedpriorError as error:
            why = why or str(error)
            if number == 0:  # its defaults do not run here: neither will others
                break
            continue
        if best is None or _score(line) < _score(best):
            best = line
    return best or replace(empty, refused=why)


def _score(line: Line) -> float:
    return math.inf if line.validation is None else line.validation


@lru_cache(maxsize=1)
def _federation(name: str, seed: int) -> Federation:
    return PLACES[name].load(seed)


def _tried(empty: Line, one: Try) -> Line:
    data, began = _federation(empty.federation, empty.seed), time.process_time()
    train = Train(**data.recipe.get("train", {}))
    train = replace(train, lr=train.lr * one.rate)
    method = build(empty.method, one.options, train)
    model = PLACES[empty.federation].model
    result = experiment.run(method, data, model=model, rounds=empty.rounds, seed=empty.seed, workers=1)
    return replace(
        empty, options=one.options, rate=one.rate, cpu_seconds=round(time.process_time() - began, 2), **_figures(result)
    )


def _figures(result: Result) -> dict[str, Any]:
    test = result.scores
    accuracies = (result.values[client].get("accuracy") for client in result.federation.clients)
    return {
        "validation": _rounded(result.summary["selected"]["personal"]["validation"][SELECTS]["mean"]),
        **{metric: _rounded(test[metric]["mean"]) for metric in ("accuracy", "nll", "ece")},
        "worst": _rounded(test["accuracy"]["worst_decile"]),
        "sites": [_rounded(value) for value in accuracies],
        "bytes": sum(result.summary["bytes"].values()),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), DIGITS)
