"""fedprior: its engine, driven round by round, with one worker or more."""

from __future__ import annotations

import torch
from torch import Tensor

from fedprior.data.client import ClientData
from fedprior.data.federation import Federation
from fedprior.data.target import Classes
from fedprior.engine import AnyMethod, Engine
from fedprior.methods.ditto import Ditto
from fedprior.methods.fedavg import FedAvg
from fedprior.models import build
from fedprior.models.likelihood import Categorical
from fedprior.models.task import Task
from fedprior.protocol import Weights
from fedprior.training import Train

from .. import tasks
from ..tasks import CLASSES, Problem
from .session import Session

MODELS = {"softmax": "softmax", "mlp": "mlp", "cnn": "cnn_cifar"}


def federation(problem: Problem) -> Federation:
    """The shared arrays as a federation, without a copy."""
    own_test = problem.task.pull is not None
    nothing = _stack(problem.x[:, :0], problem.y[:, :0])
    return Federation(
        clients=tuple(f"c{k:04d}" for k in range(problem.task.clients)),
        train=_stack(problem.x, problem.y),
        validation=nothing,
        test=_stack(problem.x_test, problem.y_test) if own_test else nothing,
        target=Classes.numbered(CLASSES),
    )


def _stack(x: Tensor, y: Tensor) -> ClientData:
    clients, n = y.shape
    return ClientData(x.flatten(0, 1), y.flatten(), tuple(n * k for k in range(clients)), (n,) * clients)


def bound(problem: Problem) -> AnyMethod:
    """FedAvg, or Ditto if the task is personal, for the task's network and training."""
    spec = problem.task
    train = Train(lr=spec.lr, batch_size=spec.batch, epochs=1)
    task = Task(build(MODELS[spec.network], {}, spec.shape, CLASSES), Categorical(CLASSES))
    if spec.pull is None:
        return FedAvg().bind(task, train)
    return Ditto(strength=spec.pull, personal_epochs=1).bind(task, train)


def main() -> None:
    session = Session()
    problem, spec = session.problem, session.task
    method, data = bound(problem), federation(problem)
    names = [name for name, _ in method.task.module.named_parameters()]
    initial = dict(zip(names, problem.weights, strict=True))
    with Engine(method, data, 0, workers=session.options.workers) as engine:
        engine.server = Weights({name: initial[name] for name in sorted(names)})
        session.begin()
        for number in range(spec.rounds):
            cohort = session.cohort()
            engine.round(number, cohort, cohort)
            session.tick()
        if spec.pull is None:
            module = problem.network()
            tasks.load(module, [engine.server.w[name] for name in names])
            scores = tasks.evaluate(module, problem.x_test, problem.y_test)
        else:
            found = engine.evaluate(spec.rounds, ("test",)).predictions
            pairs = zip(found["test"], problem.y_test, strict=True)
            scores = tasks.mean([tasks.score(torch.from_numpy(log_p), y) for log_p, y in pairs])
    session.finish(scores, "fedprior")


if __name__ == "__main__":
    main()
