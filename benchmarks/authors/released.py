"""A round of each released code: our examples, batches and initial weights in the authors' classes."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
import types
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from authors import clones
from authors.clones import Batches
from fedprior.data.federation import Federation
from fedprior.engine import AnyMethod
from fedprior.rng import Key, Keys

Numbers = dict[str, Tensor]
Competitor = tuple[Callable[[int], Any], Callable[[], Numbers]]


def _batches(method: AnyMethod, data: Federation, purpose: str, **more: Any) -> list[Batches]:
    keys = Keys.of(Key.from_seed(0), data.clients)
    budget = method.train.budget(method.task)
    return [Batches(data.train[[c]], keys[[c]], purpose, budget, **more) for c in range(len(data))]


def _filled(network: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    """The network with our weights, which come in the same order."""
    names = list(network.state_dict())
    network.load_state_dict(dict(zip(names, weights.values(), strict=False)), strict=False)
    return network


def ordered(method: AnyMethod, w: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights in the order of the network's layers."""
    return {name: w[name] for name, _ in method.task.module.named_parameters() if name in w}


def flat(values: Any) -> Tensor:
    """All numbers in one row."""
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


def cifar_network() -> nn.Module:
    """The authors' base for CIFAR-10."""
    network: nn.Module = clones.module("model").CNNCifarBase()
    return network


def pfedvem_of(network: Callable[[], nn.Module]) -> Callable[[Path, AnyMethod, Federation], Competitor]:
    """A round of the authors' pFedVEM: every client trains, all report."""

    def start(clone: Path, method: AnyMethod, data: Federation) -> Competitor:
        unused = ("torchvision", "torchvision.transforms", "torchvision.datasets")
        clones.enter(clone, ("vem/vem_client.py", "vem/server.py"), unused)
        client_module, server_module = clones.module("vem.vem_client"), clones.module("vem.server")
        prior, m = method.init_server(Key.from_seed(0)), method.hyperparameters()
        base = _filled(network(), ordered(method, prior.base))
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
            return {"ρ": torch.tensor([c.rho for c in server.clients]), "base": flat(server.model_base.parameters())}

        return run, numbers

    return start


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
    network = _filled(clones.module("models.cnn").CIFARNet(), ordered(method, prior.phi))
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
            "φ": flat(phi),
            "β": torch.tensor([[float(c.means_beta[0]), float(c.cov_beta)] for c in server.clients]),
        }

    return run, numbers


# FedMAP


def fedmap(clone: Path, method: AnyMethod, data: Federation) -> Competitor:
    """The authors' local training under the Gaussian prior, and a mean by examples, without Flower and files."""
    needs = ("src/utils/train_helper.py", "src/models/map_mlp.py")
    clones.enter(clone, needs, ("flwr", "hydra", "omegaconf"))
    helper, loaders = clones.module("src.utils.train_helper"), _batches(method, data, "descend", float_labels=True)
    make_network = clones.module("src.models.map_mlp").MLP
    weights = ordered(method, method.init_server(Key.from_seed(0)).gamma)
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

    return run, lambda: {"γ": flat(gamma.parameters())}
