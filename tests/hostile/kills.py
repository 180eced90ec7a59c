"""Kill the command at random moments, run it again, and compare with a run that was left alone.

    python tests/hostile/kills.py 100        100 kills; prints what was killed when, and whether all is equal

The whole process group gets SIGKILL, from the first instant on. Then the same command runs again, or `fedprior resume`
where there is a run to resume. Models, tables and summaries must be those of the uninterrupted run, but for times.
"""

from __future__ import annotations

import json
import os
import random
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
METHODS = ["fedmap", "fedavg", "ditto", "fedprox", "local", "fedavg+ft", "fedavg+server_step", "fedmap+ft"]


def timeless(folder: Path) -> dict[str, Any]:
    """Every file that a run leaves, but for times; nothing hidden may be among them."""
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
            found[name] = [{k: v for k, v in json.loads(e).items() if k != "seconds"} for e in content.splitlines()]
        elif "table" not in path.parts[-1]:  # a reproduced table tells when it was made
            found[name] = content
    return found


def killed(args: list[str], after: float) -> bool:
    """Start the command and kill all its processes after so many seconds; False if it was faster."""
    with subprocess.Popen([*COMMAND, *args], start_new_session=True, stderr=subprocess.DEVNULL) as process:
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return True
    return False


def finish(args: list[str], out: Path, *, resume: bool) -> None:
    """Run it to its end: by the same command, or by `resume` where there is something to resume."""
    begun = any((out / name).exists() for name in ("config.toml", "comparison.toml"))
    again = ["resume", str(out), "--quiet"] if resume and begun else args
    done = subprocess.run([*COMMAND, *again], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(again)}: {done.stderr}")


def commands(random: random.Random) -> list[str]:
    """A command without its folder."""
    workers = ["--workers", random.choice(["1", "2"])]
    if random.random() < 0.6:
        beside = random.choice([["--no-local"], []])
        return ["run", "--method", random.choice(METHODS), *DATA, *SHORT, *workers, *beside]
    return ["compare", "--methods", ",".join(random.sample(METHODS, 2)), *DATA, *SHORT, *workers]


def trial(args: list[str], place: Path, kills: int, random: random.Random) -> int:
    """Kill one command some times in a row, each time at a random moment of what it takes; how often it was killed."""
    whole, cut, count = place / "whole", place / "cut", 0
    began = time.monotonic()
    finish([*args, "--out", str(whole)], whole, resume=False)
    takes = time.monotonic() - began
    for _ in range(kills):
        begun = any((cut / name).exists() for name in ("config.toml", "comparison.toml"))
        resume = begun and args[0] != "reproduce"
        count += killed(
            ["resume", str(cut), "--quiet"] if resume else [*args, "--out", str(cut)], random.uniform(0, takes)
        )
    finish([*args, "--out", str(cut)], cut, resume=args[0] != "reproduce")
    ours, theirs = timeless(cut), timeless(whole)
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    different = [name for name in ours if ours[name] != theirs[name]]
    assert different == [], f"{' '.join(args)}: {different}"
    left = sorted(p.name for p in place.iterdir())
    assert left == ["cut", "whole"], left
    return count


def main() -> None:
    """So many kills as the first argument says, three in a row of each command."""
    wanted, drawn = int(sys.argv[1]), random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    table = sys.argv[3] if len(sys.argv) > 3 else None
    count = failures = 0
    while count < wanted:
        args = ["reproduce", table, "--quiet", "--scale", "quick"] if table else commands(drawn)
        place = Path(tempfile.mkdtemp())
        try:
            count += trial(args, place, 3, drawn)
            print(f"{count:4} equal  {' '.join(args)}", flush=True)
        except AssertionError as error:
            failures += 1
            count += 1
            print(f"{count:4} DIFFERENT  {error}", flush=True)
        finally:
            shutil.rmtree(place)
    print(f"{count} kills, {failures} failures")


if __name__ == "__main__":
    main()
