"""Who takes part in what, and how each is started."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from . import environments
from .tasks import Task

FLOWER_LIMIT = 200  # clients in the sweep; Flower takes several times longer than any other


@dataclass(frozen=True)
class Entrant:
    """A competitor in one configuration."""

    key: str
    title: str
    module: str
    environment: str | None = None  # None: the interpreter that runs the benchmark
    processes: int = 1  # under torchrun
    options: tuple[str, ...] = ()
    only: tuple[str, ...] = ("T1", "T2", "T3", "sweep")

    def takes_part(self, task: Task, flower_limit: int = FLOWER_LIMIT) -> bool:
        """Whether it does this task."""
        sweep = "@" in task.name
        if sweep and self.environment == "flwr" and task.clients > flower_limit:
            return False
        return ("sweep" if sweep else task.name) in self.only

    def command(self, problem: Path, answer: Path) -> list[str]:
        """The process to start."""
        python = environments.python(self.environment) if self.environment else sys.executable
        launcher = ["-m"]
        if self.processes > 1:
            launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={self.processes}", "-m"]
        module = f"{__package__}.competitors.{self.module}"
        return [str(python), *launcher, module, str(problem), str(answer), *self.options]


EVERYTHING = ("T1", "T2", "T3", "T4", "sweep")
OURS, PLAIN = "fedprior-2", "plain"

ENTRANTS = {
    entrant.key: entrant
    for entrant in (
        Entrant(OURS, "fedprior, 2 workers", "ours", options=("--workers", "2"), only=EVERYTHING),
        Entrant("fedprior-1", "fedprior, 1 worker", "ours", only=("T1", "T2", "T3", "T4")),
        Entrant(PLAIN, "plain PyTorch loop", "plain", only=EVERYTHING),
        Entrant(
            "plain-reordered",
            "plain loop, network reordered",
            "plain",
            options=("--network", "reordered"),
            only=("T3",),
        ),
        Entrant("pfl-2", "pfl, 2 processes", "pfl_research", "pfl", processes=2),
        Entrant("pfl-1", "pfl, 1 process", "pfl_research", "pfl", only=("T1", "T2", "T3")),
        Entrant("fluke", "fluke", "fluke_serial", "fluke", only=EVERYTHING),
        Entrant("fedlab", "FedLab", "fedlab_serial", "fedlab"),
        Entrant("flwr", "Flower, 2 Ray actors", "flower", "flwr", options=("--workers", "2"), only=EVERYTHING),
    )
}


def choose(names: str | None) -> list[Entrant]:
    """Entrants by key or by the part of it before the dash; without names all of them."""
    if names is None:
        return list(ENTRANTS.values())
    wanted = names.split(",")
    families = {key.partition("-")[0] for key in ENTRANTS}
    for name in wanted:
        if name not in ENTRANTS and name not in families:
            raise SystemExit(f"there is no peer '{name}': choose among {', '.join(ENTRANTS)}.")
    return [e for e in ENTRANTS.values() if e.key in wanted or e.key.partition("-")[0] in wanted]
