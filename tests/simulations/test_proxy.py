"""The proxy does to a connection what its weather says, and nothing else; the gateway leads all of
a client's connections through proxies.

The targets are plain sockets here: an echo server, and one that says nothing by itself.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Iterator

import pytest

from broker.errors import BrokerUnavailable
from publisher import Publisher
from simulations.stage.gateway import ADDRESS, Gateway
from simulations.stage.proxy import BLACK_HOLE, CHUNK_BYTES, FAIR, HOST, Proxy, Weather
from subscriber import Subscriber
from tests.processes import BrokerProcess, poll

DEADLINE_S = 10.0


class Echo:
    """A server that says back what it hears; a connection's end too."""

    def __init__(self) -> None:
        self._listening = socket.create_server((HOST, 0), backlog=64)
        self.address = self._listening.getsockname()
        self.ended: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        how = "closed"
        with connection:
            try:
                while data := connection.recv(CHUNK_BYTES):
                    connection.sendall(data)
            except OSError as error:
                how = type(error).__name__
        self.ended.append(how)

    def close(self) -> None:
        with suppress(OSError):  # closed before
            # Without it a thread that waits in accept would keep the port.
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.address, seed=1) as made:
        yield made


def connect(proxy: Proxy, timeout_s: float = DEADLINE_S) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout_s)


def receive(peer: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        data = peer.recv(size - len(found))
        if not data:
            break
        found += data
    return found


def ask(peer: socket.socket, data: bytes = b"hello") -> bytes:
    peer.sendall(data)
    return receive(peer, len(data))


def threads() -> int:
    return sum(thread.name == "proxy" for thread in threading.enumerate())


# Fair weather.


def test_bytes_pass_unchanged_both_ways(proxy: Proxy) -> None:
    """Five megabytes, more than a direction may queue, come back as they were sent."""
    data = random.Random(1).randbytes(5 << 20)
    with connect(proxy) as peer:
        sender = threading.Thread(target=peer.sendall, args=(data,))
        sender.start()
        assert receive(peer, len(data)) == data
        sender.join()
    assert proxy.count.passed_bytes == {"up": len(data), "down": len(data)}


def test_many_connections_are_served_by_one_thread(proxy: Proxy) -> None:
    before = threads()
    peers = [connect(proxy) for _ in range(60)]
    assert [ask(peer, b"%d" % number) for number, peer in enumerate(peers)] == [
        b"%d" % number for number in range(60)
    ]
    assert (proxy.connections, threads()) == (60, before)
    for peer in peers:
        peer.close()
    poll(lambda: proxy.connections == 0, DEADLINE_S, "all connections are forgotten")


def test_end_of_a_connection_is_passed_on(proxy: Proxy, echo: Echo) -> None:
    """A half close too: what was under way still comes back."""
    with connect(proxy) as peer:
        peer.sendall(b"last words")
        peer.shutdown(socket.SHUT_WR)
        assert receive(peer, 100) == b"last words"
    poll(lambda: echo.ended == ["closed"], DEADLINE_S, "the target has seen the end")
    poll(lambda: proxy.connections == 0, DEADLINE_S, "the connection is forgotten")
    assert proxy.count.resets == 0


def test_target_that_is_not_there_looks_like_a_reset(echo: Echo) -> None:
    echo.close()
    with Proxy(echo.address) as proxy:
        with pytest.raises(ConnectionError):  # at the first or at a later call, as it happens
            with connect(proxy) as peer:
                peer.sendall(b"hello")
                peer.recv(1)
            pytest.fail("nobody was there, and yet there was an answer or an orderly end")
        assert proxy.connections == 0


# Weather.


def test_delay_holds_each_direction_back_by_its_own_time(proxy: Proxy) -> None:
    with connect(proxy) as peer:
        for up, down, least in ((0.2, 0.0, 0.2), (0.0, 0.3, 0.3), (0.2, 0.3, 0.5)):
            proxy.set(Weather(delay_s=(up, up)), Weather(delay_s=(down, down)))
            began = time.monotonic()
            assert ask(peer) == b"hello"
            assert time.monotonic() - began >= least


def test_jitter_never_changes_the_order(proxy: Proxy) -> None:
    proxy.set(Weather(delay_s=(0.0, 0.03)), Weather(delay_s=(0.0, 0.03)))
    lines = b"".join(b"%04d" % number for number in range(200))
    with connect(proxy) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(lines), 40):
            peer.sendall(lines[at : at + 40])
        assert receive(peer, len(lines)) == lines


