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
# # Reading a reproduced table
#
# Papers report numbers. Do they hold when somebody else runs the method? Every table of five papers is a file here, with
# the paper's numbers, the settings it states, and the values chosen where it states none. `fedprior reproduce` runs it. This tutorial reads one such result: Table 1 of FedMAP, on synthetic data with label skew.

# %%
from pathlib import Path

import pandas as pd

import fedprior
from fedprior.papers.saved import read

papers = next(
    folder / "papers"
    for folder in (Path.cwd(), *Path(fedprior.__file__).parents)
    if (folder / "papers" / "fedmap" / "results").is_dir()
)
outcome = read(papers / "fedmap" / "results" / "table1.json")
outcome.title, outcome.seeds, outcome.scale

# %% [markdown]
# ## The paper beside ours
#
# `paper` is the printed number, `ours` the mean over seeds, `±` its standard error.

# %%
table = pd.DataFrame(
    [
        {
            "method": row,
            "paper": number.paper,
            "ours": number.ours,
            "±": number.error,
            "difference": number.delta,
        }
        for row in outcome.rows
        if (number := outcome.number("personal", row, "all"))
    ]
).set_index("method")
table.round(1)

# %% [markdown]
# The rows that the paper has, as a picture: rings are the paper's numbers, dots are ours with two standard errors.

# %%
import altair as alt

shown = table.dropna(subset="paper").reset_index()
shown = shown.assign(
    low=shown["ours"] - 2 * shown["±"], high=shown["ours"] + 2 * shown["±"]
)
rows = alt.Chart(shown).encode(y=alt.Y("method:N", sort=None, title=None))
axis = alt.X("ours:Q", title="balanced accuracy, %", scale=alt.Scale(zero=False))
ours = rows.mark_circle(size=80).encode(x=axis)
paper = rows.mark_point(size=110, color="#d55e00").encode(x="paper:Q")
(rows.mark_rule().encode(x="low:Q", x2="high:Q") + ours + paper).properties(
    width=480, height=160
)

# %% [markdown]
# Three things to look for:
#
# 1. **Are the numbers close?** FedMAP's own number is reproduced. *Individual*, which is Local, is far better here than in
#    the paper: the paper does not state its budget, and with as many local epochs as the federated methods it is no
#    longer a weak baseline.
# 2. **Does the order hold?** A ranking is more robust than a number. A pair of methods *holds* if ours are in the
#    paper's order by more than two standard errors, is *level* if they are within, and *reversed* otherwise.
# 3. **What is missing?** Rows without a number in the paper are ours: baselines that were left out, and settings
#    chosen on validation data.

# %%
pairs = pd.DataFrame([pair._asdict() for pair in outcome.ranking("personal", "all")])
pairs["verdict"].value_counts().to_frame("pairs of methods")

# %%
pairs[pairs["verdict"] != "holds"]

# %% [markdown]
# ## Unspecified settings
#
# Every unspecified setting is listed with the value that was used. This is where most differences come from.

# %%
for sentence in outcome.unknown[:4]:
    print("*", sentence)

# %% [markdown]
# ## Run it yourself
#
# `fedprior reproduce fedmap/table1 --scale quick` takes minutes. Without the option it runs the paper's setting, and
# first says how long that will take. An interrupted command continues where it was when it is run again. [The papers' tables](../papers.md) explains the
# files, and [results](../results.md) sums up all of them.
