"""The records themselves: complete, consistent, and without a registry's address."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from fedprior.data.store import RECORDS
from fedprior.data.store.importers import FORMATS
from fedprior.data.store.record import Record, Url

EVERY = pytest.mark.parametrize("record", RECORDS.values(), ids=list(RECORDS))


def test_the_data_sets() -> None:
    assert set(RECORDS) == {
        *("fashion_mnist", "mnist", "cifar10", "cifar100", "femnist", "usps", "mnist_m"),
        *("office_caltech", "office_caltech_surf", "office_31", "sun397", "svhn", "synth_digits"),
        *("heart_disease", "sent140"),
    }


@EVERY
def test_consistent(record: Record) -> None:
    assert record.formats
    assert set(record.formats) <= set(FORMATS)
    assert set(record.counts) in (set(), {"all"}, {"train", "test"})
    assert all(sum(sizes) == record.counts[split] for split, sizes in record.per_class.items())
    assert all(len(sizes) == record.classes for sizes in record.per_class.values())
    assert len(record.train_means) in (0, record.shape[0] if record.shape else 0)
    assert bool(record.train_means) == bool(record.otherwise)
    assert not record.groups or sum(record.groups.values()) == record.counts["all"]
    assert not record.features or record.shape == (len(record.features),)
    assert record.title
    assert record.licence
    assert record.citation.endswith(".")
    assert not record.accepts.endswith(".")  # it stands inside a sentence


@EVERY
def test_checksums_are_whole(record: Record) -> None:
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in record.checksums.values())
    for source in record.sources:
        if isinstance(source, Url):
            assert urlsplit(source.base).scheme in ("http", "https")
            assert source.base.endswith("/")
            assert source.content or all(file.checksum for file in source.files), "nothing vouches for the bytes"
            sums = [source.content, *(file.checksum for file in source.files)]
            assert all(re.fullmatch("([0-9a-f]{64})?", value) for value in sums)
        else:  # a package's archive may be another one; what is in it may not
            assert record.checksums


def test_sources_are_encrypted_first_and_bounded() -> None:
    """An address without encryption comes last, and only with checksums of what was decoded; every file has an end."""
    for record in RECORDS.values():
        urls = [source for source in record.sources if isinstance(source, Url)]
        for k, source in enumerate(record.sources):
            if isinstance(source, Url) and not source.base.startswith("https://"):
                assert k == len(record.sources) - 1, record.name
                assert set(record.checksums) >= {"x_train", "y_train", "x_test", "y_test"}, record.name
        for file in (file for source in urls for file in source.files):
            assert file.size or file.most <= 512 << 20, (record.name, file.name)
