"""fedprior beside the authors' released code: see the README beside this file.

python benchmarks/authors/run.py [--pfedvem CLONE] [--pfedfda CLONE] [--fedmap CLONE] [--turns 3] [--json FILE]
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # so that this folder is the package `authors`
    runpy.run_module("authors.cli", run_name="__main__")
