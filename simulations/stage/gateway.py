"""A gateway: everything between some clients and their channel goes through proxies.

Pyro5 addresses carry host and port, and a subscriber uses three: the channel's, that of the acks
and heartbeats, which the answer to ``subscribe`` names, and its own, which it names itself and the
broker calls. So the clients are given a name server of the gateway's own, where the channel stands
under a proxy's address; and on its way through that proxy, each address inside a message is
replaced by that of a further proxy, made at that moment. Both have the same number of digits, so
that a message keeps its length. Neither client nor broker knows.
"""

from __future__ import annotations

import re
import struct
import threading
from typing import Callable, Iterator

from broker.remote.name_server import NameServer
from simulations.stage.proxy import DOWN, FAIR, HOST, UP, Proxy, Translator, Weather
from simulations.stage.script import NAMES

ADDRESS = re.compile(rb"(PYRO:(callback|channel)\.[^@\x00-\x1f]{1,200}@127\.0\.0\.1:)(\d{5})")
# Of a Pyro5 message: 40 bytes of header, which tell the lengths of the two parts that follow.
_HEADER_BYTES, _LENGTHS_AT, _LENGTHS = 40, 12, struct.Struct("!II")


class Gateway:
    """The way to one channel through proxies. Give clients ``name_server`` instead of the broker's.

    As a member of a script (``script.add``) it ends after all who use it. ``ways_max``: no more
    proxies than that; the oldest that nobody is connected through makes room for a new one. Clients
    that come and go for long leave many behind.
    """

    rank = NAMES

    def __init__(
        self, name_server: str, channel: str, seed: int | str = 0, ways_max: int = 1_000
    ) -> None:
        host, _, port = name_server.rpartition(":")
        self._channel = "channel." + channel
        self._real = NameServer(host, int(port))
        self._seed = seed
        self._ways_max, self._ways_made = ways_max, 0
        self._lock = threading.Lock()
        self._ways: dict[tuple[str, int], Proxy] = {}
        self._weather = (FAIR, FAIR)
        self._names = NameServer.start_or_join(HOST, 0)
        self.front = self._way(UP, self._front_port(), self._translator)
        self._names.register(self._channel, f"PYRO:{self._channel}@{HOST}:{self.front.port}")

    @property
    def name_server(self) -> str:
        """Where clients ask for the channel."""
        return f"{HOST}:{self._names.port}"

    @property
    def proxies(self) -> list[Proxy]:
        """All of them; the first one leads to the channel itself."""
        with self._lock:
            return list(self._ways.values())

    @property
    def connections(self) -> int:
        """How many pass through it now."""
        return sum(proxy.connections for proxy in self.proxies)

    @property
    def resets(self) -> int:
        """How many connections were ended by force up to now."""
        return sum(proxy.count.resets for proxy in self.proxies)

    @property
    def dropped_bytes(self) -> int:
        """How many bytes were lost in it up to now."""
        return sum(proxy.count.dropped_bytes for proxy in self.proxies)

    def set(self, to_broker: Weather = FAIR, to_clients: Weather = FAIR) -> None:
        """The weather from now on, on every way, those to come included."""
        with self._lock:
            self._weather = (to_broker, to_clients)
            ways = list(self._ways.items())
        for (direction, _), proxy in ways:
            self._apply(direction, proxy)

    def heal(self) -> None:
        """Fair weather everywhere; connections that have lost bytes are reset."""
        with self._lock:
            self._weather = (FAIR, FAIR)
        for proxy in self.proxies:
            proxy.heal()

    def cut(self) -> None:
        """Reset every connection."""
        for proxy in self.proxies:
            proxy.cut()

    def close(self) -> None:
        """End everything."""
        for proxy in self.proxies:
            proxy.close()
        self._names.close()

    def check(self) -> None:
        """It does not end by itself."""

    def end(self) -> None:
        """End everything, as a member of a script."""
        self.close()

    def _front_port(self) -> int:
        return int(self._real.lookup(self._channel).rpartition(":")[2])

    def _way(self, direction: str, port: int, translator: Translator | None = None) -> Proxy:
        """The proxy to a port, made if there is none. UP: the client connects; DOWN: the broker."""
        with self._lock:
            proxy = self._ways.get((direction, port))
            if proxy is not None:
                return proxy
            seed = f"{self._seed}/{self._ways_made}"
            self._ways_made += 1
            proxy = Proxy((HOST, port), seed=seed, translator=translator)
            self._ways[direction, port] = proxy
            unused = self._unused()
        for old in unused:
            old.close()
        self._apply(direction, proxy)
        return proxy

    def _unused(self) -> list[Proxy]:
        """Under the lock: take out what is too much, but for the front and the newest one."""
        too_many = max(0, len(self._ways) - self._ways_max)
        between = list(self._ways)[1:-1]
        idle = [place for place in between if not self._ways[place].connections]
        return [self._ways.pop(place) for place in idle[:too_many]]

    def _apply(self, direction: str, proxy: Proxy) -> None:
        to_broker, to_clients = self._weather
        if direction == UP:
            proxy.set(up=to_broker, down=to_clients)
        else:
            proxy.set(up=to_clients, down=to_broker)

    # Addresses inside messages.

    def _translator(self, direction: str) -> Callable[[bytes], bytes]:
        rest = b""

        def translate(data: bytes) -> bytes:
            nonlocal rest
            rest += data
            whole = list(_messages(rest))
            rest = rest[sum(map(len, whole)) :]
            return ADDRESS.sub(lambda found: self._replaced(direction, found), b"".join(whole))

        return translate

    def _replaced(self, direction: str, found: re.Match[bytes]) -> bytes:
        """A callback's address on its way up; the address for acks on its way down."""
        wanted = b"callback" if direction == UP else b"channel"
        if found[2] != wanted:
            return found[0]
        way = self._way(DOWN if direction == UP else UP, int(found[3]))
        assert len(str(way.port)) == 5, f"port {way.port} would change the message's length"
        return found[1] + b"%d" % way.port


def _messages(data: bytes) -> Iterator[bytes]:
    """The whole Pyro5 messages at the front of what has come."""
    start = 0
    while len(data) - start >= _HEADER_BYTES:
        size = _HEADER_BYTES + sum(_LENGTHS.unpack_from(data, start + _LENGTHS_AT))
        if len(data) - start < size:
            return
        yield data[start : start + size]
        start += size
