"""Brokers for the tests of the command: one that all may share, and one of a test's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable, Iterator

import pytest

from tests.processes import BrokerProcess


@pytest.fixture(scope="package")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for tests that use channels of their own and leave it running."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), "--fault-injection") as broker:
        yield broker


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts a broker of the test's own; it is ended with the test."""
    started: list[BrokerProcess] = []

    def start(*args: object, **keywords: str) -> BrokerProcess:
        directory = tmp_path / f"broker-{len(started)}"
        directory.mkdir()
        started.append(BrokerProcess(directory, *args, **keywords))
        return started[-1]

    yield start
    for broker in started:
        broker.kill9()


@pytest.fixture
def channel(shared_broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    """A new channel of the shared broker, named after the test."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:90]
    made = shared_broker.run("create", name)
    assert made.returncode == 0, made.stderr
    return name
