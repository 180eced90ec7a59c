"""A site that was not there: its personal model under a finished run's prior, and how many rows it takes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from fedprior import tree
from fedprior.data.columns import check_text
from fedprior.engine.memory import single_thread
from fedprior.experiment.admission import Rows, admit, checked, updates_of
from fedprior.experiment.curve import Curve, learning_curve
from fedprior.experiment.journal import jsonable
from fedprior.experiment.personal import PersonalModel
from fedprior.experiment.prior import Prior
from fedprior.files import write_text
from fedprior.names import file_names

FOLDER = "joined"


@dataclass(frozen=True)
class Joined:
    """A new site's model, trained on all of its rows, and what models on fewer rows were worth."""

    model: PersonalModel
    prior: Prior
    rows: int
    updates: int
    curve: Curve | None  # None: too few rows

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "site": self.model.client,
            "method": self.prior.told["method"]["name"],
            "rows": self.rows,
            "local_updates": self.updates,
            "prior": {"round": self.prior.round, "clients": self.prior.clients},
            "curve": None if self.curve is None else self.curve.document(),
        }

    def save(self, folder: Path) -> Path:
        """Write the model and, beside it, what is known about it as JSON; returns the model's file."""
        path = folder / f"{file_names([self.model.client])[self.model.client]}.safetensors"
        self.model.save(path, self.prior.told)
        write_text(path.with_suffix(".json"), json.dumps(jsonable(self.document()), indent=2) + "\n")
        return path


def join(prior: Prior, rows: pd.DataFrame | Rows, site: str, *, updates: int | None = None, draws: int = 20) -> Joined:
    """A personal model for a new site under a finished run's prior; nothing of the site is sent anywhere.

    Args:
        prior: `result.prior`, or `fedprior.load_prior("runs/a/prior.safetensors")`.
        rows: The site's table with the target, or raw inputs [n, ...] and labels [n].
        site: Its name.
        updates: Local updates; by default as many as there were rounds up to the one whose models were kept.
        draws: Random draws behind each point of the curve over the number of rows; 0: no curve.

    Returns:
        The `model`, trained on all rows, and the `curve`, which says what models on fewer rows were worth.

    Raises:
        FedpriorError: If a column is missing, or the method cannot admit newcomers (FedAMP, FedPAC).

    Examples:
        >>> import fedprior
        >>> from fedprior.methods.fedmap import FedMAP
        >>> federation = fedprior.data.load("synthetic", clients=4, samples=60)
        >>> result = fedprior.run(FedMAP(), federation, rounds=1, workers=1)
        >>> x, y = federation.test.client(0)
        >>> joined = fedprior.join(result.prior, (x.numpy(), y.numpy()), "new site", draws=0)
        >>> joined.model.predict(x).shape
        (12, 2)
    """
    check_text("site", [site])
    x, y = checked(prior, rows)
    steps = updates_of(prior) if updates is None else updates
    encoder = prior.preparation.encoder(x)
    with single_thread():
        personal = admit(prior, [(x, y)], [site], steps)
        model = PersonalModel(site, prior.method, _first(personal), prior.seed, encoder, prior.shape, prior.target)
        found = learning_curve(prior, (x, y), site, steps, draws) if draws else None
    return Joined(model, prior, len(y), steps, found)


def _first(personal: Any) -> dict[str, NDArray[Any]]:
    return {path: leaf[0].numpy(force=True).copy() for path, leaf in tree.items(personal)}
