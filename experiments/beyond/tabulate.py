"""The tables of PROTOCOL.md from the cells of `run.py`, with the controls that are computed from predictions.

FEDPRIOR_DATA=STORE python experiments/beyond/tabulate.py FOLDER [--groups kept,added] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from controls import Cell, judged
from run import PLACES, finished
from tables import by_federation, claims, defaults, table


def gathered(folder: Path) -> dict[str, dict[int, dict[str, dict[str, float]]]]:
    """Federation -> seed -> row -> figures, with cost and bytes of the rows that were run."""
    cells: dict[tuple[str, int], set[str]] = defaultdict(set)
    for name, seed, row in finished(folder):
        cells[name, seed].add(row)
    found: dict[str, dict[int, dict[str, dict[str, float]]]] = defaultdict(dict)
    for name, seed in sorted(cells, key=lambda c: (list(PLACES).index(c[0]), c[1])):
        found[name][seed] = judged(Cell(folder, name, seed, cells[name, seed]))
    for path in folder.glob("cells-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            said = json.loads(line)
            figures = found[said["federation"]].get(said["seed"], {}).get(said["row"])
            if figures is None:
                continue  # written since
            if "cpu_seconds" in said:  # not of a row for which another one trained
                figures["cpu"] = said["cpu_seconds"]
            if "bytes" in said:
                figures["bytes"] = sum(said["bytes"].values())
            if "selected" in said:
                figures["validation"] = said["selected"]["validation"]["nll"]["mean"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--groups", default="kept")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = gathered(options.folder)
    names = [name for name in found if PLACES[name].group in options.groups.split(",")]
    print(f"{', '.join(f'{name} ({len(found[name])} seeds)' for name in names)}\n")
    print("\n".join(table(found, names)))
    print("\n".join(claims(found)), "\n")
    print("\n".join(defaults(found)), "\n")
    rows = ["Local", "FedAvg-FT", "pFedVEM", "pFedFDA", "FedMAP", "mixed", "stack", "stack + pFedVEM", "hindsight"]
    for metric in ("nll", "accuracy"):
        print("\n".join(by_federation(found, rows, metric)), "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
