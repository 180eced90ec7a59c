"""The tasks: data, our method with the authors' settings, a round of their code, and the numbers to be compared."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import os
import sys
import types
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from authors import clones
from authors.clones import Batches
from fedprior.data.federation import Federation, from_arrays
from fedprior.engine import AnyMethod
from fedprior.methods import build
from fedprior.models import build as build_model
from fedprior.models.likelihood import likelihood_of
from fedprior.models.task import Task
from fedprior.rng import Key, Keys
from fedprior.training import Train

Numbers = dict[str, Tensor]
Competitor = tuple[Callable[[int], Any], Callable[[], Numbers]]


class Work(NamedTuple):
    """A task: what is trained by whom, and how near the numbers must be to each other."""

    title: str
    data: Callable[[], Federation]
    method: AnyMethod
    theirs: Callable[[Path, AnyMethod, Federation], Competitor]
    ours: Callable[[Any], Numbers]  # the numbers of an engine after the last round
    model: dict[str, Any]
    train: Train
    near: dict[str, float]  # largest difference of each number, relative to its mean size; infinite: shown, not judged

    def bound(self, data: Federation) -> AnyMethod:
        """Our method on its network."""
        likelihood = likelihood_of(data.target)
        options = dict(self.model)
        network = build_model(options.pop("name"), options, data.shape, likelihood.outputs)
        return self.method.bind(Task(network, likelihood), self.train)


def make(clients: int, examples: int, shape: tuple[int, ...], classes: int) -> Callable[[], Federation]:
    """Noise around a centre for each class, so that there is something to learn."""

    def load() -> Federation:
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((classes, *shape), dtype=np.float32) / 4
        y = np.arange(round(examples / 0.8)) % classes
        rows = {
            f"c{k:03d}": (centres[y] + rng.standard_normal((len(y), *shape), dtype=np.float32), y)
            for k in range(clients)
        }
        return from_arrays(rows, classes=classes, validation=0.0, test=0.2)

    return load


def _batches(method: AnyMethod, data: Federation, purpose: str, **more: Any) -> list[Batches]:
    keys = Keys.of(Key.from_seed(0), data.clients)
    budget = method.train.budget(method.task)
    return [Batches(data.train[[c]], keys[[c]], purpose, budget, **more) for c in range(len(data))]


def _filled(network: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    """The network with our weights, which come in the same order."""
    names = list(network.state_dict())
    network.load_state_dict(dict(zip(names, weights.values(), strict=False)), strict=False)
    return network


def _ordered(method: AnyMethod, w: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: w[name] for name, _ in method.task.module.named_parameters() if name in w}


def _flat(values: Any) -> Tensor:
    return torch.cat([v.detach().flatten() for v in values])


# pFedVEM


class Perceptron(nn.Module):
    """784-100, the base; the authors' client has the head."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.d_feature = nn.Linear(784, 100), 100

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x).relu()
        return out


def _their_network() -> nn.Module:
    network: nn.Module = clones.module("model").CNNCifarBase()
    return network


def pfedvem_of(network: Callable[[], nn.Module]) -> Callable[[Path, AnyMethod, Federation], Competitor]:
    """A round of the authors' pFedVEM: every client trains, all report."""

    def start(clone: Path, method: AnyMethod, data: Federation) -> Competitor:
        unused = ("torchvision", "torchvision.transforms", "torchvision.datasets")
        clones.enter(clone, ("vem/vem_client.py", "vem/server.py"), unused)
        client_module, server_module = clones.module("vem.vem_client"), clones.module("vem.server")
        prior, m = method.init_server(Key.from_seed(0)), method.hyperparameters()
        base = _filled(
            network() if network is Perceptron else clones.module("model").CNNCifarBase(), _ordered(method, prior.base)
        )
        server = server_module.VEMServer(model_base=base, beta=0, device="cpu")
        head = method.task.head
        server.mu_W, server.mu_b = prior.w[f"{head}.weight"].T.clone(), prior.w[f"{head}.bias"].clone()
        loaders = _batches(method, data, "base")
        server.connect_clients(
            [
                client_module.VEMClient(
                    device="cpu",
                    model_base=deepcopy(base),
                    weight_mu=server.mu_W.clone(),
                    bias_mu=server.mu_b.clone(),
                    train_loader=loader,
                    client_labels=list(range(10)),
                    momentum=method.train.momentum,
                    scale=1,
                    n_mc=m["draws"],
                    base_epochs=method.train.epochs,
                    head_epochs=m["head_steps"],
                )
                for loader in loaders
            ]
        )

        def run(number: int) -> None:
            for client in server.clients:
                client.train_loader.begin(number, whole=m["head_steps"])
                client.train(server.mu_W, server.mu_b, m["head_lr"], method.train.lr, relabel=False)
            everyone = range(len(server.clients))
            server.update_base_model(everyone)
            server.update_center_model(everyone)

        def numbers() -> Numbers:
            return {"ρ": torch.tensor([c.rho for c in server.clients]), "base": _flat(server.model_base.parameters())}

        return run, numbers

    return start


