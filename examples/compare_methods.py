"""Compare three methods with Local and FedAvg-FT on built-in data, and print what validation recommends."""

from __future__ import annotations

import fedprior
from fedprior.methods.fedmap import FedMAP
from fedprior.methods.fedprox import FedProx
from fedprior.methods.pfedvem import PFedVEM

federation = fedprior.data.load("digits", partition="labels", labels=3, clients=10)
comparison = fedprior.compare([FedMAP(), PFedVEM(), FedProx()], federation, rounds=10, workers=1)
print(comparison.table[["accuracy", "nll", "ece", "gain"]].round(3))
print(comparison.verdict)
print("report:", comparison.report("runs/compare_methods.html"))
