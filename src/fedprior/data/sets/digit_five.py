"""Digits from five domains, for experiments in which clients belong to domains."""

from __future__ import annotations

from fedprior.data.images import Normalise
from fedprior.data.registry import register_dataset
from fedprior.data.sets.digit_domains import DOMAINS, joined
from fedprior.data.table import Table

FIVE = (*DOMAINS, "svhn", "synth_digits")


@register_dataset(partition="domains", images=True, made_of=FIVE)
def digit_five(normalise: Normalise = "half") -> Table:
    """Digits of MNIST, MNIST-M, USPS, SVHN and SynthDigits, 32 × 32 in colour: all five domains of Digit-5.

    As `digit_domains`; the last two have to be imported.
    """
    return joined("digit_five", FIVE, normalise)
