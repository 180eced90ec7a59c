"""pfl-research: FederatedAveraging on its simulated backend, in one process or in several under torchrun.

Each client's dataset object is made once and kept, so its batches are slices cached by pfl (which does not shuffle).
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from .. import tasks
from .session import Session

NEVER = 10**6  # zero is no frequency to pfl; the first round is evaluated whatever it is


class Classifier(nn.Module):
    """A network with the two functions that pfl calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Times(TrainingProcessCallback):  # type: ignore[misc]
    """Tells the session about rounds."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def on_train_begin(self, *, model: Any) -> Any:
        self.session.begin()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.session.tick()
        return False, Metrics()


def main() -> None:
    session = Session()
    problem, task = session.problem, session.task
    users = [PyTorchTensorDataset((problem.x[c], problem.y[c]), user_id=str(c)) for c in range(task.clients)]
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(task.clients))))
    module = Classifier(problem.network())
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=NEVER,
            train_cohort_size=task.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=task.lr, local_num_epochs=1, local_batch_size=task.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=task.examples),
        callbacks=[Times(session)],
        send_metrics_to_platform=False,
    )
    if int(os.environ.get("RANK", "0")) == 0:
        session.finish(tasks.evaluate(module.network, problem.x_test, problem.y_test), "pfl")


if __name__ == "__main__":
    main()