def test_throttle_bounds_the_rate(proxy: Proxy) -> None:
    """Of several chunks together, not of each."""
    proxy.set(up=Weather(bytes_per_s=400_000))
    began = time.monotonic()
    with connect(proxy) as peer:
        assert len(ask(peer, b"x" * 200_000)) == 200_000
    assert 0.5 <= time.monotonic() - began < 5.0


def test_sender_has_to_wait_when_too_much_is_under_way(proxy: Proxy) -> None:
    """The proxy holds a megabyte; the rest waits in the buffers of the system, which are finite."""
    proxy.set(up=Weather(delay_s=(60.0, 60.0)))
    sent, enough = 0, 64 << 20
    with connect(proxy) as peer:
        peer.settimeout(0.5)
        with pytest.raises(TimeoutError):
            while sent < enough:
                sent += peer.send(bytes(1 << 16))
    assert sent < enough


def test_held_bytes_come_later_and_are_not_lost(proxy: Proxy) -> None:
    with connect(proxy) as peer:
        assert ask(peer) == b"hello"
        proxy.set(Weather(held=True), FAIR)
        peer.sendall(b"wait")
        peer.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        peer.settimeout(DEADLINE_S)
        proxy.heal()
        assert receive(peer, 4) == b"wait"
        assert ask(peer) == b"hello"


def test_black_hole_takes_everything_and_answers_nothing(proxy: Proxy, echo: Echo) -> None:
    """Also of those who connect during it, and the end of a connection is not passed on."""
    old = connect(proxy)
    assert ask(old) == b"hello"
    proxy.set(BLACK_HOLE, BLACK_HOLE)
    new = connect(proxy)
    for peer in (old, new):
        peer.sendall(b"x" * 300_000)
        peer.settimeout(0.2)
        with pytest.raises(TimeoutError):
            peer.recv(1)
    poll(lambda: proxy.count.dropped_bytes == 600_000, DEADLINE_S, "all of it is swallowed")
    old.close()
    new.close()
    assert proxy.connections == 2 and echo.ended == [], "nobody has seen an end"
    proxy.heal()
    poll(lambda: len(echo.ended) == 2, DEADLINE_S, "healed, what has lost bytes is reset")
    assert set(echo.ended) == {"ConnectionResetError"}
    with connect(proxy) as peer:
        assert ask(peer) == b"hello"


def test_lost_answers_only(proxy: Proxy, echo: Echo) -> None:
    """The request passes, the answer does not: for the target all is well."""
    proxy.set(FAIR, BLACK_HOLE)
    with connect(proxy) as peer:
        peer.sendall(b"hello")
        poll(lambda: proxy.count.dropped_bytes == 5, DEADLINE_S, "the answer is swallowed")
    assert proxy.count.passed_bytes == {"up": 5, "down": 0}


def test_heal_leaves_untouched_connections_alone(proxy: Proxy) -> None:
    with connect(proxy) as quiet:
        assert ask(quiet) == b"hello"
        proxy.set(BLACK_HOLE, BLACK_HOLE)
        proxy.heal()
        assert ask(quiet) == b"hello"
        assert proxy.count.resets == 0


def test_cut_resets_both_ends_of_every_connection_and_takes_new_ones(
    proxy: Proxy, echo: Echo
) -> None:
    peers = [connect(proxy) for _ in range(3)]
    assert all(ask(peer) == b"hello" for peer in peers)
    proxy.cut()
    assert proxy.connections == 0
    for peer in peers:
        with pytest.raises(ConnectionResetError):
            peer.recv(1)
        peer.close()
    poll(lambda: echo.ended == ["ConnectionResetError"] * 3, DEADLINE_S, "the target knows")
    with connect(proxy) as peer:
        assert ask(peer) == b"hello"


