"""fluke: its FedAVG and its Ditto, in memory, with its own fast loader, evaluation and progress bars off."""

from __future__ import annotations

from typing import Any

from torch import nn

from .. import tasks
from ..tasks import CLASSES, Problem
from .session import Session
from .vision import import_torchvision


class Times:
    """Tells the session about rounds, under the names of fluke's events."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def start_round(self, round: int, global_model: Any) -> None:
        self.session.begin()

    def end_round(self, round: int) -> None:
        self.session.tick()


def silence(environment: Any) -> None:
    """No evaluation, no files, and nothing drawn on the terminal."""
    environment.set_seed(0)
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    live = environment.get_live_renderer()
    live.auto_refresh = False
    live.console.quiet = True
    for name in ("FL", "clients", "server"):
        environment.get_progress_bar(name).disable = True


def algorithm(problem: Problem) -> Any:
    """FedAVG, or Ditto if the task is personal. fluke counts Ditto's personal work τ in epochs."""
    from fluke import DDict
    from fluke.algorithms.ditto import Ditto
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader

    task = problem.task
    loaders = [
        FastDataLoader(x, y, num_labels=CLASSES, batch_size=task.batch, shuffle=True)
        for x, y in zip(problem.x, problem.y, strict=True)
    ]
    container = DummyDataContainer(loaders, [None] * task.clients, None, CLASSES)
    client = DDict(
        batch_size=task.batch,
        local_epochs=1,
        loss="CrossEntropyLoss",
        optimizer=DDict(name="SGD", lr=task.lr),
        scheduler=DDict(step_size=1, gamma=1),
    )
    kind = FedAVG
    if task.pull is not None:
        kind = Ditto
        client.update(model=problem.network(), tau=1, lam=task.pull)
    parameters = DDict(client=client, server=DDict(weighted=True), model=problem.network())
    return kind(task.clients, DataSplitter(dataset=container, distribution="iid"), parameters)


def scores(problem: Problem, shared: nn.Module, clients: list[Any]) -> tuple[float, float]:
    if problem.task.pull is None:
        return tasks.evaluate(shared, problem.x_test, problem.y_test)
    return tasks.mean(
        [tasks.evaluate(c.personalized_model, problem.x_test[c.index], problem.y_test[c.index]) for c in clients]
    )


def main() -> None:
    import_torchvision()
    from fluke import FlukeENV

    session = Session()
    silence(FlukeENV())
    federated = algorithm(session.problem)
    federated.attach(Times(session))
    federated.run(session.task.rounds, session.task.fraction)
    session.finish(scores(session.problem, federated.server.model, federated.clients), "fluke-fl")


if __name__ == "__main__":
    main()
