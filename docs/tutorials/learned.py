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
# # What a prior learns
#
# Methods differ in what they learn about the sites. Here are four of them on one federation, and the numbers that show
# what each has learned: the confidence τ of pFedVEM, the evidence weights ω of FedMAP, the interpolation β of pFedFDA,
# and the mixing weights of a stack. The sites differ in size only: handwritten digits, distributed very unevenly.

# %%
import altair as alt
import numpy as np
import pandas as pd

import fedprior
from fedprior.methods import build

federation = fedprior.data.load("digits", partition="quantity", clients=10, alpha=0.8)
sizes = pd.Series(
    federation.train.size, index=federation.clients, name="examples"
).rename_axis("client")
sizes.to_frame().T


# %% [markdown]
# `logs` runs a method and returns what it logs about every site in every round.


# %%
def logs(name: str, **options: object) -> pd.DataFrame:
    result = fedprior.run(build(name, options), federation, rounds=12, workers=1)
    return pd.DataFrame(result.journal.logs).merge(sizes.reset_index(), on="client")


def against_size(frame: pd.DataFrame, column: str, title: str) -> alt.Chart:
    """The last round's value of every site, against its number of training examples."""
    last = frame[frame["round"] == frame["round"].max()]
    return (
        alt.Chart(last[["client", "examples", column]])
        .mark_circle(size=90)
        .encode(
            x=alt.X("examples:Q", title="training examples"),
            y=alt.Y(f"{column}:Q", title=title, scale=alt.Scale(zero=False)),
            tooltip=["client", "examples", column],
        )
        .properties(width=520, height=220)
    )


# %% [markdown]
# ## τ: how sure a site is of its own head
#
# pFedVEM keeps a Gaussian over each site's head. The server weights the site by its precision τ, the inverse of a sum:
# how far the head is from the prior's mean, plus how uncertain it is. A site whose head has moved far from the others,
# or is uncertain, counts less.

# %%
confidence = logs("pfedvem")
against_size(confidence, "tau", "τ, confidence")

# %% [markdown]
# Large sites become more confident from round to round, and count more; the smallest stay where they began:

# %%
alt.Chart(confidence[["round", "client", "examples", "tau"]]).mark_line().encode(
    x="round:Q",
    y=alt.Y("tau:Q", title="τ", scale=alt.Scale(zero=False)),
    color=alt.Color(
        "examples:Q", title="training examples", scale=alt.Scale(scheme="viridis")
    ),
    detail="client:N",
    tooltip=["client", "examples", "tau"],
).properties(width=520, height=220)

# %% [markdown]
# ## ω: how probable a site's estimate is
#
# FedMAP weights a site by exp(-loss - distance to the prior). With the mean loss per example, which is the default, the
# weights are almost equal; with the sum over all examples (`omega="sum"`, as the paper's equation is printed), they are
# not: almost all of the weight goes to the smallest site, whose sum has the fewest terms.


# %%
def share(frame: pd.DataFrame) -> pd.Series:
    """Each site's weight at the server in the last round: softmax(log ω)."""
    last = frame[frame["round"] == frame["round"].max()].set_index("client")[
        "log_omega"
    ]
    weights = np.exp(last - last.max())
    return (weights / weights.sum()).round(3)


pd.DataFrame(
    {
        "examples": sizes,
        "mean": share(logs("fedmap")),
        "sum": share(logs("fedmap", omega="sum")),
    }
)

# %% [markdown]
# ## β: how much of the shared statistics a site uses
#
# pFedFDA describes each class by the mean and covariance of its features. A site mixes its own statistics with the
# shared ones, and chooses the share β by cross-validation on its own examples: 0 is all shared, 1 is all its own. All
# sites draw from the same digits here, so most of them rely on the shared statistics. The exception is the smallest
# site: with 7 examples, cross-validation has almost nothing to go by.

# %%
interpolation = logs("pfedfda")
against_size(interpolation, "beta", "β, share of its own statistics")

# %% [markdown]
# ## Mixing weights: which expert a site trusts
#
# A stack trains Local and FedAvg-FT side by side and mixes their predictions at every site. The weights are learned from
# rows that neither expert was trained on, under a prior that the sites share.

# %%
result = fedprior.run(build("stack"), federation, rounds=12, workers=1)
result.explanation.tables["weights of the experts"].round(2)

# %% [markdown]
# Every site trusts the fine-tuned shared model most: all draw from the same digits, so a model that has learned from all
# of them is better than a site's own. A temperature below 1 sharpens predictions that were too cautious.
#
# ## What to take from this
#
# * **Small sites are handled differently by every method**: pFedVEM gives them less weight, FedMAP with the mean loss
#   almost as much as the others, and FedMAP with the sum of losses nearly all of it.
# * **A learned number can be wrong**, like β at a site with 7 examples. Look at it before you trust it.
# * The report of every run shows these numbers site by site, in the section *What the method learned about each site*.
