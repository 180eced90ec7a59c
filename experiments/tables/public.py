"""Small public tables that come with statsmodels and scikit-learn, with a column that can stand for the site."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import statsmodels.api as sm
from sklearn.datasets import load_diabetes


def fair() -> pd.DataFrame:
    """1,500 rows of Fair's survey of affairs; sites are occupations, the smallest with a dozen rows."""
    frame = sm.datasets.fair.load_pandas().data.sample(1500, random_state=0)
    site = "occ" + frame["occupation"].astype(int).astype(str)
    outcome = np.where(frame["affairs"] > 0, "yes", "no")
    return frame.assign(outcome=outcome, site=site).drop(columns=["affairs", "occupation"])


def anes() -> pd.DataFrame:
    """The American election study of 1996; sites are levels of education."""
    frame = sm.datasets.anes96.load_pandas().data
    site = "educ" + frame["educ"].astype(int).astype(str)
    return frame.assign(outcome=np.where(frame["vote"] > 0, "Dole", "Clinton"), site=site).drop(
        columns=["vote", "educ"]
    )


def grunfeld() -> pd.DataFrame:
    """Grunfeld's investments of 11 firms, 20 years each: a number, on very different scales."""
    return sm.datasets.grunfeld.load_pandas().data.rename(columns={"firm": "site", "invest": "outcome"})


def diabetes() -> pd.DataFrame:
    """Progression of diabetes, a number; sites are decades of age."""
    given = load_diabetes(as_frame=True, scaled=False)
    decade = pd.cut(given.data["age"], [0, 30, 40, 50, 60, 100], labels=["under30", "30s", "40s", "50s", "60s"])
    return given.data.assign(outcome=given.target, site=decade.astype(str)).drop(columns="age")


PUBLIC: dict[str, Callable[[], pd.DataFrame]] = {"fair": fair, "anes": anes, "grunfeld": grunfeld, "diabetes": diabetes}
