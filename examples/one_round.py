"""What a run does, without the machinery: ten rounds of a method by hand, every function of the contract once."""

from __future__ import annotations

from typing import Any

import torch

import fedprior
from fedprior import tree
from fedprior.methods.fedmap import FedMAP
from fedprior.models import build
from fedprior.models.likelihood import likelihood_of
from fedprior.models.task import Task
from fedprior.rng import Key, Keys
from fedprior.training import Train

federation = fedprior.data.load("digits", clients=5)
network = build("softmax", {}, federation.shape, 10)
method = FedMAP().bind(Task(network, likelihood_of(federation.target)), Train(lr=0.1, epochs=2))

root, ids = Key.from_seed(0), torch.arange(len(federation))
keys = Keys.of(root, federation.clients)
server = method.init_server(root, len(federation))


def received() -> Any:
    """The server's message as a stack: one for all, which every client sees."""
    return tree.expand(method.broadcast(server, ids), len(federation))


clients = method.init_client(received(), federation.train, keys.fold("join"))
for number in range(10):
    down = received()
    clients, ups, logs = method.local_update(clients, down, federation.train, keys.fold("round", number))
    server = method.aggregate(server, ups, ids)
    print(f"round {number + 1}: mean loss {logs['loss'].mean():.3f}")

models = method.personalise(clients, received(), federation.train, keys.fold("personal"))
x, y = federation.test.client(0)
guess = method.predict(models, x.expand(len(federation), *x.shape), keys)[0].argmax(1)
print(f"accuracy of {federation.clients[0]}: {(guess == y).float().mean():.2f}")
