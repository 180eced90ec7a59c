"""Kill the command at random moments, run it again, and compare with a run that was left alone.

    python tests/hostile/kills.py 200 [SEED]     200 kills or more, of every command; prints whether all is equal

Every method, every wrapper, comparisons of data sets and of a table over repeated splits, searches of settings, a
reproduced table and Ray take their turns, in an order that the seed decides. The whole process group gets SIGKILL,
from the first instant on.
Then the same command runs again, or `fedprior resume` where there is a run to resume. All files must be those of the
uninterrupted run, but for times.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "fedprior"]
DATA = ["--data", "synthetic", "data.clients=4"]
SHORT = ["--rounds", "12", "--quiet", "chunk=2", "train.epochs=1", "checkpoint_every=1", "eval_every=3"]
IN_A_ROW = 3
"""Kills of one command."""
FEW = 10
"""Fewer kills than these are a quick look, and not of every command."""
TABLE = """
title = "Table 0, a miniature"
paper = "Somebody (2024)"

[run]
rounds = 20
eval_every = 2
checkpoint_every = 1
data = {name = "synthetic", clients = 4, samples = 40}
train = {epochs = 1, lr = 0.01}

[columns.label]
run.data.skew = "label"
[columns.feature]
run.data.skew = "feature"

[rows.FedMAP]
paper = {label = 80.0}
method = {name = "fedmap"}
[rows.Local]
method = {name = "local"}

[quick]
run.rounds = 8
"""
MINIATURE = (
    "import sys; from pathlib import Path; import fedprior.papers.definition as t; place = Path(sys.argv.pop(1)); \
t.folder = lambda: place; from fedprior.cli.main import main; main()"
)
"""The command, which finds the tables of another folder."""


def timeless(folder: Path) -> dict[str, Any]:
    """Every file that a run leaves, but for times and for whose they are; nothing hidden may be among them.

    Methods of a comparison that train alike train once; `trained_by` says which did, another one after an interruption.
    """
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name, content = str(path.relative_to(folder)), path.read_bytes()
        assert not path.name.startswith("."), f"{name} was left behind"
        if path.name == "summary.json":
            found[name] = {k: v for k, v in json.loads(content).items() if k != "timing"}
        elif path.name == "manifest.json":
            found[name] = json.loads(content)
            del found[name]["journals"]["events.jsonl"]
        elif path.name == "events.jsonl":
            events = [json.loads(line) for line in content.splitlines()]
            found[name] = [{k: v for k, v in e.items() if k not in ("seconds", "trained_by")} for e in events]
        elif (
            path.name == "report.html"
        ):  # says where the run is and how long it took; its numbers are in other files too
            found[name] = re.sub(r"\d+\.\d+", "", content.decode().replace(str(folder), ""))
        elif path.name == "table.json":  # `about` and the pages made from it say when, and how long it took
            found[name] = {k: v for k, v in json.loads(content).items() if k != "about"}
        else:
            found[name] = None if path.stem == "table" or path.name == "study.db" else content  # with dates, both
    return found


def started(args: list[str]) -> list[str]:
    """The process for a command; a table's name stands for the folder that the table lies in."""
    if args[0] == "reproduce":
        place = Path(args[1])
        return [
            sys.executable,
            "-c",
            MINIATURE,
            str(place.parents[1]),
            "reproduce",
            "/".join(place.parts[-2:]),
            *args[2:],
        ]
    return [*COMMAND, *args]


def killed(args: list[str], after: float) -> bool:
    """Start the command and kill all its processes after so many seconds; False if it was faster."""
    with subprocess.Popen(started(args), start_new_session=True, stderr=subprocess.DEVNULL) as process:
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return True
    return False


def again(args: list[str], out: Path) -> list[str]:
    """What continues a command: `resume` where there is something to resume, else itself."""
    begun = any((out / name).exists() for name in ("config.toml", "comparison.toml", "assessment.toml"))
    return ["resume", str(out), "--quiet"] if begun else [*args, "--out", str(out)]


