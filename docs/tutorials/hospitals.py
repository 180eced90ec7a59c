# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Several hospitals, a model for each
#
# Does federation help each hospital, which method should they use, and how does each get its model? This is the tutorial
# for the command line, in Python. It takes half a minute on a laptop.
#
# The table here is generated, so that the truth is known: eight hospitals whose patients' risk depends on age, blood
# pressure and smoking. The effects differ a little from hospital to hospital, the general level of risk differs more,
# and some hospitals are small. To use your own table, replace this cell by `pandas.read_csv`, with one row per patient
# and one column that names the hospital.

# %%
import altair as alt
import numpy as np
import pandas as pd

import fedprior

rng = np.random.default_rng(0)
SIZES = {"Basel": 160, "Genoa": 130, "Lyon": 100, "Turin": 80}
SIZES |= {"Nice": 60, "Trento": 45, "Chur": 35, "Aosta": 30}
TRUTH = {
    name: (rng.normal(), np.array([1.0, 0.6, 0.8]) + 0.2 * rng.normal(size=3))
    for name in SIZES
}
"""Each hospital's intercept, and its slopes around the common ones."""


def true_risk(hospital: str, table: pd.DataFrame) -> np.ndarray:
    intercept, slopes = TRUTH[hospital]
    inputs = np.stack(
        [
            (table["age"] - 60) / 10,
            (table["pressure"] - 135) / 18,
            table["smoker"] == "yes",
        ],
        1,
    )
    return 1 / (1 + np.exp(-(inputs.astype(float) @ slopes + intercept)))


def patients(hospital: str, n: int) -> pd.DataFrame:
    """Rows of one hospital; some pressures were not measured."""
    table = pd.DataFrame(
        {
            "age": rng.normal(60, 10, n).round(),
            "pressure": rng.normal(135, 18, n).round(),
            "smoker": rng.choice(["no", "yes"], n, p=[0.7, 0.3]),
            "hospital": hospital,
        }
    )
    table["event"] = np.where(rng.random(n) < true_risk(hospital, table), "yes", "no")
    table.loc[rng.random(n) < 0.05, "pressure"] = np.nan
    return table


table = pd.concat([patients(name, n) for name, n in SIZES.items()], ignore_index=True)
table.head()

# %% [markdown]
# ## Does federation help?
#
# `assess` compares a few methods over repeated splits, which together test on every row once. Each hospital's gain is
# the difference in negative log-likelihood (NLL) to a model trained on its own rows alone. The answer comes in words.

# %%
found = fedprior.assess(
    table,
    site="hospital",
    target="event",
    methods=["fedmap", "mixed"],
    out="runs/hospitals",
)
print(found.verdict.text)

# %% [markdown]
# Site by site, the federated method with the best validation NLL against Local, with 95 % intervals. A gain above zero
# means that the hospital's predictions become better; the smaller a hospital, the wider its interval.

# %%
sites = pd.DataFrame(
    [
        {
            "hospital": name,
            "verdict": site.verdict,
            "patients": site.n_test,
            **site.gain_nll._asdict(),
        }
        for name, site in found.verdict.sites.items()
    ]
)
base = alt.Chart(sites).encode(y=alt.Y("hospital:N", sort=list(SIZES), title=None))
points = base.mark_circle(size=90).encode(
    x=alt.X("mean:Q", title="gain in NLL over training alone"),
    color=alt.Color("verdict:N", title=None),
    tooltip=["hospital", "patients", "mean", "low", "high", "verdict"],
)
zero = (
    alt.Chart(pd.DataFrame({"x": [0.0]})).mark_rule(strokeDash=[4, 4]).encode(x="x:Q")
)
(zero + base.mark_rule().encode(x="low:Q", x2="high:Q") + points).properties(
    width=480, height=220
)

# %% [markdown]
# No single hospital has enough patients to be certain of its own gain, which is why each verdict is *no difference*:
# Aosta's interval excludes zero, but among eight hospitals one may do so by chance. All of them together are enough: the
# interval of the mean gain excludes zero too. The page with all charts is one file that opens offline.

# %%
found.report("runs/hospitals/report.html")

# %% [markdown]
# ## A model for each hospital
#
# `found.first` holds the models of the first split, for every method. A model takes a table with its columns in any
# order, and returns probabilities. Since the truth is known here, we can look at what a small hospital gains: the risk
# of its non-smokers with a normal pressure, by age.

# %%
small = "Aosta"
ages = pd.DataFrame({"age": np.arange(35.0, 86.0), "pressure": 135.0, "smoker": "no"})
curves = {"truth": true_risk(small, ages)}
for name in ("local", "mixed"):
    curves[name] = found.first[name].model(small).predict(ages)[:, 1]
lines = pd.DataFrame({"age": ages["age"], **curves}).melt(
    "age", var_name="model", value_name="risk"
)
alt.Chart(lines).mark_line(strokeWidth=3).encode(
    x="age:Q",
    y=alt.Y("risk:Q", scale=alt.Scale(domain=[0, 1])),
    color=alt.Color("model:N", title=None),
).properties(width=480, height=240)

# %% [markdown]
# How far the models of all hospitals are from the truth, on 2,000 new patients each (the mean absolute error of the
# risk):

# %%
errors = {}
for hospital in SIZES:
    new = patients(hospital, 2000).dropna()
    truth = true_risk(hospital, new)
    errors[hospital] = {
        name: np.abs(
            found.first[name].model(hospital).predict(new)[:, 1] - truth
        ).mean()
        for name in ("local", "fedmap", "mixed")
    }
pd.DataFrame(errors).T.round(3)

# %% [markdown]
# With `mixed`, the small hospitals, from Nice down, gain most: the error of their predicted risks falls by roughly a third
# or more. The large ones have enough patients of their own, and it changes little there. FedMAP also helps most
# hospitals, but Turin pays for it: look at every site, not only at the mean.
#
# For use elsewhere, a model is written as ONNX, from the raw columns to the probabilities. The file has been checked in
# onnxruntime by the time it is returned.

# %%
from fedprior.experiment.exporting import as_onnx

content = as_onnx(found.first["mixed"].model(small))
f"{len(content):,} bytes"

# %% [markdown]
# ## A hospital that was not there
#
# It gets its model under the prior that the others have learned, and nobody trains again. The curve shows how many of
# its own patients that takes.

# %%
TRUTH["Zug"] = (rng.normal(), np.array([1.0, 0.6, 0.8]) + 0.2 * rng.normal(size=3))
joined = fedprior.join(found.first["fedmap"].prior, patients("Zug", 90), "Zug", draws=5)
joined.curve.text

# %% [markdown]
# ## As in scikit-learn
#
# The same as one estimator, for pipelines and searches.

# %%
model = fedprior.FederatedClassifier("fedmap", site="hospital").fit(
    table, target="event"
)
model.score_table_[["nll", "accuracy"]].round(3)

# %%
model.predict_proba(table.head(3)).round(3)