def test_refuse_lets_nobody_connect_until_heal(proxy: Proxy) -> None:
    port = proxy.port
    with connect(proxy) as peer:
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            peer.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    assert proxy.port == port
    with connect(proxy) as peer:
        assert ask(peer) == b"hello"


def fates(echo: Echo, seed: int, weather: Weather) -> list[str]:
    """What becomes of forty lone bytes, each on a connection of its own."""
    found = []
    with Proxy(echo.address, seed=seed) as proxy:
        proxy.set(up=weather)
        for _ in range(40):
            with connect(proxy) as peer:
                try:
                    peer.sendall(b"x")
                    peer.shutdown(socket.SHUT_WR)
                    found.append(peer.recv(1).decode() or "nothing")
                except OSError:  # the shutdown may find it reset already
                    found.append("reset")
    return found


@pytest.mark.parametrize(
    ("weather", "fate"),
    [(Weather(drop_chance=0.5), "nothing"), (Weather(reset_chance=0.5), "reset")],
)
def test_chance_comes_from_the_seed(echo: Echo, weather: Weather, fate: str) -> None:
    """Half of them meet the fate, the same ones under the same seed, others under another."""
    first = fates(echo, 1, weather)
    assert set(first) == {"x", fate} and 10 <= first.count(fate) <= 30
    assert fates(echo, 1, weather) == first
    assert fates(echo, 2, weather) != first


def test_close_ends_everything_at_once_and_twice_is_fine(echo: Echo) -> None:
    before = threads()
    proxy = Proxy(echo.address)
    proxy.set(Weather(delay_s=(5.0, 5.0)), FAIR)
    with connect(proxy) as peer:
        peer.sendall(b"under way")
        began = time.monotonic()
        proxy.close()
        proxy.close()
        assert time.monotonic() - began < 2.0
        with pytest.raises(ConnectionResetError):
            peer.recv(1)
    assert threads() == before
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)


# The gateway.


def test_gateway_replaces_addresses_and_keeps_the_length() -> None:
    text = b"\xd9\x30PYRO:callback.0123456789abcdef@127.0.0.1:40001\xa4next"
    found = ADDRESS.search(text)
    assert found is not None and found[3] == b"40001"
    assert ADDRESS.search(b"PYRO:callback.a@10.0.0.1:40001") is None
    assert ADDRESS.search(b"PYRO:obj@127.0.0.1:40001") is None


def test_all_connections_of_a_client_go_through_the_gateway(tmp_path: Path) -> None:
    """Publishing, the broker's calls, acks and heartbeats: each has a proxy of its own, and while
    they hold everything, nothing moves."""
    with BrokerProcess(tmp_path, "--channel", "orders") as broker:
        gateway = Gateway(broker.name_server, "orders")
        seen: list[Any] = []
        try:
            with Publisher("p", "orders", name_server=gateway.name_server) as publisher:
                subscriber = Subscriber("s", "orders", name_server=gateway.name_server)
                subscriber.handler(lambda message: seen.append(message.body))
                with subscriber:
                    publisher.publish("one", "part").result(DEADLINE_S)
                    poll(lambda: seen == ["one"], DEADLINE_S, "the message has come")
                    assert len(gateway.proxies) == 3
                    assert all(proxy.count.accepted for proxy in gateway.proxies)
                    held = Weather(held=True)
                    gateway.set(held, held)
                    receipt = publisher.publish("two", "part")
                    with pytest.raises(BrokerUnavailable):
                        receipt.result(0.3)
                    assert seen == ["one"] and not receipt.done()
                    gateway.heal()
                    receipt.result(DEADLINE_S)
                    poll(lambda: seen == ["one", "two"], DEADLINE_S, "the other one, too")
        finally:
            gateway.close()
