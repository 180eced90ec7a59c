"""fedprior: one personal model per site, by sharing a prior.

import fedprior
from fedprior.methods.fedmap import FedMAP

federation = fedprior.data.load("synthetic", skew="label")
result = fedprior.run(FedMAP(sigma2=15), federation, rounds=50)
print(result.clients)
"""

__version__ = "0.1.0"

from fedprior import data
from fedprior.errors import FedpriorError
from fedprior.experiment import Participation, PersonalModel, Result, compare, load_model, run
from fedprior.local import Train

__all__ = [
    "FedpriorError",
    "Participation",
    "PersonalModel",
    "Result",
    "Train",
    "compare",
    "data",
    "load_model",
    "run",
]
