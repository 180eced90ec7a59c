"""Every cell of PROTOCOL.md: a federation, a seed, a row. One JSON line and one file of predictions per cell.

    FEDPRIOR_DATA=STORE python experiments/beyond/run.py --out FOLDER [--part 1/2] [--groups kept,added,design]

Cheap federations come first, seed by seed. What is finished is skipped, so the same command goes on where it stopped;
with `--part i/n`, n processes share the cells; `--federations` and `--rows` choose among them. With `--share`, one row
trains for all that mix its experts (`shared.py`): the same predictions, no cost of their own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import time
import traceback
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from references import REFERENCES
from shared import SMALLER, Shared, leaders_first

import fedprior
from fedprior.benchmark.suite import generated
from fedprior.data.federation import Federation
from fedprior.errors import FedpriorError
from fedprior.experiment import Settings
from fedprior.experiment.config import Setup
from fedprior.files import pack, write_bytes
from fedprior.methods import METHODS, build


class Place(NamedTuple):
    """A federation: its data section, the network if not the recipe's, and what is run on it."""

    group: str
    data: dict[str, Any]
    model: dict[str, Any] | None = None
    rounds: int = 50
    table: bool = False  # `mixed` and the references apply
    long: bool = False


def digits(**partition: Any) -> dict[str, Any]:
    return {"name": "digits", "clients": 20, **partition}


PLACES: dict[str, Place] = {  # the cheapest first
    "heart disease": Place("added", {"name": "heart_disease"}, table=True),
    "breast cancer iid": Place("kept", {"name": "breast_cancer", "partition": "iid", "clients": 10}, table=True),
    "breast cancer Dirichlet 0.5": Place(
        "design", {"name": "breast_cancer", "partition": "dirichlet", "alpha": 0.5, "clients": 10}, table=True
    ),
    "generated, slopes 0": Place("added", {"name": "generated", "slopes": 0.0}, {"name": "softmax"}, table=True),
    "generated, slopes 0.8": Place("added", {"name": "generated", "slopes": 0.8}, {"name": "softmax"}, table=True),
    "Office-Caltech SURF": Place("kept", {"name": "office_caltech_surf"}),
    "digits Dirichlet 0.1": Place("kept", digits(partition="dirichlet", alpha=0.1)),
    "digits Dirichlet 1.0": Place("kept", digits(partition="dirichlet", alpha=1.0)),
    "digits 2 labels": Place("kept", digits(partition="labels", labels=2)),
    "digits 5 labels": Place("kept", digits(partition="labels", labels=5)),
    "digits Dirichlet 0.3": Place("design", digits(partition="dirichlet", alpha=0.3)),
    "digits 3 labels": Place("design", digits(partition="labels", labels=3)),
    "USPS Dirichlet 0.3": Place(
        "kept",
        {"name": "usps", "partition": "dirichlet", "alpha": 0.3, "clients": 20},
        {"name": "mlp", "hidden": [64]},
    ),
    "synthetic feature": Place("kept", {"name": "synthetic", "skew": "feature"}, rounds=100),
    "synthetic quantity": Place("kept", {"name": "synthetic", "skew": "quantity"}, rounds=100),
    "synthetic label": Place("design", {"name": "synthetic", "skew": "label"}, rounds=100),
    "FEMNIST writers": Place("added", {"name": "femnist"}, {"name": "mlp", "hidden": [100]}, long=True),
    "Fashion-MNIST Dirichlet 0.3": Place(
        "added",
        {"name": "fashion_mnist", "partition": "dirichlet", "alpha": 0.3, "clients": 20},
        {"name": "mlp", "hidden": [100]},
        long=True,
    ),
}
FURTHER = 10_000
"""Between the seeds of FedAvg-FT's further runs on one partition."""


class Row(NamedTuple):
    """A method with its options; `further` counts other seeds on the same partition."""

    name: str
    options: dict[str, Any] = {}  # noqa: RUF012 - never written to
    further: int = 0
    tables: bool = False


ROWS: dict[str, Row] = {
    "Local": Row("local"),
    "FedAvg": Row("fedavg"),
    "FedAvg-FT": Row("fedavg_ft"),
    "stack": Row("stack"),
    "Local+CAL": Row("local+cal"),
    "FedAvg-FT+CAL": Row("fedavg_ft+cal"),
    "mixed": Row("mixed", tables=True),
    "stack + mixed": Row("stack", {"experts": ["local", "fedavg_ft", "mixed"]}, tables=True),
    "pFedVEM": Row("pfedvem"),
    "stack + pFedVEM": Row("stack", {"experts": ["local", "fedavg_ft", "pfedvem"]}),
    "stack, blind twins": Row("stack", {"scores": "holdout"}),
    "stack + pFedVEM, blind twins": Row("stack", {"experts": ["local", "fedavg_ft", "pfedvem"], "scores": "holdout"}),
    "pFedFDA": Row("pfedfda"),
    "stack + pFedVEM + pFedFDA": Row("stack", {"experts": ["local", "fedavg_ft", "pfedvem", "pfedfda"]}),
    "FedAvg-FT, second": Row("fedavg_ft", further=1),
    "FedAvg-FT, third": Row("fedavg_ft", further=2),
    "FedMAP": Row("fedmap"),
    "Ditto": Row("ditto"),
    "MR-MTL": Row("mr_mtl"),
}


