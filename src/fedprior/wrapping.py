"""What all wrappers share: a method that passes everything through to another one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fedprior.data.client import ClientData
from fedprior.data.naming import Names
from fedprior.explanation import Explanation
from fedprior.protocol import About, AnyMethod, Hints, Logs, Types
from fedprior.rng import Key, Keys


class Wrapper(AnyMethod):
    """Passes everything through to `inner`; a subclass defines what it changes."""

    inner: AnyMethod

    @abstractmethod
    def describe(self, inner: About) -> About:
        """What the wrapped method declares about itself."""

    @property
    def about(self) -> About:  # type: ignore[override]
        """The inner method's, with the wrapper's name behind it."""
        return self.describe(self.inner.about)

    @property
    def hints(self) -> Hints:  # type: ignore[override]
        """The inner method's."""
        return self.inner.hints

    @property
    def types(self) -> Types:
        """The inner method's."""
        return self.inner.types

    @property
    def uses_validation(self) -> bool:
        """As the inner method."""
        return self.inner.uses_validation

    @property
    def class_means(self) -> bool:
        """As the inner method."""
        return self.inner.class_means

    def init_server(self, key: Key, clients: int = 1) -> Any:
        """The inner method's."""
        return self.inner.init_server(key, clients)

    def broadcast(self, server: Any, ids: Tensor) -> Any:
        """The inner method's."""
        return self.inner.broadcast(server, ids)

    def init_client(self, down: Any, data: ClientData, keys: Keys) -> Any:
        """The inner method's."""
        return self.inner.init_client(down, data, keys)

    def local_update(self, client: Any, down: Any, data: ClientData, keys: Keys) -> tuple[Any, Any, Logs]:
        """The inner method's."""
        return self.inner.local_update(client, down, data, keys)

    def converged(self, server: Any) -> bool:
        """The inner method's."""
        return self.inner.converged(server)

    def explain(self, server: Any, personal: Any, names: Names) -> Explanation:
        """The inner method's."""
        return self.inner.explain(server, personal, names)

    def shareable(self, server: Any) -> Any:
        """The inner method's."""
        return self.inner.shareable(server)

    def predict(self, personal: Any, x: Tensor, keys: Keys) -> Tensor:
        """The inner method's."""
        return self.inner.predict(personal, x, keys)

    def predict_global(self, server: Any, x: Tensor) -> Tensor | None:
        """The inner method's."""
        return self.inner.predict_global(server, x)


def layers(method: Any) -> Iterator[Wrapper]:
    """All wrappers of a method, from the outermost."""
    while isinstance(method, Wrapper):
        yield method
        method = method.inner
