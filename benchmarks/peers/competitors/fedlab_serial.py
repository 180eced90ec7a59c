"""FedLab: its FedAvg server and its serial client trainer, in the loop that its documentation shows.

A FedLab user writes the loader. This one gathers whole batches, as fast as the plain loop does it; the torch
`DataLoader` of FedLab's examples collates example by example and takes longer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from torch import Tensor

from .. import tasks
from ..tasks import Problem
from .local import batches
from .session import Session
from .vision import import_torchvision


class Clients:
    """Every client's shuffled batches, under the name that FedLab's trainer calls."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> Iterator[tuple[Tensor, Tensor]]:
        return batches(self.problem.x[id], self.problem.y[id], batch_size)


def main() -> None:
    import_torchvision()
    from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler

    session = Session()
    problem, task = session.problem, session.task
    random.seed(0)
    handler = FedAvgServerHandler(problem.network(), global_round=task.rounds, sample_ratio=task.fraction)
    handler.num_clients = task.clients
    trainer = FedAvgSerialClientTrainer(problem.network(), task.clients)
    trainer.setup_dataset(Clients(problem))
    trainer.setup_optim(1, task.batch, task.lr)
    session.begin()
    while not handler.if_stop:
        trainer.local_process(handler.downlink_package, handler.sample_clients())
        for package in trainer.uplink_package:
            handler.load(package)
        session.tick()
    session.finish(tasks.evaluate(handler.model, problem.x_test, problem.y_test), "fedlab")


if __name__ == "__main__":
    main()