@lru_cache(maxsize=1)
def federation(name: str, seed: int) -> Federation:
    """The data of a cell."""
    options = dict(PLACES[name].data)
    kind = options.pop("name")
    return generated(seed, **options) if kind == "generated" else fedprior.data.load(kind, seed=seed, **options)


def cells(groups: set[str], seeds: list[int], *, long: bool, share: bool) -> Iterator[tuple[str, int, str]]:
    """Federations from cheap to long; in one, all rows of a seed before the next seed; with `share`, leaders first."""
    ordered = leaders_first(ROWS) if share else list(ROWS)
    for name, place in PLACES.items():
        if place.group in groups and (long or not place.long):
            rows = [row for row in ordered if place.table or not ROWS[row].tables]
            rows += list(REFERENCES) if place.table else []
            yield from ((name, seed, row) for seed, row in itertools.product(seeds, rows))


def measure(
    name: str, seed: int, row: str, rounds: int, shared: Shared | None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What a cell says, and its predictions on validation and test rows."""
    place, data, began = PLACES[name], federation(name, seed), time.process_time()
    if row in REFERENCES:
        predictions = REFERENCES[row](data)
        return {"cpu_seconds": time.process_time() - began}, _named(predictions)
    own = seed + FURTHER * ROWS[row].further
    settings = Settings(rounds=rounds, seed=own, workers=1)

    def bound(row: str) -> Setup:
        return Setup.of(build(ROWS[row].name, ROWS[row].options), data, place.model, settings)

    smaller = {other: bound(other).method for other in SMALLER.get(row, ())} if shared else {}
    result, several = (shared or Shared()).run((name, seed), row, bound(row), smaller)
    own_cost = {"cpu_seconds": time.process_time() - began, "bytes": result.summary["bytes"]}
    said = {
        "round": result.selected,
        "rounds": rounds,
        "selected": result.summary["selected"]["personal"],
        "left_out": result.summary["left_out"],
    }
    return said | ({"shared": True} if several else own_cost), _named(result.predictions)


def _named(predictions: Any) -> dict[str, np.ndarray]:
    return {f"{split}/{k}": np.asarray(p) for split, each in predictions.items() for k, p in enumerate(each)}


def finished(folder: Path) -> set[tuple[str, int, str]]:
    """Cells that any process has done."""
    done = set()
    for path in folder.glob("cells-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                cell = json.loads(line)
            except ValueError:
                continue  # cut off by a crash
            done.add((cell["federation"], cell["seed"], cell["row"]))
    return done


def prediction_file(folder: Path, name: str, seed: int, row: str) -> Path:
    """Where a cell's predictions lie."""
    return folder / "predictions" / f"{name}-{seed}-{row}.safetensors".replace(" ", "_").replace(",", "")


def _commit() -> str:
    """The code that a line comes from."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--groups", default="kept,added,design")
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--long", action="store_true", help="FEMNIST and Fashion-MNIST too")
    parser.add_argument("--federations", help="only these, separated by semicolons")
    parser.add_argument("--rows", help="only these, separated by semicolons")
    parser.add_argument("--rounds", type=int, help="instead of the protocol's")
    parser.add_argument(
        "--share", action="store_true", help="rows that are experts of a stack take their training from it"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = (int(k) for k in options.part.split("/"))
    first, last = (int(k) for k in options.seeds.split("-"))
    (options.out / "predictions").mkdir(parents=True, exist_ok=True)
    wanted = list(
        cells(set(options.groups.split(",")), list(range(first, last + 1)), long=options.long, share=options.share)
    )
    for place, given in ((0, options.federations), (2, options.rows)):
        if given is not None:
            wanted = [cell for cell in wanted if cell[place] in given.split(";")]
    places = list(dict.fromkeys((name, seed) for name, seed, _ in wanted))
    mine = [cell for cell in wanted if places.index(cell[:2]) % parts == part - 1]  # a partition is loaded once
    done, missing, commit = finished(options.out), set(), _commit()
    shared = Shared() if options.share else None
    for number, (name, seed, row) in enumerate(mine, 1):
        skipped = (name, seed, row) in done or PLACES[name].data["name"] in missing
        if skipped or (row in ROWS and ROWS[row].name not in METHODS and "+" not in ROWS[row].name):
            continue
        line, began = {"federation": name, "seed": seed, "row": row, "commit": commit}, time.process_time()
        try:
            said, predictions = measure(name, seed, row, options.rounds or PLACES[name].rounds, shared)
        except FedpriorError as error:
            print(f"{name}, {row}: {error}", flush=True)
            if "not stored" in str(error) or "data fetch" in str(error):
                missing.add(PLACES[name].data["name"])
            continue
        except Exception:  # one failure must not stop the rest
            print(f"{name} {seed} {row}\n{traceback.format_exc()}", flush=True)
            continue
        write_bytes(prediction_file(options.out, name, seed, row), pack(predictions))
        with (options.out / f"cells-{part}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, **said}) + "\n")
        print(f"{number}/{len(mine)}  {name}  seed {seed}  {row}  {time.process_time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
