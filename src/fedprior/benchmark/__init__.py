"""Which method when: a fixed suite of federations, every method with the same number of tries, and a table of ranks."""

from fedprior.benchmark.cells import Cell, Plan, run_cells
from fedprior.benchmark.lines import FILE, Line, read_lines
from fedprior.benchmark.ranking import KINDS, LEVEL, Ranking, ranking
from fedprior.benchmark.suite import PLACES, SUITES, Place, places

__all__ = [
    "FILE",
    "KINDS",
    "LEVEL",
    "PLACES",
    "SUITES",
    "Cell",
    "Line",
    "Place",
    "Plan",
    "Ranking",
    "places",
    "ranking",
    "read_lines",
    "run_cells",
]
