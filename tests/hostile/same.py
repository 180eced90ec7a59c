"""The same run under different workers, hash seeds and locales leaves the same files.

PYTHONPATH=tests python tests/hostile/same.py     3 workers × 3 hash seeds × 3 locales; prints which runs differ
"""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import fedprior
from hostile.kills import COMMAND, timeless

SITES = ("Köln", "東京", "Clinic [north]", "=1+1", "a", "B", "\u202eabc")
WORKERS, HASHES = (1, 2, 3), ("0", "1", "4711")
LOCALES = ("C", "C.UTF-8", "en_US.ISO-8859-1")
METHODS = "fedmap,pfedvem,ifca"


def table(folder: Path) -> Path:
    """Sites of different sizes, with names of many kinds."""
    rows = [
        f'"{s}",{k % 7},{(k * k) % 5},{"ja" if k % 3 else "né"}\n' for n, s in enumerate(SITES) for k in range(9 + n)
    ]
    path = folder / "sites.csv"
    path.write_text("site,größe,x,y\n" + "".join(rows), encoding="utf-8")
    return path


def locales() -> list[str]:
    """Those that this system has."""
    known = subprocess.run(["locale", "-a"], capture_output=True, check=False).stdout.decode(errors="replace")
    plain = {line.lower().replace("-", "") for line in known.split()}
    return [name for name in LOCALES if name.lower().replace("-", "") in plain]


def compared(data: Path, out: Path, workers: int, hashes: str, locale: str, methods: str = METHODS) -> dict[str, Any]:
    """The files of a comparison, but for times and for the settings that may differ."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHONUTF8", "PYTHONIO"))}
    variables = {"PYTHONHASHSEED": hashes, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    root = str(Path(fedprior.__file__).parents[1])
    settings = ["data.path=sites.csv", "data.target=y", "data.client=site", "chunk=2", "eval_every=1", "train.epochs=1"]
    given = ["compare", "--methods", methods, "--no-baselines", "--data", "csv", *settings, "--rounds", "3", "--quiet"]
    done = subprocess.run(
        [*COMMAND, *given, "--workers", str(workers), "--out", str(out)],
        cwd=data.parent,
        env={**clean, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        name: content
        for name, content in timeless(out).items()
        if Path(name).name not in ("config.toml", "report.html")
    }


def main() -> None:
    """The whole matrix."""
    differ = 0
    with tempfile.TemporaryDirectory() as folder:
        data, cases = table(Path(folder)), list(itertools.product(WORKERS, HASHES, locales()))
        first = compared(data, Path(folder) / "first", *cases[0])
        for number, case in enumerate(cases[1:]):
            found = compared(data, Path(folder) / f"{number}", *case)
            unlike = sorted(name for name in {*found, *first} if found.get(name) != first.get(name))
            differ += bool(unlike)
            print(*case, unlike or "equal", flush=True)
    print(f"{len(cases)} runs, {differ} unlike the first")


if __name__ == "__main__":
    main()
