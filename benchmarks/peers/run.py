"""fedprior against flwr, pfl, fluke, FedLab and a plain PyTorch loop: see the README beside this file.

python benchmarks/peers/run.py [--tasks T1,T2,T3,T4] [--peers ...] [--repeats 5] [--rounds N] [--sweep] [--out FOLDER]
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # so that this folder is the package `peers`
    runpy.run_module("peers.cli", run_name="__main__")
