"""The tables of PROTOCOL.md, with the controls that are computed from predictions.

    FEDPRIOR_DATA=STORE python experiments/beyond/tabulate.py FOLDER... [--groups kept,added]
    python experiments/beyond/tabulate.py

Figures of the cells that `run.py` left in the folders are added to `figures.jsonl`, which has a line per federation and
seed and is kept with the project: without a folder, the tables come from it alone, without data or predictions.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from controls import Cell, judged
from run import PLACES, finished
from tables import by_federation, claims, defaults, table

from fedprior.files import write_text

Figures = dict[str, dict[int, dict[str, dict[str, float]]]]
"""Federation -> seed -> row -> figures."""
KEPT = Path(__file__).with_name("figures.jsonl")
DIGITS = 6


def gathered(folder: Path) -> Figures:
    """The figures of a folder's cells, with cost and bytes where every row trained for itself."""
    cells: dict[tuple[str, int], set[str]] = defaultdict(set)
    for name, seed, row in finished(folder):
        cells[name, seed].add(row)
    found: Figures = defaultdict(dict)
    for name, seed in sorted(cells):
        found[name][seed] = judged(Cell(folder, name, seed, cells[name, seed]))
    lines = list(lines_of(folder.glob("cells-*.jsonl")))
    together = {(said["federation"], said["seed"]) for said in lines if said.get("shared")}
    for said in lines:
        place = said["federation"], said["seed"]
        figures = found[place[0]].get(place[1], {}).get(said["row"])
        if figures is None:
            continue  # written since
        if place not in together:  # costs are compared where every row trained for itself, on one machine
            figures |= {"cpu": said["cpu_seconds"]}
            figures |= {"bytes": sum(said["bytes"].values())} if "bytes" in said else {}
        if "selected" in said:
            figures["validation"] = said["selected"]["validation"]["nll"]["mean"]
    return found


def lines_of(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Every JSON line of some files."""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--groups", default="kept")
    options = parser.parse_args()
    every: Figures = {name: {} for name in PLACES}
    for line in lines_of([KEPT] if KEPT.exists() else []):
        every[line["federation"]][line["seed"]] = line["rows"]
    for folder in options.folders:
        for name, seeds in gathered(folder).items():
            for seed, rows in seeds.items():
                known = every[name].setdefault(seed, {})
                known |= {row: known.get(row, {}) | figures for row, figures in rows.items()}  # costs may be known
    found = {name: dict(sorted(seeds.items())) for name, seeds in every.items() if seeds}
    if options.folders:
        write_text(KEPT, "".join(kept_lines(found)))
    names = [name for name in found if PLACES[name].group in options.groups.split(",")]
    print(f"{', '.join(f'{name} ({len(found[name])} seeds)' for name in names)}\n")
    print("\n".join(table(found, names)))
    print("\n".join(claims(found)), "\n")
    print("\n".join(defaults(found)), "\n")
    rows = ["Local", "FedAvg-FT", "pFedVEM", "pFedFDA", "FedMAP", "mixed", "stack", "stack + pFedVEM", "hindsight"]
    for metric in ("nll", "accuracy"):
        print("\n".join(by_federation(found, rows, metric)), "\n")


def kept_lines(found: Figures) -> Iterator[str]:
    """A line of `figures.jsonl` per federation and seed."""
    for name, seeds in found.items():
        for seed, rows in seeds.items():
            short = {row: {what: round(v, DIGITS) for what, v in figures.items()} for row, figures in rows.items()}
            yield json.dumps({"federation": name, "seed": seed, "rows": short}) + "\n"


if __name__ == "__main__":
    main()
