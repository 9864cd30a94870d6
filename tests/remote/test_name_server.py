"""The name server: started, joined, asked by Pyro5's own tools, killed and replaced."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time

import pytest

from broker import pyro_setup
from broker.errors import BrokerUnavailable, ChannelNotFound
from broker.pyro_setup import Proxy, core, pyro_errors
from broker.remote import name_server
from broker.remote.name_server import NameServer, Registrar, locate

URI = "PYRO:channel.orders@127.0.0.1:4711"


def wait_until(condition, timeout_s=10.0):
    """Poll ``condition`` to a deadline; return its last value."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition() and time.monotonic() < deadline:
        pause.wait(0.01)
    return condition()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture(autouse=True)
def settings():
    pyro_setup.configure(comm_timeout_s=2.0)


@pytest.fixture
def names():
    started = NameServer.start_or_join(port=0, timeout_s=1.0)
    yield started
    started.close()


@pytest.fixture
def plain():
    """Starts plain Pyro5 name servers in processes of their own, and kills them."""
    running = []

    def start(port):
        script = textwrap.dedent(f"""
            import Pyro5.nameserver
            Pyro5.nameserver.start_ns_loop("127.0.0.1", {port}, enableBroadcast=False)
        """)
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL)
        running.append(process)
        handle = NameServer("127.0.0.1", port, timeout_s=1.0)
        assert wait_until(handle.answers)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_names_are_registered_listed_looked_up_and_removed(names):
    names.register("channel.orders", URI, {"channel"})
    names.register("other", URI)
    assert names.owned
    assert names.registered("channel.") == {"channel.orders": URI}
    assert set(names.registered()) == {core.NAMESERVER_NAME, "channel.orders", "other"}
    assert names.lookup("channel.orders") == URI
    assert names.unregister("channel.orders") is True
    assert names.unregister("channel.orders") is False
    with pytest.raises(ChannelNotFound, match=r"channel\.orders"):
        names.lookup("channel.orders")


def test_a_second_start_joins_the_first(names):
    second = NameServer.start_or_join("127.0.0.1", names.port)
    assert not second.owned
    second.register("channel.orders", URI)
    second.close()
    assert locate("127.0.0.1", names.port).lookup("channel.orders") == URI


def test_of_many_that_start_at_once_one_starts_and_the_others_join():
    port, handles = free_port(), []
    ready = threading.Barrier(6)

    def start():
        ready.wait(5)
        handles.append(NameServer.start_or_join("127.0.0.1", port))

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [handle.owned for handle in handles].count(True) == 1 and len(handles) == 6
    for handle in handles:
        handle.close()


def test_a_port_held_by_something_else_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(name_server, "JOIN_PATIENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{port}: cannot start"):
            NameServer.start_or_join("127.0.0.1", port, timeout_s=0.2)


def test_no_name_server_is_unavailable():
    with pytest.raises(BrokerUnavailable):
        locate("127.0.0.1", free_port(), timeout_s=0.5)


def test_the_number_of_names_is_limited(names, monkeypatch):
    monkeypatch.setattr(name_server, "NAMES_COUNT_MAX", 2)
    names.register("first", URI)
    with pytest.raises(BrokerUnavailable, match="all 2 names"):
        names.register("second", URI)
    names.register("first", URI + "1")


def test_pyro5_nsc_and_plain_pyro5_work_with_our_name_server(names):
    names.register("channel.orders", URI, {"fairlead.channel"})
    tool = os.path.join(sysconfig.get_path("scripts"), "pyro5-nsc")
    assert os.path.exists(tool)

    def nsc(*command):
        return subprocess.run(
            [tool, "-n", "127.0.0.1", "-p", str(names.port), *command], capture_output=True,
            text=True, timeout=20, check=True,
        ).stdout

    assert f"channel.orders --> {URI}" in nsc("list")
    assert f"channel.orders --> {URI}" in nsc("yplookup_all", "fairlead.channel")
    assert URI in nsc("lookup", "channel.orders")
    assert "ping ok" in nsc("ping")
    with Proxy(names.uri) as proxy:
        proxy._pyroSerializer = "serpent"
        assert proxy.lookup("channel.orders") == core.URI(URI)
        with pytest.raises(pyro_errors.NamingError):
            proxy.lookup("nobody")


def test_a_registrar_registers_again_after_the_name_server_was_killed(plain, caplog):
    caplog.set_level(logging.INFO, "fairlead.names")
    port = free_port()
    process = plain(port)
    names = NameServer.start_or_join("127.0.0.1", port, timeout_s=0.5)
    assert not names.owned
    registrar = Registrar(names, interval_s=0.05)
    assert registrar.add("channel.orders", URI, {"fairlead.channel"})
    assert registrar.add("channel.bills", URI)
    registrar.start()
    try:
        process.kill()
        process.wait()
        assert wait_until(lambda: "does not answer" in caplog.text)
        assert registrar.add("channel.late", URI) is False
        plain(port)
        wanted = {"channel.orders": URI, "channel.bills": URI, "channel.late": URI}
        assert wait_until(lambda: names.answers() and names.registered("channel.") == wanted)
        assert wait_until(lambda: "answers again" in caplog.text)
        assert caplog.text.count("does not answer") == 1, "one line per outage"
    finally:
        registrar.stop()
    assert names.registered("channel.") == {}, "stop takes the names out"


def test_a_registrar_restores_a_forgotten_name_and_leaves_a_taken_one(names):
    registrar = Registrar(names, interval_s=60)
    registrar.add("channel.orders", URI)
    registrar.add("channel.bills", URI)
    names.unregister("channel.orders")
    names.register("channel.bills", URI + "9")
    assert registrar.check() is True
    assert names.registered("channel.") == {"channel.orders": URI, "channel.bills": URI + "9"}
    assert registrar.lost == {"channel.bills"}
    registrar.remove("channel.bills")
    registrar.stop()
    assert names.registered("channel.") == {"channel.bills": URI + "9"}


def test_a_stopped_registrar_ends_at_once_even_in_an_outage():
    registrar = Registrar(NameServer("127.0.0.1", free_port(), timeout_s=0.5), interval_s=60)
    assert registrar.add("channel.orders", URI) is False
    registrar.start()
    started = time.monotonic()
    registrar.stop()
    assert time.monotonic() - started < 1.0
