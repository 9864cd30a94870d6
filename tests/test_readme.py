"""The README's Python blocks run as they stand, against a real broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import BrokerProcess

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, "--channel", "orders") as running:
        yield running


def run(block: str, broker: BrokerProcess) -> str:
    # The README uses the default port; the test must not collide with a broker of the reader's.
    host, _, port = broker.name_server.rpartition(":")
    block = block.replace('"127.0.0.1", 9090', f'"{host}", {port}')
    done = subprocess.run(
        [sys.executable, "-c", block], capture_output=True, text=True, timeout=60,
        env={**os.environ, "FAIRLEAD_NAME_SERVER": broker.name_server, "PYTHONPATH": str(ROOT),
             "FAIRLEAD_STATE": str(broker.directory / "clients"),
             # As in many containers. Each write is then a call of its own, and lines of two
             # handlers mix unless each line is one write.
             "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_three_python_blocks() -> None:
    assert len(BLOCKS) == 3


def test_the_example_publishes_and_handles_in_order_per_partition(broker: BrokerProcess) -> None:
    lines = run(BLOCKS[0], broker).splitlines()
    assert lines[0] == "Accepted(sequence=4, duplicate=False)"
    assert lines[-1] == "7 handled"
    steps = {name: [line.split()[2] for line in lines if line.startswith(name)] for name in
             ("ann", "bob")}  # fmt: skip
    assert steps["ann"] == ["created", "paid", "shipped", "closed"]
    assert steps["bob"] == ["created", "paid", "shipped"]


def test_the_topics_block_gets_what_was_put_once(broker: BrokerProcess) -> None:
    assert run(BLOCKS[2], broker).splitlines() == [
        "True", "[{'headline': 'rain'}, 'wind', 'sun']", "None",
    ]  # fmt: skip


def test_the_plain_pyro5_block_fetches_what_it_published(broker: BrokerProcess) -> None:
    assert run(BLOCKS[1], broker).splitlines() == ["ann 1 created", "ann 2 paid"]
