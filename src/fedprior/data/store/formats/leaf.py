"""LEAF's JSON: `users` and `user_data`, which has `x` and `y` for every user; a file holds some of the users."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np

from fedprior.data.store.formats.reader import Arrays, Part, by_split, images, labels
from fedprior.data.store.members import Member
from fedprior.data.store.record import Record
from fedprior.errors import FedpriorError

KEYS = (b'"users"', b'"user_data"')


@dataclass
class Leaf:
    """FEMNIST: 784 floats per image, ink dark (0) on white (1); the users are the writers.

    LEAF names the files of its split `..._train_9.json` and `..._test_9.json`; files without either word are unsplit.
    """

    record: Record
    splits: dict[str, list[Part]] = field(default_factory=dict)

    def take(self, member: Member) -> bool:
        """JSON objects that open with LEAF's keys."""
        if not member.head.lstrip().startswith(b"{") or not any(key in member.head for key in KEYS):
            return False
        document = json.loads(member.read())
        split = next((split for split in ("train", "test") if split in member.name.lower()), "")
        for user, examples in document["user_data"].items():
            if not examples["y"]:
                continue
            x, y = images(examples["x"], self.record.shape), labels(examples["y"])
            part = Part(member.name, x, y, {"writer": np.full(len(y), user)})
            self.splits.setdefault(split, []).append(part)
        return True

    def arrays(self) -> Arrays:
        """Users in the order of the files; x, y and writer without a suffix if there is no split."""
        if set(self.splits) not in ({""}, {"train", "test"}):
            found = ", ".join(f"'{split or 'all'}'" for split in sorted(self.splits)) or "no user"
            raise FedpriorError(f"the LEAF files hold {found}: give either all_data files, or those of train and test.")
        return by_split({split: self.splits[split] for split in ("train", "test", "") if split in self.splits})
