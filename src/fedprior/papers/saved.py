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
from fedprior.papers.cell import folded
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


def merged(table: Table, new: Outcome, known: Outcome | None, *, more: bool) -> Outcome:
    """The outcome with the results that are beside the table by now: another run may have saved there meanwhile.

    With `more`, only runs that `known`, the results at the beginning, lack were made.
    """
    old = beside(table, new.scale)
    if more and old != known:
        raise FedpriorError(
            f"another run changed the saved results of {table.name} meanwhile: give the same command again. Its "
            "finished runs are kept, so it takes only a moment."
        )
    return together(table, old, new, more=more) if old else new


def together(table: Table, old: Outcome, new: Outcome, *, more: bool = False) -> Outcome:
    """Two parts of a table merged; of two numbers for a cell, the one with more seeds wins, or else the newer.

    With `more`, the new seeds of a cell follow the old ones. What the table no longer has is left out.
    """
    rows = [row for row in table.rows if row in {*old.rows, *new.rows}]
    columns = [column for column in table.columns if column in {*old.columns, *new.columns}]
    done = replace(new, rows=rows, columns=columns, seeds=max(old.seeds, new.seeds), cells={}, missing=[])
    kept, found = False, {}
    for cell in itertools.product(rows, columns):
        before, after = _numbers(old, *cell), _numbers(new, *cell)
        found[cell] = _added(before, after) if more else max(after, before, key=_seeds)
        kept |= _seeds(found[cell]) > _seeds(after)
    done.seeds = max(done.seeds, *map(_seeds, found.values()))
    for (row, column), numbers in found.items():
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


def _added(old: dict[Kind, Number], new: dict[Kind, Number]) -> dict[Kind, Number]:
    """The seeds of two parts of a cell, one after the other."""
    return (
        old
        | new
        | {
            kind: old[kind]._replace(
                values=[*old[kind].values, *number.values],
                by_client=(*old[kind].by_client, *number.by_client),
                spread=(*old[kind].spread, *number.spread),
            )
            for kind, number in new.items()
            if kind in old
        }
    )


def to_extend(table: Table, scale: Scale) -> Outcome | None:
    """The results beside the table, to which runs of the table as it is now can be added."""
    found = beside(table, scale)
    if found is not None and scale == "quick" and found.quick != folded(table.quick.run):
        raise FedpriorError(
            f"the saved results of {table.name} have another quick scale than the table now: leave out --more."
        )
    return found


def _seeds(numbers: dict[Kind, Number]) -> int:
    return max((len(number.values) for number in numbers.values()), default=0)
