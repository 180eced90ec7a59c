"""What `import fedprior` gives, and what it does not wait for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedprior
from fedprior import experiment, training


def test_every_public_name_is_there() -> None:
    for name in fedprior.__all__:
        assert getattr(fedprior, name).__name__.endswith(name)
    assert set(fedprior.__all__) <= set(dir(fedprior))
    assert fedprior.run is experiment.run
    assert fedprior.Train is training.Train


def test_rooms_are_attributes() -> None:
    assert fedprior.methods.__name__ == "fedprior.methods"


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'fedprior' has no attribute 'rum'"):
        fedprior.rum  # noqa: B018
    with pytest.raises(AttributeError):
        fedprior._private  # noqa: B018


@pytest.mark.parametrize("command", ["--help", "--version", "reproduce --help", "data fetch --help"])
def test_help_does_not_wait_for_pytorch(command: str) -> None:
    script = (
        "import sys; from fedprior.cli.main import app\n"
        f"try: app({command.split()!r}, prog_name='fedprior')\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def test_the_lock_has_the_versions_of_the_constraints() -> None:
    """Every dependency that `make` installs, of the package and of its extras, in the same version; with hashes."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {re.split(r"[^\w-]", line)[0] for line in wanted} - {"fedprior"}
    pins, lock = (
        dict(re.findall(r"^([\w.-]+)==([^\s;+]+)", (root / file).read_text(), re.MULTILINE))
        for file in ("constraints.txt", "requirements.lock")
    )
    shared = names & pins.keys()
    assert {name: pins[name] for name in shared} == {name: lock.get(name) for name in shared}, "the lock is stale"
    assert (root / "requirements.lock").read_text().count("\n    --hash=sha256:") >= len(lock)


def test_pre_commit_mirrors_make_lint() -> None:
    """The same commands with the same options, one by one; only the files are chosen by each in its own way."""
    root = Path(__file__).parents[1]
    recipe = (root / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    commands = re.findall(r"^\t\$\(BIN\)/(.*)", recipe, re.MULTILINE)
    hooks = re.findall(r"entry: \.venv/bin/(.*?)(?:, language|$)", (root / ".pre-commit-config.yaml").read_text(), re.M)
    assert len(hooks) >= 9
    for command, hook in zip(commands, hooks, strict=True):
        assert command == hook or command.startswith(f"{hook} "), f"{command} is not {hook}"


def test_the_citation_has_the_version() -> None:
    citation = (Path(__file__).parents[1] / "CITATION.cff").read_text()
    assert f"\nversion: {fedprior.__version__}\n" in citation
