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
# Does federation help each hospital, which method should they use, and how does each get its model? This is the road of
# the tutorial for the command line, in Python. It takes half a minute on a laptop.
#
# The table here is generated, so that the truth is known: six hospitals whose patients' risk depends on age, pressure
# and smoking, a little differently at each. Two of them are small. To use your own table, replace this cell by
# `pandas.read_csv`, with one row per patient and one column that names the hospital.

# %%
import numpy as np
import pandas as pd

import fedprior

rng = np.random.default_rng(0)
SIZES = {"Basel": 150, "Genoa": 120, "Lyon": 90, "Turin": 60, "Chur": 25, "Aosta": 18}


def patients(hospital: str, n: int) -> pd.DataFrame:
    """Rows of one hospital: its own intercept and slopes around the common ones."""
    table = pd.DataFrame(
        {
            "age": rng.normal(60, 10, n).round(),
            "pressure": rng.normal(135, 18, n).round(),
            "smoker": rng.choice(["no", "yes"], n, p=[0.7, 0.3]),
            "hospital": hospital,
        }
    )
    slopes = np.array([1.0, 0.6, 0.8]) + 0.3 * rng.normal(size=3)
    inputs = np.stack([(table["age"] - 60) / 10, (table["pressure"] - 135) / 18, table["smoker"] == "yes"], 1)
    risk = 1 / (1 + np.exp(-(inputs.astype(float) @ slopes + rng.normal())))
    table["event"] = np.where(rng.random(n) < risk, "yes", "no")
    table.loc[rng.random(n) < 0.05, "pressure"] = np.nan  # not measured
    return table


table = pd.concat([patients(name, n) for name, n in SIZES.items()], ignore_index=True)
table.head()

# %% [markdown]
# ## Does federation help?
#
# `assess` compares a few methods over repeated splits, which together test on every row once. Each hospital's gain is
# the difference in negative log-likelihood (NLL) to a model trained on its own rows alone. The answer comes in words.

# %%
found = fedprior.assess(table, site="hospital", target="event", methods=["fedmap", "mixed"], out="runs/hospitals")
found

# %%
sites = pd.DataFrame({name: site.document() for name, site in found.verdict.sites.items()}).T
sites[["verdict", "n_test"]].assign(gain=[f"{gain['mean']:+.3f}" for gain in sites["gain_nll"]])

# %% [markdown]
# The page with charts is one file that opens offline: `found.report("report.html")`.

# %%
found.report("runs/hospitals/report.html")

# %% [markdown]
# ## A model for each hospital
#
# `found.first` holds the models of the first split. A model takes a table in any order of columns.

# %%
assert found.best is not None
result = found.first[found.best]
small = result.model("Aosta")
new = patients("Aosta", 5).drop(columns=["event", "hospital"])
new.assign(risk=small.predict(new)[:, 1].round(2))

# %% [markdown]
# For use elsewhere, it is written as ONNX, from the raw columns to the probabilities. The file has been checked in
# onnxruntime when it is returned.

# %%
from fedprior.experiment.exporting import as_onnx

content = as_onnx(small)
f"{len(content):,} bytes"

# %% [markdown]
# ## A hospital that was not there
#
# It gets its model under the prior that the others have learned, without training them again. The curve tells how many
# of its patients that takes.

# %%
joined = fedprior.join(result.prior, patients("Zug", 60), "Zug", draws=5)
joined.curve.text

# %% [markdown]
# ## As in scikit-learn
#
# The same as one estimator, for pipelines and searches.

# %%
model = fedprior.FederatedClassifier("fedmap", site="hospital").fit(table, target="event")
model.score_table_[["nll", "accuracy"]].round(3)

# %%
model.predict_proba(table.head(3)).round(3)
