"""``fairlead up`` and ``fairlead ns``: start, ready file, end, what keeps them from starting."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Callable

import pytest

from tests.processes import (
    BrokerProcess,
    environment,
    free_port,
    poll,
    run_fairlead,
    start_fairlead,
)

StartBroker = Callable[..., BrokerProcess]


def test_the_ready_file_describes_the_broker(start_broker: StartBroker) -> None:
    broker = start_broker("--channel", "orders", "--channel", "bills")
    assert broker.ready["pid"] == broker.pid
    assert broker.ready["name_server"] == broker.name_server
    assert broker.ready["channels"] == ["orders", "bills"]
    assert broker.ready["store"] == str(broker.store)
    assert [p for p in broker.directory.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(start_broker: StartBroker, signum: int) -> None:
    broker = start_broker()
    assert broker.end(signum) == 0
    assert not broker.ready_file.exists()
    assert "Traceback" not in broker.log.read_text()


def test_the_banner_says_what_listens_where(start_broker: StartBroker) -> None:
    broker = start_broker("--channel", "orders")
    broker.stop()
    text = broker.log.read_text()
    for expected in (
        broker.name_server,
        broker.ready["front"],
        "orders",
        str(broker.store),
        "Ctrl-C",
    ):
        assert expected in text


def test_what_was_published_is_there_after_kill_9(start_broker: StartBroker) -> None:
    broker = start_broker()
    assert broker.run("pub", "orders", "one", "two").returncode == 0
    broker.kill9()
    broker.restart()
    got = broker.run("sub", "orders", "--count", "2")
    assert (got.returncode, got.stdout) == (0, "one\ntwo\n"), got.stderr


def test_options_come_from_the_environment(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, FAIRLEAD_CHANNEL="orders bills", FAIRLEAD_DURABILITY="flush")
    with broker:
        assert broker.ready["channels"] == ["orders", "bills"]
        assert broker.ready["durability"] == "flush"


def test_the_policy_is_that_of_new_channels(start_broker: StartBroker) -> None:
    broker = start_broker("--policy", "attempts_max=7", "--policy", "poison=block")
    broker.run("create", "usual")
    broker.run("create", "own", "--policy", "attempts_max=2")
    assert broker.read_json("info", "usual")["policy"]["attempts_max"] == 7
    assert broker.read_json("info", "own")["policy"]["attempts_max"] == 2
    assert broker.read_json("info", "own")["policy"]["poison"] == "park_message"


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit, as Linux has it")
def test_a_store_that_cannot_grow_ends_it_with_the_reason(start_broker: StartBroker) -> None:
    broker = start_broker("--channel", "orders")
    assert broker.run("pub", "orders", "before").returncode == 0
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    publishing = start_fairlead(
        "pub", "orders", "--give-up", "0.5", name_server=broker.name_server, stdin=subprocess.PIPE
    )
    try:
        assert publishing.stdin is not None
        publishing.stdin.write(b"x" * 200_000 + b"\n")
        publishing.stdin.close()
        assert broker.wait(10.0) == 1
        assert "fairlead: the broker stopped because it failed: " in broker.log.read_text()
        assert not broker.ready_file.exists()
        assert publishing.wait(20.0) == 1
        assert publishing.stderr is not None
        assert b"accepted 0, duplicates 0, refused 0, unknown 1" in publishing.stderr.read()
    finally:
        publishing.kill()
        publishing.wait()
    broker.start()
    assert broker.run("sub", "orders", "--count", "1").stdout == "before\n"


# What keeps it from starting.


def refused(*args: object) -> str:
    """The one line that ``up`` ends with, with exit code 1."""
    done = run_fairlead("up", *args)
    assert done.returncode == 1, done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("fairlead: ")]
    assert len(complaints) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return complaints[0]


def test_a_damaged_store_is_named_without_a_traceback(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.run("pub", "orders", "one", "two", "three")
    broker.stop()
    damage(broker.store)
    text = refused("--store", broker.store, "--name-server", f"127.0.0.1:{free_port()}")
    assert "orders" in text
    assert "damaged" in text


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    store = tmp_path / "notes.txt"
    store.write_text("these are no records\n" * 100)
    text = refused("--store", store, "--name-server", f"127.0.0.1:{free_port()}")
    assert str(store) in text


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    assert "does not exist" in refused("--store", tmp_path / "nowhere" / "fairlead.db")


def test_a_store_serves_one_broker_at_a_time(start_broker: StartBroker) -> None:
    broker = start_broker()
    text = refused("--store", broker.store, "--name-server", f"127.0.0.1:{free_port()}")
    assert "in use" in text
    assert str(broker.pid) in text


def test_a_second_broker_at_one_name_server_is_refused(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    text = refused("--store", tmp_path / "other.db", "--name-server", broker.name_server)
    assert f"pid {broker.pid}" in text


def test_a_port_in_use_is_named(start_broker: StartBroker, tmp_path: Path) -> None:
    port = start_broker().ready["front"].rpartition(":")[2]
    text = refused(
        "--store", tmp_path / "other.db", "--port", port,
        "--name-server", f"127.0.0.1:{free_port()}",
    )  # fmt: skip
    assert port in text


def damage(store: Path) -> None:
    """Change one byte in the runs of a published record, behind the journal's back."""
    with sqlite3.connect(store) as connection:
        row = connection.execute(
            "SELECT rowid, bodies FROM records WHERE bodies IS NOT NULL LIMIT 1"
        ).fetchone()
        changed = bytes([row[1][0] ^ 1]) + row[1][1:]
        connection.execute("UPDATE records SET bodies = ? WHERE rowid = ?", (changed, row[0]))
    connection.close()


# The name server alone.


def test_a_name_server_alone_is_joined_and_outlives_its_broker(tmp_path: Path) -> None:
    ready = tmp_path / "names.json"
    names = start_fairlead("ns", "--port", free_port(), "--ready-file", ready)
    try:
        poll(ready.exists, 20.0, "the name server is up")
        where = json.loads(ready.read_text())["name_server"]
        with BrokerProcess(tmp_path, "--channel", "orders", name_server=where) as broker:
            assert broker.run("check", "orders").returncode == 0
        gone = run_fairlead("ls", name_server=where)
        assert gone.returncode == 1
        assert "no broker is registered" in gone.stderr
        twice = run_fairlead("ns", "--port", where.rpartition(":")[2])
        assert twice.returncode == 1
        assert "answers already" in twice.stderr
    finally:
        names.send_signal(signal.SIGTERM)
        _, complaints = names.communicate(timeout=20)
    assert (names.returncode, complaints) == (0, b"")


def test_children_do_not_inherit_the_caller_s_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_NAME_SERVER", "elsewhere:1")
    assert "FAIRLEAD_NAME_SERVER" not in environment()
    assert os.environ["FAIRLEAD_NAME_SERVER"] == "elsewhere:1"