def finish(args: list[str], out: Path) -> None:
    """Do what is left of a command."""
    done = subprocess.run(started(again(args, out)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(again(args, out))}: {done.stderr}")


def trial(args: list[str], place: Path, kills: int, random: random.Random) -> int:
    """Kill one command some times in a row, each time at a random moment of what it takes; how often it was killed."""
    whole, cut, count = place / "whole", place / "cut", 0
    began = time.monotonic()
    finish(args, whole)
    takes = time.monotonic() - began
    for _ in range(kills):
        count += killed(again(args, cut), random.uniform(0, takes))
    finish(args, cut)
    ours, theirs = timeless(cut), timeless(whole)
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    different = [name for name in ours if ours[name] != theirs[name]]
    assert different == [], f"{' '.join(args)}: {different}"
    left = sorted(p.name for p in place.iterdir())
    assert left == ["cut", "whole"], left
    return count


def miniature(folder: Path) -> list[str]:
    """The command that reproduces a small table, which is put into a folder."""
    path = folder / "papers" / "small" / "table0.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TABLE)
    return ["reproduce", str(path.with_suffix("")), "--scale", "quick", "--seeds", "1", "--quiet", "--workers", "1"]


def own_table(folder: Path) -> Path:
    """A small table of three sites, with a category and gaps."""
    rows = [f"{'abc'[k % 3]},{k * k % 7},{'' if k % 11 == 0 else k % 5},{'xyz'[k // 3 % 3]},{k % 2}" for k in range(60)]
    path = folder / "own.csv"
    path.write_text("\n".join(["site,u,v,w,y", *rows, ""]))
    return path


def commands(drawn: random.Random, folder: Path) -> list[list[str]]:
    """Every kind of command without its output folder, in random order."""
    from fedprior.methods import METHODS
    from fedprior.wrappers import WRAPPERS

    names = [*METHODS, *(f"{method}+{wrapper}" for wrapper in WRAPPERS for method in ("fedavg", "fedprox"))]

    def more() -> list[str]:
        return [*DATA, *SHORT, "--workers", drawn.choice(["1", "2"])]

    found = [["run", "--method", name, *drawn.choice([["--no-local"], []]), *more()] for name in names]
    found += [["compare", "--methods", ",".join(drawn.sample(names, 2)), *more()] for _ in range(10)]
    table = [
        "compare",
        str(own_table(folder)),
        "--site",
        "site",
        "--target",
        "y",
        "--splits",
        "2",
        "checkpoint_every=1",
    ]
    found += [
        [*table, "--methods", ",".join(drawn.sample(names, 2)), "--rounds", "5", "--quiet", "--workers", workers]
        for workers in ("1", "2", "1", "2", "1", "2")
    ]
    search = ["tune", *table[1:6], "--methods", "fedmap", "--rounds", "2", "--workers", "1", "--quiet"]
    found += [[*search, "--tries", "3", "--splits", "1"], [*search, "--tries", "2", "--splits", "2"]]
    found += [
        ["run", "--method", name, "--no-local", *DATA, *SHORT, "engine=ray"] for name in ("fedavg", "fedmap", "ditto")
    ]
    found += [[*miniature(folder)[:-1], drawn.choice(["1", "2"])] for _ in range(6)]
    drawn.shuffle(found)
    return found


def main() -> None:
    """At least as many kills as the first argument says, and of all commands."""
    wanted, drawn = int(sys.argv[1]), random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    count = trials = failures = 0
    with tempfile.TemporaryDirectory() as folder:
        every = commands(drawn, Path(folder))
        for args in itertools.cycle(every):
            place = Path(folder) / "trial"
            place.mkdir()
            try:
                count += trial(args, place, IN_A_ROW, drawn)
                print(f"{count:4} equal  {' '.join(args)}", flush=True)
            except AssertionError as error:
                failures += 1
                print(f"{count:4} DIFFERENT  {' '.join(args)}  {error}", flush=True)
            finally:
                trials += 1
                shutil.rmtree(place)
            if count >= wanted and (trials >= len(every) or wanted < FEW):
                break
    print(f"{count} kills of {trials} commands, {failures} failures")


if __name__ == "__main__":
    main()
