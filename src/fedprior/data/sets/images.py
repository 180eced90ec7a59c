"""The user's own images, read by `fedprior.data.pictures`."""

from __future__ import annotations

from fedprior.data.pictures import images
from fedprior.data.registry import register_dataset

register_dataset(partition="column", images=True)(images)
