"""The user's own tables of any format, read by `fedprior.data.own`."""

from __future__ import annotations

from fedprior.data.own import table
from fedprior.data.registry import register_dataset

register_dataset(partition="column")(table)
