"""A virtual environment for each peer, since no two of them agree on their dependencies.

They live in `$FEDPRIOR_PEERS`, or in `.peers` at the top of the repository, and are built when absent.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"

Installs = tuple[tuple[str, ...], ...]
"""The arguments of some `pip install`s in a row."""


class BuildError(Exception):
    """An environment could not be built."""


@dataclass(frozen=True)
class Recipe:
    """Ways to install a peer; the first that works is taken."""

    ways: tuple[Installs, ...]
    torch: bool = True


RECIPES = {
    # flwr 1.42.0 asks for a certifi that some indexes do not have yet; it runs well on the dependencies of 1.41.
    "flwr": Recipe(
        (
            (("flwr[simulation]==1.42.0",),),
            (("flwr[simulation]<1.42",), ("--no-deps", "flwr==1.42.0")),
            (("flwr[simulation]<1.42",),),
        )
    ),
    "pfl": Recipe(((("pfl[pytorch]==0.6.0",),),)),
    "fluke": Recipe(((("fluke-fl==0.8.1",),),)),
    # FedLab is of 2022, asks for no upper bounds and runs with today's NumPy.
    "fedlab": Recipe(((("fedlab==1.3.0",),),)),
    "plot": Recipe(((("matplotlib",),),), torch=False),
}


def home() -> Path:
    """The folder of everything that is built or written on the way."""
    return Path(os.environ.get("FEDPRIOR_PEERS") or REPOSITORY / ".peers").resolve()


def python(name: str) -> Path:
    """The interpreter of an environment, which is built first if need be."""
    folder = home() / name
    interpreter, ready, recipe = folder / "bin" / "python", folder / "ready", RECIPES[name]
    if ready.exists() and ready.read_text() == repr(recipe):
        return interpreter
    print(f"building the environment of {name}", flush=True)
    home().mkdir(parents=True, exist_ok=True)
    (home() / ".gitignore").write_text("*\n")
    errors = []
    for way in recipe.ways:
        _call(sys.executable, "-m", "venv", "--clear", str(folder))
        try:
            if recipe.torch:  # first and alone, so that no other package can pull another build of it
                _install(interpreter, TORCH, "numpy")
            for arguments in way:
                _install(interpreter, *arguments)
        except BuildError as error:
            errors.append(str(error))
            continue
        ready.write_text(repr(recipe))
        return interpreter
    raise BuildError(f"{name} could not be installed: {errors[-1]}")


def _install(interpreter: Path, *arguments: str) -> None:
    constraints = home() / "constraints.txt"
    constraints.write_text(f"{TORCH}\n")
    options = ("--quiet", "--disable-pip-version-check", "--constraint", str(constraints))
    _call(str(interpreter), "-m", "pip", "install", *options, *arguments)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        complaints = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr[-300:]]
        raise BuildError(complaints[-1][-300:])
