"""The command: which tasks and competitors, how often, and where the results go."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from . import environments, measure, results, table, tasks
from .entrants import FLOWER_LIMIT, Entrant, choose
from .environments import REPOSITORY, BuildError
from .results import Results
from .tasks import SWEEP, TASKS, Task


@dataclass
class Benchmark:
    """One run of the command."""

    tasks: list[Task]
    entrants: list[Entrant]
    out: Path
    flower_limit: int
    timeout: float
    scratch: Path = field(default_factory=lambda: environments.home() / "scratch" / str(os.getpid()))
    begun: datetime = field(default_factory=lambda: datetime.now().astimezone())
    machine: dict[str, Any] = field(default_factory=results.machine)
    fresh: Results = field(default_factory=dict)

    def build(self) -> None:
        """Build the environments that are needed; leave out, with a word, those that cannot be built."""
        for name in sorted({entrant.environment for entrant in self.entrants if entrant.environment}):
            try:
                environments.python(name)
            except BuildError as error:
                print(f"left out: {error}", flush=True)
                self.entrants = [entrant for entrant in self.entrants if entrant.environment != name]

    def run(self, repeats: int) -> None:
        """Everyone in turn, over and over, so that a busy machine slows all alike."""
        try:
            for task in self.tasks:
                tasks.write(task, self._problem(task))
            for repeat in range(repeats):
                for task in self.tasks:
                    for entrant in self.entrants:
                        if entrant.takes_part(task, self.flower_limit):
                            print(f"{repeat + 1}/{repeats} {task.name:<7} {entrant.title:<30}", end="", flush=True)
                            print(self._once(task, entrant), flush=True)
                self.publish()
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _problem(self, task: Task) -> Path:
        return self.scratch / f"{task.name}.npz"

    def _once(self, task: Task, entrant: Entrant) -> str:
        """Run a competitor once, keep what it gave, and say it in a line."""
        answer = self.scratch / "answer.json"
        found = measure.run(entrant.command(self._problem(task), answer), answer, self.timeout)
        versions = found.pop("versions", {})
        entry = self.fresh.setdefault(task.name, {}).setdefault(
            entrant.key,
            {
                "run": self.begun.isoformat(timespec="seconds"),
                "date": self.begun.date().isoformat(),
                "machine": self.machine,
                "task": json.loads(json.dumps(asdict(task))),
                "versions": versions,
                "repeats": [],
            },
        )
        entry["versions"] = entry["versions"] or versions
        entry["repeats"].append(found)
        if "error" in found:
            return str(found["error"])
        seconds = statistics.median(found["rounds"][1:] or found["rounds"])
        return f"{1e3 * seconds:9.1f} ms a round, accuracy {found['accuracy']:.1f} %, loss {found['loss']:.4f}"

    def publish(self) -> None:
        """Put the fresh results over the earlier ones and write the JSON and the tables."""
        everything = results.load(self.out / "peers.json")
        for task, entries in self.fresh.items():
            everything.setdefault(task, {}).update(entries)
        results.judge(everything)
        results.save(self.out / "peers.json", everything)
        results.write_text(self.out / "peers.md", table.markdown(results.load(self.out / "peers.json")))

    def plot(self) -> None:
        """Draw the picture, in an environment of its own."""
        try:
            python = environments.python("plot")
        except BuildError as error:
            print(f"no picture: {error}")
            return
        script = Path(__file__).with_name("plot.py")
        subprocess.run([python, script, self.out / "peers.json", self.out / "peers.png"], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="run.py", description="fedprior and its peers on the same work.")
    parser.add_argument("--tasks", default=",".join(TASKS), help="T1,T2,T3,T4, or T2@500 for one point of the sweep")
    parser.add_argument("--peers", help="keys or families, as fedprior,plain,pfl,fluke,fedlab,flwr; all if left out")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, help="instead of each task's own number")
    parser.add_argument("--sweep", action="store_true", help="T2 with 50 to 1,000 clients as well")
    parser.add_argument("--flower-limit", type=int, default=FLOWER_LIMIT, help="clients up to which Flower is swept")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one competitor's process")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "benchmarks" / "results")
    options = parser.parse_args()
    names = [name for name in options.tasks.split(",") if name]
    names += [f"T2@{clients}" for clients in SWEEP] if options.sweep else []
    chosen = [tasks.find(name) for name in names]
    if options.rounds:
        chosen = [replace(task, rounds=options.rounds) for task in chosen]
    benchmark = Benchmark(chosen, choose(options.peers), options.out, options.flower_limit, options.timeout)
    benchmark.build()
    benchmark.run(options.repeats)
    benchmark.plot()


if __name__ == "__main__":
    main()
