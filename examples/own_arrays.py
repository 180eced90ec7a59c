"""Your own arrays, one pair (x, y) per site, and your own network; save a site's model and load it again."""

from __future__ import annotations

import numpy as np
from torch import nn

import fedprior
from fedprior.methods.fedmap import FedMAP

rng = np.random.default_rng(0)
sites = {}
for k, size in enumerate((200, 120, 60, 40)):
    x = rng.normal(size=(size, 8)).astype(np.float32)
    slopes = np.linspace(-1, 1, 8) + 0.3 * rng.normal(size=8)  # a little different at each site
    sites[f"site {k}"] = (x, (x @ slopes + 0.5 * rng.normal(size=size) > 0).astype(int))

federation = fedprior.data.from_arrays(sites, classes=2)
network = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
result = fedprior.run(FedMAP(sigma2=5), federation, model=network, rounds=20, workers=1, out="runs/own_arrays")
print(result.clients[["train", "accuracy", "nll"]].round(3))

model = fedprior.load_model("runs/own_arrays/models/site 3.safetensors", network)
print(model.predict(sites["site 3"][0][:3]).round(2))
