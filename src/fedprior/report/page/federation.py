"""What a federation looks like: as a page of its own, and as a section of a report."""

from __future__ import annotations

from collections.abc import Mapping

from fedprior.data.federation import SPLITS, Federation
from fedprior.names import apart, on_screen
from fedprior.report.charts import federation as drawn
from fedprior.report.page.blocks import Block, Column, Details, Figure, Side, Table
from fedprior.report.page.document import Page, document
from fedprior.report.portrait import LABEL, Portrait, portrait

TOLD = {
    "size_min": "smallest site",
    "size_median": "median site",
    "size_max": "largest site",
    "size_cv": "spread of sizes (standard deviation over mean)",
    "tv": "mean total-variation distance of a site's labels from those of all, 0 to 1",
    "js": "mean Jensen-Shannon divergence of a site's labels from those of all, bits",
    "labels": "mean number of labels per site",
    "effective_labels": "the same, with rare labels counting less (exponential of the entropy)",
    "between": "share of the target's variance that lies between sites",
    "shift": "mean distance of a site's mean from that of all, in deviations of all labels",
    "scale": "mean deviation within a site, in deviations of all labels",
}
"""The numbers of `Federation.heterogeneity` in words."""


def page(data: Federation, picture: Portrait) -> str:
    """A federation as a page."""
    options = ", ".join(f"{k} = {on_screen(v, 3 * LABEL)}" for k, v in data.options.items())
    return document(
        Page(
            picture.title.partition("   ")[0],
            options,
            [*charts(picture), spread(picture.numbers), sites(data, picture)],
        )
    )


def blocks(data: Federation) -> list[Block]:
    """A federation within a report."""
    picture = portrait(data)
    return [*charts(picture), spread(picture.numbers)]


def charts(picture: Portrait) -> list[Block]:
    """Labels, sizes and skews."""
    told = f"Training examples of each label at each site; the largest dot is {picture.counts.max():,}."
    found: list[Block] = [Figure(drawn.labels(picture), "Labels per site", f"{told} {drawn.cut(picture)}")]
    size = "Training examples per site"
    skew = "How far each site's labels are from those of all"
    if len(picture.clients) > drawn.DRAWN:
        return [*found, Figure(drawn.histogram(picture), size, f"All {len(picture.clients):,} sites.")]
    return [*found, Side([Figure(drawn.sizes(picture), size), Figure(drawn.skews(picture), skew)])]


def spread(numbers: Mapping[str, float]) -> Block:
    """How unequal the sites are, in numbers."""
    rows = [[TOLD.get(name, name), f"{value:,.4g}"] for name, value in numbers.items()]
    return Details("How unequal the sites are, in numbers", [Table([Column("measure"), Column("value", 3)], rows)])


def sites(data: Federation, picture: Portrait) -> Block:
    """One row per site."""
    columns = [Column("site"), *(Column(split, 0) for split in SPLITS), Column("skew of labels, bits", 3)]
    names, skews = apart(data.clients), picture.divergence.tolist()
    rows = [[names[i], *(data.split(s).size[i] for s in SPLITS), skews[i]] for i in range(len(data))]
    return Table(columns, rows)
