"""What lies in the folder of a finished run or comparison, found without loading its data: models, prior, summary."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fedprior.errors import FedpriorError, unknown
from fedprior.experiment import seal
from fedprior.experiment.folder import COMPLETE, RUN, compared
from fedprior.experiment.joining import FOLDER as JOINED
from fedprior.experiment.personal import PersonalModel, load_model
from fedprior.experiment.prior import Prior, load_prior
from fedprior.experiment.selection import compared_by
from fedprior.experiment.shelf import INDEX
from fedprior.experiment.verdict import FILE as VERDICT

FIRST = "split-1"
"""Of a comparison over repeated splits, the folder of the first."""


def run_folder(place: Path, method: str | None = None) -> Path:
    """The folder of one finished run: `place` itself, or of a comparison the method's that is named or recommended.

    Of a comparison over repeated splits, those of the first split.
    """
    given, first = place, place / FIRST if (place / FIRST).is_dir() else place
    names = compared(first) if first.is_dir() else None
    if names is not None:
        chosen = method or _recommended(place, first, names)
        if chosen not in names:
            raise unknown("method", chosen, names, f"the comparison in '{place}'")
        place = first / chosen
    if not (place / COMPLETE).is_file():
        if names is not None or (place / RUN).is_file():
            raise FedpriorError(f"the run in '{place}' is not finished: continue it with `fedprior resume {given}`.")
        raise FedpriorError(
            f"'{place}' holds no finished run: give the output folder of `fedprior run` or `fedprior compare`."
        )
    return place


def _recommended(place: Path, runs: Path, names: list[str]) -> str:
    """By the verdict if there is one, else the method with the lowest validation NLL."""
    if (place / VERDICT).is_file():
        told = _json(place / VERDICT).get("recommended")
        if told in names:
            return str(told)
    scores = {name: _validation(runs / name) for name in names if (runs / name / COMPLETE).is_file()}
    known = {name: score for name, score in scores.items() if math.isfinite(score)}
    if not known:
        raise FedpriorError(f"no method of the comparison in '{place}' is recommended: name one with --method.")
    return min(known, key=known.__getitem__)


def _validation(folder: Path) -> float:
    try:
        return compared_by(summary_of(folder))
    except (KeyError, TypeError, AttributeError, ValueError):
        return math.nan


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FedpriorError(f"'{path}' is damaged and cannot be read: {error}.") from None
    if not isinstance(found, dict):
        raise FedpriorError(f"'{path}' is damaged: it should hold one object.")
    return found


def summary_of(folder: Path) -> dict[str, Any]:
    """The summary of a finished run."""
    return _json(folder / COMPLETE)


def sites_of(folder: Path) -> dict[str, Path]:
    """Every site that has a model in a run's folder, and its file; those that joined later too."""
    index = folder / "models" / INDEX
    named = {site: str(name) for site, name in (_json(index) if index.exists() else {}).items()}
    if any(Path(name).name != name for name in named.values()):
        raise FedpriorError(f"'{index}' is damaged (it names a file in another folder): copy it again.")
    files = {site: folder / "models" / name for site, name in named.items()}
    later = sorted((folder / JOINED).glob("*.json"))
    return files | {str(_json(path).get("site", path.stem)): path.with_suffix(".safetensors") for path in later}


def find_model(place: Path, site: str | None = None, method: str | None = None) -> tuple[PersonalModel, Path]:
    """One site's model and its file, from a run or comparison, or from the file itself."""
    if place.is_file():
        found = load_model(place)
        if site is not None and site != found.client:
            raise FedpriorError(f"'{place}' is the model of '{found.client}' and not of '{site}': leave --site out.")
        return found, place
    folder = run_folder(place, method)
    files = sites_of(folder)
    if site is None:
        raise FedpriorError(f"which site? Give --site with one of: {', '.join(sorted(files))}.")
    if site not in files:
        raise unknown("site", site, files, f"'{folder}'")
    path = files[site]
    if path.parent.name != JOINED:
        seal.check(folder, summary_of(folder), [path.relative_to(folder).as_posix()])
    found = load_model(path)
    if found.client != site:
        raise FedpriorError(
            f"the model in '{path}' belongs to '{found.client}' and not to '{site}': copy the run's folder again."
        )
    return found, path


def find_prior(place: Path, method: str | None = None) -> tuple[Prior, Path]:
    """The prior of a run or comparison, and the run's folder."""
    if place.is_file():  # all that a site needs, without the rest of the run
        return load_prior(place), place.parent
    folder = run_folder(place, method)
    seal.check(folder, summary_of(folder), [seal.PRIOR])
    return load_prior(folder / seal.PRIOR), folder


def refuse_known(folder: Path, site: str) -> None:
    """Refuse a new site that is called as one of the federation: its model would be hidden by that one's."""
    index = folder / "models" / INDEX
    if index.exists() and site in _json(index):
        raise FedpriorError(f"the run in '{folder}' has a site '{site}' already: give the new one another --site-name.")
