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
# # A new site joins
#
# A federation has been trained; then another site asks for a model. It needs only the prior and its own rows: nobody
# trains again, and no data of the new site are sent anywhere.
#
# Ten sites have handwritten digits, each only four of the ten classes. Nine of them federate.

# %%
import altair as alt
import numpy as np
import pandas as pd

import fedprior
from fedprior.methods.fedmap import FedMAP
from fedprior.methods.pfedvem import PFedVEM

federation = fedprior.data.load("digits", partition="labels", clients=10, labels=4)
newcomer = federation.clients[-1]
row = federation.clients.index(newcomer)


def rows(split: str) -> tuple[np.ndarray, np.ndarray]:
    """The newcomer's examples of one split."""
    x, y = federation.split(split).client(row)
    return x.numpy(), y.numpy()


others = federation.select([k for k in range(len(federation)) if k != row])
len(others), newcomer

# %% [markdown]
# ## Train the others
#
# A run keeps the prior of the round whose models it keeps: `result.prior` here, `prior.safetensors` in a run's folder.

# %%
results = {
    m.about.title: fedprior.run(m, others, rounds=15, workers=1)
    for m in (FedMAP(), PFedVEM())
}
pd.concat([result.table[["accuracy", "nll"]] for result in results.values()]).round(3)

# %% [markdown]
# ## Admit the newcomer
#
# `join` starts the client as the method would, lets it take its local updates under the fixed prior, and returns its
# model. To show how many rows that takes, the site repeatedly holds out a third of its rows and trains on 5, 10, 20, …
# of the others.

# %%
x, y = rows("train")
joined = {
    title: fedprior.join(result.prior, (x, y), newcomer, draws=5)
    for title, result in results.items()
}
points = pd.DataFrame(
    [
        {"method": title, "rows": point.rows, "NLL": point.nll.mean, "model": "its own"}
        for title, found in joined.items()
        for point in found.curve.points
    ]
)
shared = pd.DataFrame(
    [
        {"method": title, "NLL": found.curve.shared.mean}
        for title, found in joined.items()
        if found.curve.shared
    ]
)
curve = (
    alt.Chart(points)
    .mark_line(point=True)
    .encode(x="rows:Q", y="NLL:Q", color="method:N")
)
level = (
    alt.Chart(shared).mark_rule(strokeDash=[5, 4]).encode(y="NLL:Q", color="method:N")
)
(curve + level).properties(width=520, height=240)

# %% [markdown]
# Solid: the newcomer's own model. Dashed: the shared model, which has never seen the newcomer. In words:

# %%
for title, found in joined.items():
    print(f"{title}: {found.curve.text}")

# %% [markdown]
# With five rows, the newcomer's own model is already better than the shared one, because it learns at once which four
# digits occur there.
#
# ## Use the model
#
# Its accuracy on rows that the newcomer has kept for testing:

# %%
x, y = rows("test")
{
    title: f"{(found.model.predict(x).argmax(1) == y).mean():.2f}"
    for title, found in joined.items()
}

# %% [markdown]
# On the command line this is `fedprior join runs/a new_site.csv` ([after training](../after-training.md)).
