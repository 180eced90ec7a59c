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
# Papers report numbers; do they hold when somebody else runs the method? Every table of five papers is a file here,
# with the paper's numbers, the settings it states, and the values chosen where it states none. `fedprior reproduce`
# runs it. This tutorial reads one such result: Table 1 of FedMAP, on synthetic data with label skew.

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
        {"method": row, "paper": number.paper, "ours": number.ours, "±": number.error, "difference": number.delta}
        for row in outcome.rows
        if (number := outcome.number("personal", row, "all"))
    ]
).set_index("method")
table.round(1)

# %% [markdown]
# Three things to look for:
#
# 1. **Are the numbers near?** FedMAP's own number comes out. *Individual*, which is Local, is far better here than in
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
# ## What the paper leaves open
#
# Every unspecified setting is listed with the value that was used. This is where most differences come from.

# %%
for sentence in outcome.unknown[:4]:
    print("*", sentence)

# %% [markdown]
# ## Run it yourself
#
# `fedprior reproduce fedmap/table1 --scale quick` takes minutes, without the option it runs the paper's setting and
# tells how long it will take. Interrupted, it goes on where it was. [The papers' tables](../papers.md) explains the
# files, and [results](../results.md) sums up all of them.