def pfedvem_ours(engine: Any) -> Numbers:
    base = _ordered(engine.method, engine.server.base)
    return {"ρ": torch.from_numpy(engine.logs["rho"]), "base": _flat(base.values())}


# pFedFDA


def _minimise(function: Callable[[Tensor], Tensor], x0: Tensor, max_iter: int, options: Any, **more: Any) -> Any:
    """torch's own L-BFGS, where pytorch-minimize is not installed."""
    x = x0.clone().requires_grad_()
    solver = torch.optim.LBFGS([x], max_iter=max_iter, tolerance_grad=options["gtol"], line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        value = function(x)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(closure)  # type: ignore[no-untyped-call]
    return types.SimpleNamespace(x=x.detach())


def pfedfda(clone: Path, method: AnyMethod, data: Federation) -> Competitor:
    """A round of the authors' pFedFDA with two β: every client trains and reports."""
    unused = ("torchvision", "torchvision.transforms", "torchvision.datasets")
    clones.enter(clone, ("clients/client_fedfda.py", "servers/server_fedfda.py", "models/cnn.py"), unused)
    os.environ.setdefault("DATA_PATH", "-")  # read on import; none of their data is loaded
    if importlib.util.find_spec("torchmin") is None:
        sys.modules["torchmin"] = types.SimpleNamespace(minimize=_minimise)  # type: ignore[assignment]
    servers, loaders = clones.module("servers.server_fedfda"), _batches(method, data, "descend")

    class Client(servers.ClientFedFDA):  # type: ignore[misc,name-defined]
        """The authors' client with our examples and batches."""

        def setup_dataset(self, args: Any) -> None:
            self.loader = loaders[self.client_idx]
            self.num_train = self.num_test = len(self.loader.dataset)

        def load_train_data(self, batch_size: int | None = None, drop_last: bool = True) -> Batches:
            if not self.loader.passes:
                self.loader.begin(0)
            return self.loader

    servers.ClientFedFDA = Client
    prior = method.init_server(Key.from_seed(0))
    network = _filled(clones.module("models.cnn").CIFARNet(), _ordered(method, prior.phi))
    train = method.train
    server = servers.ServerFedFDA(
        types.SimpleNamespace(
            model=network,
            batch_size=train.batch_size,
            local_epochs=train.epochs,
            lr=train.lr,
            momentum=train.momentum,
            wd=train.weight_decay,
            num_classes=10,
            num_clients=len(data),
            device="cpu",
            single_beta=False,
            local_beta=False,
            train_prop=1.0,
            sampling_prob=1.0,
            global_rounds=1,
            eval_gap=1,
            **dict.fromkeys(("exp_name", "partition_path", "dataset", "model_name"), "-"),
        )
    )
    server.global_means = prior.mean.clone()
    server.active_clients = server.clients

    def run(number: int) -> None:
        server.r = number + 1
        server.send_models()
        for client in server.clients:
            client.loader.begin(number)
        server.train_clients()
        server.aggregate_models()

    def numbers() -> Numbers:
        phi = [p for name, p in server.model.named_parameters() if not name.startswith("fc.")]
        return {
            "φ": _flat(phi),
            "β": torch.tensor([[float(c.means_beta[0]), float(c.cov_beta)] for c in server.clients]),
        }

    return run, numbers


def pfedfda_ours(engine: Any) -> Numbers:
    beta = [engine.logs["beta"], engine.logs["beta_covariance"]]
    phi = _ordered(engine.method, engine.server.phi)
    return {"φ": _flat(phi.values()), "β": torch.from_numpy(np.stack(beta, 1))}


# FedMAP


def fedmap(clone: Path, method: AnyMethod, data: Federation) -> Competitor:
    """The authors' local training under the Gaussian prior, and a mean by examples, without Flower and files."""
    needs = ("src/utils/train_helper.py", "src/models/map_mlp.py")
    clones.enter(clone, needs, ("flwr", "hydra", "omegaconf"))
    helper, loaders = clones.module("src.utils.train_helper"), _batches(method, data, "descend", float_labels=True)
    make_network = clones.module("src.models.map_mlp").MLP
    weights = _ordered(method, method.init_server(Key.from_seed(0)).gamma)
    gamma = _filled(make_network(30), weights)
    own = [deepcopy(gamma) for _ in loaders]
    variance = method.hyperparameters()["sigma2"]

    def run(number: int) -> None:
        for network, loader in zip(own, loaders, strict=True):
            loader.begin(number)
            network.train()
            with contextlib.redirect_stdout(io.StringIO()):
                helper.train(network, loader, method.train.epochs, "cpu", "0", "fedmap", gamma=gamma, variance=variance)
        share = [n / sum(data.train.size) for n in data.train.size]
        with torch.no_grad():
            for mean, *each in zip(gamma.parameters(), *(network.parameters() for network in own), strict=True):
                mean.copy_(sum((s * p for s, p in zip(share, each, strict=True)), torch.zeros_like(mean)))

    return run, lambda: {"γ": _flat(gamma.parameters())}


def fedmap_ours(engine: Any) -> Numbers:
    return {"γ": _flat(_ordered(engine.method, engine.server.gamma).values())}


VEM = Train(lr=0.001, momentum=0.9, batch_size=10, epochs=5)
NOISE = {"ρ": 0.02, "base": 0.2}
WORKS: dict[str, list[Work]] = {
    "pfedvem": [
        Work(
            title="pFedVEM, perceptron 784-100-10, 50 clients × 200",
            data=make(50, 200, (784,), 10),
            method=build("pfedvem"),
            theirs=pfedvem_of(Perceptron),
            ours=pfedvem_ours,
            model={"name": "mlp"},
            train=VEM,
            near=NOISE,
        ),
        Work(
            title="pFedVEM, their CIFAR network, 10 clients × 200",
            data=make(10, 200, (3, 32, 32), 10),
            method=build("pfedvem"),
            theirs=pfedvem_of(_their_network),
            ours=pfedvem_ours,
            model={"name": "cnn_cifar_lenet"},
            train=VEM,
            near=NOISE,
        ),
    ],
    "pfedfda": [
        Work(
            title="pFedFDA, their CIFAR network, 10 clients × 200, two β",
            data=make(10, 200, (3, 32, 32), 10),
            method=build("pfedfda", {"beta": "double", "feature_cache": "all_epochs", "folds_by": "copy"}),
            theirs=pfedfda,
            ours=pfedfda_ours,
            model={"name": "cnn_cifar"},
            train=Train(lr=0.01, momentum=0.5, weight_decay=5e-4, batch_size=50, epochs=5),
            near={"φ": 0.05, "β": math.inf},
        )
    ],
    "fedmap": [
        Work(
            title="FedMAP, perceptron 30-32-16-1, 10 clients × 1,400, ten epochs",
            data=make(10, 1400, (30,), 2),
            method=build("fedmap", {"omega": "num_examples"}),
            theirs=fedmap,
            ours=fedmap_ours,
            model={"name": "mlp", "hidden": (32, 16), "single_logit": True},
            train=Train(optimizer="adam", lr=1e-4, batch_size=64, epochs=10),
            near={"γ": 1e-3},
        )
    ],
}
