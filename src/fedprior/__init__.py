"""fedprior: one personal model per site, by sharing a prior.

import fedprior
from fedprior.methods.fedmap import FedMAP

federation = fedprior.data.load("synthetic", skew="label")
result = fedprior.run(FedMAP(sigma2=15), federation, rounds=50)
print(result.clients[["accuracy", "nll"]])
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedprior import data
    from fedprior.errors import FedpriorError
    from fedprior.estimators import FederatedClassifier, FederatedRegressor
    from fedprior.experiment import (
        Assessment,
        Comparison,
        Participation,
        PersonalModel,
        Result,
        assess,
        compare,
        join,
        load_model,
        load_prior,
        resume,
        run,
    )
    from fedprior.training import Train

__version__ = "0.1.0"
__all__ = [
    "Assessment",
    "Comparison",
    "FederatedClassifier",
    "FederatedRegressor",
    "FedpriorError",
    "Participation",
    "PersonalModel",
    "Result",
    "Train",
    "assess",
    "compare",
    "data",
    "join",
    "load_model",
    "load_prior",
    "resume",
    "run",
]
_HOMES = {
    "FederatedClassifier": "fedprior.estimators",
    "FederatedRegressor": "fedprior.estimators",
    "FedpriorError": "fedprior.errors",
    "Train": "fedprior.training",
}  # of the others: fedprior.experiment


def __getattr__(name: str) -> Any:
    """Imported when it is first asked for, so that `fedprior --help` need not wait for PyTorch."""
    if not name.startswith("_") and find_spec(f"fedprior.{name}") is not None:
        return import_module(f"fedprior.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'fedprior' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_HOMES.get(name, "fedprior.experiment")), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
