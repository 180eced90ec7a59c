"""What a method has learned, as tables and sentences: `Method.explain` gives it, terminal and summary show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedprior.names import on_screen

if TYPE_CHECKING:
    import pandas as pd

ODD = 0.1
"""Sites whose weights differ from the federation's by as much are named, the oddest first."""
NAMED = 3
TOGETHER = "all sites together"


class Explanation(NamedTuple):
    """Tables by title, and sentences that say the most important of it."""

    tables: Mapping[str, pd.DataFrame] = {}
    sentences: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """As a summary holds it, and as it is read from a file: what is not known is None."""
        known = {title: frame.reset_index().astype(object) for title, frame in self.tables.items()}
        tables = {title: frame.where(frame.notna(), None).to_dict(orient="records") for title, frame in known.items()}
        return {"tables": tables, "sentences": list(self.sentences)}


def of_mixture(
    experts: Sequence[str],
    clients: Sequence[str],
    weights: NDArray[np.float64],  # [1 + C, E]  all sites together first
    temperature: NDArray[np.float64],  # [1 + C]
) -> Explanation:
    """The weights of experts and the temperature, of all sites together and of each."""
    import pandas as pd

    index = pd.Index([TOGETHER, *clients], name="site")
    frame = pd.DataFrame({**dict(zip(experts, weights.T, strict=True)), "temperature": temperature}, index=index)
    if len(experts) == 1:
        frame = frame[["temperature"]]
        own = f", and {temperature[1:].min():.2f} to {temperature[1:].max():.2f} at the sites" if len(clients) else ""
        told = f"The temperature is {temperature[0]:.2f} for all sites together{own}."
        return Explanation({"temperature of each site": frame}, [told])
    shares = ", ".join(f"{name} {_percent(share)}" for name, share in zip(experts, weights[0], strict=True))
    sentences = [f"For all sites together: {shares}, at a temperature of {temperature[0]:.2f}."]
    gaps = np.abs(weights[1:] - weights[0]).max(1)
    for k in np.argsort(-gaps, kind="stable")[:NAMED]:
        if gaps[k] >= ODD:
            best = int(weights[1 + k].argmax())
            own, all_sites = _percent(weights[1 + k, best]), _percent(weights[0, best])
            sentences.append(f"At {on_screen(clients[k])}, {experts[best]} carries {own} ({all_sites} for all sites).")
    return Explanation({"weights of the experts": frame}, sentences)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
