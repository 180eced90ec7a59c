"""Flower: its FedAvg strategy on its simulation runtime, with Ray actors of one CPU each.

The server's thread starts while Ray is still starting, so a part of Ray's start-up falls into the first round.
"""

from __future__ import annotations

import os
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from .. import tasks
from .flower_client import app as client
from .session import PROBLEM, Session


class Timed(FedAvg):  # type: ignore[misc]
    """FedAvg that tells the session about rounds and puts up with no lost client.

    The smallest cohort is given as a number, since Flower takes the fraction of the nodes that are there already when
    the server starts, which may be few.
    """

    def __init__(self, session: Session) -> None:
        task = session.task
        super().__init__(
            fraction_train=task.fraction,
            fraction_evaluate=0.0,
            min_train_nodes=task.cohort,
            min_available_nodes=task.clients,
        )
        self.session = session

    def configure_train(self, *arguments: Any) -> Any:
        messages = super().configure_train(*arguments)
        self.session.begin()
        return messages

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        answered = sum(not reply.has_error() for reply in replies)
        assert answered == self.session.task.cohort, f"{answered} clients answered in round {server_round}"
        aggregate = super().aggregate_train(server_round, replies)
        self.session.tick()
        return aggregate


def personal_scores(session: Session, grid: Grid, arrays: ArrayRecord) -> tuple[float, float]:
    """The mean over clients, each of which evaluates the model that only it holds."""
    strategy = FedAvg(fraction_evaluate=1.0, min_available_nodes=session.task.clients)
    messages = strategy.configure_evaluate(session.task.rounds, arrays, ConfigRecord(), grid)
    metrics = strategy.aggregate_evaluate(session.task.rounds, grid.send_and_receive(messages))
    return float(metrics["accuracy"]), float(metrics["loss"])


def server(session: Session) -> ServerApp:
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        problem = session.problem
        module = problem.network()
        result = Timed(session).start(grid, ArrayRecord(module.state_dict()), num_rounds=session.task.rounds)
        if problem.task.pull is None:
            module.load_state_dict(result.arrays.to_torch_state_dict())
            scores = tasks.evaluate(module, problem.x_test, problem.y_test)
        else:
            scores = personal_scores(session, grid, result.arrays)
        session.finish(scores, "flwr", "ray")

    return app


def main() -> None:
    session = Session()
    os.environ[PROBLEM] = str(session.options.problem)
    run_simulation(
        server_app=server(session),
        client_app=client,
        num_supernodes=session.task.clients,
        backend_config={
            "init_args": {"num_cpus": session.options.workers, "include_dashboard": False, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
