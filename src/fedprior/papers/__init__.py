"""The papers' tables: described in files, run like any comparison, and compared with the published numbers."""

from fedprior.papers.outcome import Outcome, Pair, ranking
from fedprior.papers.reproduce import reproduce
from fedprior.papers.search import search
from fedprior.papers.table import Scale, Table, find, listing

__all__ = ["Outcome", "Pair", "Scale", "Table", "find", "listing", "ranking", "reproduce", "search"]
