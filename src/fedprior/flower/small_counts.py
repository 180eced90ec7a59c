"""What a site must know before anything leaves it: whether a class is so small that a mean over it is a patient."""

from __future__ import annotations

from fedprior.data.site_table import SiteTable
from fedprior.protocol import AnyMethod

FEW = 5
"""Training rows of a class below which its mean is close to single patients."""


def small_classes(method: AnyMethod, table: SiteTable, least: int = FEW) -> str | None:
    """A warning if the method sends means of a class with fewer training rows; it is for the site alone."""
    smallest = table.smallest_class() if method.class_means else None
    if smallest is None or smallest >= least:
        return None
    return (
        f"{method.about.title} sends the mean features of every class, and your smallest class has {smallest} training "
        f"rows: a mean over fewer than {least} is close to single patients. Ask for another method, or merge classes."
    )
