"""Tables as text: heart disease by hospital, tweets by user, and USPS digits in rows."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from fedprior.data.store.formats.reader import Arrays, Part, by_size, images, labels
from fedprior.data.store.members import Member
from fedprior.data.store.record import Record
from fedprior.errors import FedpriorError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
TARGET, SITE = "num", "site"
VALUE = re.compile(r"(-?[\d.]+|\?|nan)?", re.IGNORECASE)


def _header(member: Member) -> list[str]:
    """The fields of the first line."""
    line = member.head.split(b"\n", 1)[0].decode("utf-8-sig", errors="replace")
    return [entry.strip().strip('"') for entry in line.split(",")]


@dataclass
class Hospitals:
    """UCI heart disease: `processed.<hospital>.data` with `?` for what is missing, or one CSV with a column `site`.

    A cholesterol of 0 also means missing, and is kept as it is. The class is whether the diagnosis `num` is above 0.
    """

    record: Record
    frames: list[pd.DataFrame] = field(default_factory=list)

    def take(self, member: Member) -> bool:
        """Fourteen numbers per line, or a header with all columns."""
        columns, header = [*self.record.features, TARGET], _header(member)
        if {*columns, SITE} <= set(header):
            frame = pd.read_csv(io.BytesIO(member.read()), na_values="?")
        elif len(header) == len(columns) and all(VALUE.fullmatch(entry) for entry in header):
            site = next((word for word in re.split(r"\W+|_", member.name.lower()) if word in HOSPITALS), None)
            if site is None:
                raise FedpriorError(
                    f"its name contains no hospital: rename it to include one of {', '.join(HOSPITALS)}."
                )
            frame = pd.read_csv(io.BytesIO(member.read()), names=columns, na_values="?").assign(site=site)
        else:
            return False
        self.frames.append(frame[[*columns, SITE]])
        return True

    def arrays(self) -> Arrays:
        """Hospitals in the order of their names, patients as in the file."""
        table = pd.concat(self.frames).sort_values(SITE, kind="stable")
        x = table[list(self.record.features)].to_numpy(np.float64, copy=True)
        y = (table[TARGET] > 0).to_numpy(np.int64)
        if unknown := int(table[TARGET].isna().sum()):
            raise ValueError(f"{unknown} patients have no diagnosis")
        if np.isinf(x).any():
            raise ValueError("there are infinite values")
        return {"x": x, "y": y, SITE: table[SITE].to_numpy(np.str_)}


@dataclass
class Tweets:
    """Sent140: a CSV with the columns user, text and label; labels 0 (negative) and 1 (positive)."""

    record: Record
    frames: list[pd.DataFrame] = field(default_factory=list)

    def take(self, member: Member) -> bool:
        """A header with the three columns."""
        if not {"user", "text", "label"} <= set(_header(member)):
            return False
        frame = pd.read_csv(io.BytesIO(member.read()), dtype=str, keep_default_na=False)  # "null" may be a tweet
        self.frames.append(frame)
        return True

    def arrays(self) -> Arrays:
        """Tweets in the order of the file."""
        table = pd.concat(self.frames)
        y = table["label"].astype(np.int64).to_numpy()
        return {"x": table["text"].to_numpy(np.str_), "y": y, "user": table["user"].to_numpy(np.str_)}


@dataclass
class Rows:
    """USPS as rows of text, pixels between -1 (white) and 1 (ink).

    The original has `digit value value ...`; LIBSVM's edition, which is smoothed, `label 1:value 2:value ...` with
    labels from 1.
    """

    record: Record
    parts: list[Part] = field(default_factory=list)

    def take(self, member: Member) -> bool:
        """Lines that open with a label and values, numbered or not."""
        sparse = re.match(rb"\d+ +\d+:-?[\d.]", member.head) is not None
        if not sparse and not re.match(rb"\d(\.0+)?( +-?[01](\.\d+)?){3}", member.head):
            return False
        lines = member.read().decode("ascii").splitlines()
        x, y = np.zeros((len(lines), int(np.prod(self.record.shape)))), np.empty(len(lines), np.int64)
        for row, line in enumerate(lines):
            label, *values = line.replace(":", " ").split()
            y[row] = int(float(label)) - sparse
            if sparse:
                x[row, np.array(values[::2], np.int64) - 1] = values[1::2]
            else:
                x[row] = values
        self.parts.append(Part(member.name, images((x + 1) / 2, self.record.shape), labels(y)))
        return True

    def arrays(self) -> Arrays:
        """The larger file is the training data."""
        return by_size(self.parts)
