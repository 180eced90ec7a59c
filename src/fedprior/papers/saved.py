"""Results saved beside a table: read them, and merge new partial results into them."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedprior.errors import FedpriorError
from fedprior.papers import provenance
from fedprior.papers.definition import Scale, Table
from fedprior.papers.outcome import Kind, Number, Outcome

LATER = ("plus_minus", "figure", "drawn")
"""Fields that results of earlier versions do not have."""


def beside(table: Table, scale: Scale) -> Outcome | None:
    """The results saved beside the table."""
    stem = table.results(scale)
    path = stem.parent / f"{stem.name}.json"
    return read(path) if path.exists() else None


def read(path: Path) -> Outcome:
    """An outcome from its `document`."""
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name: document[field.name] for field in fields(Outcome) if field.name not in LATER}
        known |= {name: document[name] for name in LATER if name in document}
        known["cells"] = {
            kind: {row: {column: _number(n) for column, n in columns.items()} for row, columns in rows.items()}
            for kind, rows in document["cells"].items()
        }
        known["missing"] = [tuple(run) for run in document["missing"]]
        return Outcome(**known)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FedpriorError(
            f"the results in '{path}' cannot be read ({why}): move them away, or run the whole table."
        ) from None


def _number(cell: dict[str, Any]) -> Number:
    values, by_client = (
        [math.nan if v is None else v for v in found] for found in (cell["values"], cell.get("by_client", ()))
    )  # null: a client diverged
    return Number(cell["paper"], values, tuple(by_client), cell.get("paper_error"), tuple(cell.get("spread", ())))


def together(table: Table, old: Outcome, new: Outcome) -> Outcome:
    """Two parts of a table merged; of two numbers for a cell, the one with more seeds wins, or else the newer.

    Rows and columns that the table no longer has are left out.
    """
    kept = False
    rows = [row for row in table.rows if row in {*old.rows, *new.rows}]
    columns = [column for column in table.columns if column in {*old.columns, *new.columns}]
    done = replace(new, rows=rows, columns=columns, seeds=max(old.seeds, new.seeds), cells={}, missing=[])
    for row, column in itertools.product(rows, columns):
        numbers = max(_numbers(new, row, column), _numbers(old, row, column), key=_seeds)
        kept |= _seeds(numbers) > _seeds(_numbers(new, row, column))
        for kind, number in (numbers or {"personal": Number(table.rows[row].paper.get(column), [])}).items():
            done.cells.setdefault(kind, {}).setdefault(row, {})[column] = number
        done.missing += [(row, column, seed) for seed in range(_seeds(numbers), done.seeds)]
    newer = {(line["row"], line["column"], line["seed"]) for line in new.drawn}
    kept_lines = [line for line in old.drawn if (line["row"], line["column"], line["seed"]) not in newer]
    done.drawn = [line for line in kept_lines if line["row"] in rows and line["column"] in columns] + new.drawn
    done.chosen = {row: setting for row, setting in (old.chosen | new.chosen).items() if row in rows}
    done.about = dict(new.about)
    if kept:
        done.about["earlier"] = [*old.about.get("earlier", []), {key: old.about[key] for key in ("date", "commit")}]
        done.about["seconds"] += old.about["seconds"]
    done.about |= {"command": provenance.command(table, done), "part": provenance.part(table, done)}
    return done


def _numbers(outcome: Outcome, row: str, column: str) -> dict[Kind, Number]:
    """What was run of a cell, by kind."""
    found = {kind: outcome.number(kind, row, column) for kind in outcome.cells}
    return {kind: number for kind, number in found.items() if number is not None and number.values}


def _seeds(numbers: dict[Kind, Number]) -> int:
    return max((len(number.values) for number in numbers.values()), default=0)
