"""Fixtures for all tests: a broker in this process, with its own store and name server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.server.service import Service, Settings

Serve = Callable[..., Service]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a broker with the channel ``orders``; the settings are those of ``Settings``."""
    running: list[Service] = []

    def start(**settings: Any) -> Service:
        chosen = {
            "store": str(tmp_path / "store.db"),
            "name_server_port": 0,
            "channels": ["orders"],
            **settings,
        }
        running.append(Service(Settings(**chosen)).start())
        return running[-1]

    yield start
    for service in running:
        service.close()


@pytest.fixture
def names(service: Service) -> str:
    """The name server of the ``service`` that a test file defines."""
    return f"127.0.0.1:{service.names.port}"
