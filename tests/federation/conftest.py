"""These tests need Flower, in an environment of its own: `make federation-test`."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs fedprior[flower]: make federation-test")
