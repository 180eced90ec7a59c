"""The user's own tables, read by `fedprior.data.csv_files`."""

from __future__ import annotations

from fedprior.data.csv_files import csv
from fedprior.data.registry import register_dataset

register_dataset(partition="column")(csv)
