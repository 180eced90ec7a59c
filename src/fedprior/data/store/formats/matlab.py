"""MATLAB's format, version 5, as SVHN's and SynthDigits' authors use it: `X` [height, width, channels, n] and `y`.

The digit zero has the label 10 in SVHN, whose labels count from one.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field

import numpy as np

from fedprior.data.store.formats.reader import Arrays, Part, by_size, images, labels
from fedprior.data.store.members import Member
from fedprior.data.store.record import Record
from fedprior.errors import FedpriorError

MAGIC = b"MATLAB 5.0 MAT-file"


@dataclass
class Matlab:
    """A file of training and one of test images; the larger one is for training."""

    record: Record
    found: list[Part] = field(default_factory=list)

    def take(self, member: Member) -> bool:
        """Files that begin with MATLAB's name."""
        if not member.head.startswith(MAGIC):
            return False
        from scipy.io import loadmat  # takes a while to load
        from scipy.io.matlab import MatReadError

        try:
            stored = loadmat(io.BytesIO(member.read()), variable_names=["X", "y"])
        except (OSError, MatReadError) as error:  # of a file that ends too early
            raise ValueError(error) from None
        if not {"X", "y"} <= set(stored):
            raise FedpriorError("it does not hold the images 'X' and their labels 'y': give the authors' files.")
        y = np.asarray(stored["y"])
        y = y.astype(np.int64) if (y == np.rint(y)).all() else y  # MATLAB's numbers are floats by default
        x = np.moveaxis(np.asarray(stored["X"]), -1, 0)
        self.found.append(Part(member.name, images(x, self.record.shape), labels(y) % self.record.classes))
        return True

    def arrays(self) -> Arrays:
        """Both files."""
        return by_size(self.found)
