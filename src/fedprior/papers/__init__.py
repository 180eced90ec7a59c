"""The papers' tables: described in files, run like any comparison, and compared with the published numbers."""

from fedprior.papers.definition import Scale, Table, find, listing
from fedprior.papers.outcome import Outcome, Pair, ranking
from fedprior.papers.reproduce import reproduce
from fedprior.papers.search import search

__all__ = ["Outcome", "Pair", "Scale", "Table", "find", "listing", "ranking", "reproduce", "search"]
