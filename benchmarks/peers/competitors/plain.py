"""The plain PyTorch loop: one module, `load_state_dict`, `torch.optim.SGD`, one thread."""

from __future__ import annotations

import torch
from torch import nn

from .. import tasks
from ..tasks import Problem
from .local import State, copied, descend, descend_near
from .session import Session


class Loop:
    """FedAvg, and Ditto if the task is personal."""

    def __init__(self, problem: Problem, module: nn.Module) -> None:
        self.problem, self.task, self.module = problem, problem.task, module
        self.shared = copied(module)
        personal = self.task.pull is not None
        self.personal = [copied(module) for _ in range(self.task.clients)] if personal else []

    def round(self, cohort: list[int]) -> None:
        mean = {name: torch.zeros_like(value) for name, value in self.shared.items()}
        total = sum(len(self.problem.y[c]) for c in cohort)
        for c in cohort:
            x, y = self.problem.x[c], self.problem.y[c]
            self.module.load_state_dict(self.shared)
            descend(self.module, x, y, self.task.lr, self.task.batch)
            for name, value in self.module.state_dict().items():
                mean[name].add_(value, alpha=len(y) / total)
            if self.task.pull is not None:
                self.personal[c] = self._personal(c, self.task.pull)
        self.shared = mean

    def _personal(self, c: int, pull: float) -> State:
        self.module.load_state_dict(self.personal[c])
        anchor = list(self.shared.values())
        x, y = self.problem.x[c], self.problem.y[c]
        descend_near(self.module, anchor, pull, x, y, self.task.lr, self.task.batch)
        return copied(self.module)

    def scores(self) -> tuple[float, float]:
        if not self.personal:
            self.module.load_state_dict(self.shared)
            return tasks.evaluate(self.module, self.problem.x_test, self.problem.y_test)
        found = []
        for c, state in enumerate(self.personal):
            self.module.load_state_dict(state)
            found.append(tasks.evaluate(self.module, self.problem.x_test[c], self.problem.y_test[c]))
        return tasks.mean(found)


def main() -> None:
    session = Session()
    loop = Loop(session.problem, session.problem.network(session.options.network))
    session.begin()
    for _ in range(session.task.rounds):
        loop.round(session.cohort())
        session.tick()
    session.finish(loop.scores())


if __name__ == "__main__":
    main()
