"""A TCP proxy for faults: between a client and its target, with the weather of the story's choice.

What lives here: ``Proxy``, which listens on loopback and passes bytes on, and ``Weather``, what it
does to them in one direction: delay with jitter, throttle, hold, swallow, drop, reset. It knows
nothing of Pyro5 or Fairlead; who must be led through it is the business of ``gateway``.

One thread serves all connections of a proxy, so that a story that cuts a hundred of them grows no
threads. What is asked of the proxy is done when the call returns: after ``cut`` nobody is
connected. All that is left to chance comes from one seed.
"""

from __future__ import annotations

import errno
import heapq
import queue
import random
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Callable, Iterator

HOST = "127.0.0.1"
CHUNK_BYTES = 64 << 10
QUEUED_BYTES_MAX = 1 << 20  # per direction; then the sender has to wait, as with any TCP peer
ANSWER_S = 10.0
UP, DOWN = "up", "down"  # from the client to the target, and back

#: Makes, for one direction of one connection, the function that its bytes pass through. It may
#: change them and may hold some back until more have come.
Translator = Callable[[str], Callable[[bytes], bytes]]


@dataclass(frozen=True)
class Weather:
    """What happens to the bytes of one direction.

    ``delay_s``: least and most, drawn for each chunk; order is kept. ``bytes_per_s``: 0 is as fast
    as it goes. ``held``: nothing passes, nothing is lost (an unplugged cable that is plugged in
    again). ``swallowed``: all is taken and lost, the end of the connection too: for the other side
    the connection is half open. ``drop_chance``: a chunk vanishes, the rest goes on.
    ``reset_chance``: instead of a chunk comes the end of the connection (RST).
    """

    delay_s: tuple[float, float] = (0.0, 0.0)
    bytes_per_s: int = 0
    held: bool = False
    swallowed: bool = False
    drop_chance: float = 0.0
    reset_chance: float = 0.0


FAIR = Weather()
BLACK_HOLE = Weather(swallowed=True)


@dataclass
class Count:
    """What a proxy has done so far."""

    accepted: int = 0
    refused: int = 0
    resets: int = 0
    dropped_bytes: int = 0
    passed_bytes: dict[str, int] = field(default_factory=lambda: {UP: 0, DOWN: 0})


class Proxy:
    """Listens on ``host`` and passes on to ``target``; ``with`` or ``close`` ends it."""

    def __init__(
        self,
        target: tuple[str, int],
        *,
        host: str = HOST,
        port: int = 0,
        seed: int | str = 0,
        translator: Translator | None = None,
    ) -> None:
        self.target = target
        self.count = Count()
        self._chance = random.Random(f"proxy/{seed}")
        self._translator = translator
        self._weather = {UP: FAIR, DOWN: FAIR}
        self._selector = selectors.DefaultSelector()
        self._wires: set[_Wire] = set()
        self._due: list[tuple[float, int, _Lane]] = []
        self._number = 0
        self._asked: queue.SimpleQueue[tuple[Callable[[], None], threading.Event]] = (
            queue.SimpleQueue()
        )
        self._waking, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._listening: socket.socket | None = None
        self._address = (host, port)
        self._listen()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    # What a story asks for.

    @property
    def host(self) -> str:
        """Where it listens."""
        return self._address[0]

    @property
    def port(self) -> int:
        """Where it listens; the same for its whole life."""
        return self._address[1]

    @property
    def connections(self) -> int:
        """How many pass through it now."""
        return len(self._wires)

    def set(self, up: Weather = FAIR, down: Weather = FAIR) -> None:
        """The weather from now on, for the bytes that come from now on, in both directions."""
        self._ask(lambda: self._set(up, down))

    def heal(self) -> None:
        """Fair weather. What was held goes on. A connection that has lost bytes is reset: no peer
        could make sense of the rest, as after a router that forgot it."""
        self._ask(self._heal)

    def cut(self) -> None:
        """Reset every connection now (RST on both sides); new ones are taken."""
        self._ask(self._cut)

    def refuse(self) -> None:
        """Reset every connection, and let nobody connect until ``heal``."""
        self._ask(self._refuse)

    def close(self) -> None:
        """End every connection and the proxy. Closing twice is fine."""
        if not self._ended:
            self._ask(self._end)
        self._thread.join(ANSWER_S)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, what: Callable[[], None]) -> None:
        """Have it done by the proxy's thread, and wait until it is."""
        done = threading.Event()
        self._asked.put((what, done))
        try:
            self._waking.send(b".")
        except OSError:
            return  # it has ended
        deadline = time.monotonic() + ANSWER_S
        while not done.wait(0.05) and self._thread.is_alive():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the proxy at port {self.port} does not obey")

    # In the proxy's own thread.

    def _set(self, up: Weather, down: Weather) -> None:
        self._weather = {UP: up, DOWN: down}
        for lane in self._lanes():
            lane.watch()
            self._schedule(lane)

    def _heal(self) -> None:
        for wire in [wire for wire in self._wires if wire.up.lossy or wire.down.lossy]:
            self._reset(wire)
        self._set(FAIR, FAIR)
        self._listen()

    def _cut(self) -> None:
        for wire in list(self._wires):
            self._reset(wire)

    def _refuse(self) -> None:
        if self._listening is not None:
            self._selector.unregister(self._listening)
            self._listening.close()
            self._listening = None
        self._cut()

    def _end(self) -> None:
        self._refuse()
        self._ended = True

    def _listen(self) -> None:
        if self._listening is not None:
            return
        self._listening = socket.socket()
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listening.bind(self._address)
        self._listening.listen(512)
        self._listening.setblocking(False)
        self._address = self._listening.getsockname()[:2]
        self._selector.register(self._listening, selectors.EVENT_READ, None)

    def _run(self) -> None:
        try:
            while not self._ended:
                wait_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
                for key, mask in self._selector.select(wait_s):
                    self._serve(key, mask)
                self._pass_on_due()
        finally:
            self._ended = True
            self._cut()
            self._selector.close()
            self._woken.close()
            self._waking.close()

    def _serve(self, key: selectors.SelectorKey, mask: int) -> None:
        if key.fileobj is self._woken:
            self._obey()
        elif key.fileobj is self._listening:
            self._accept()
        elif isinstance(key.data, _End) and key.data.wire in self._wires:
            self._move(key.data, mask)

    def _obey(self) -> None:
        self._woken.recv(4096)
        while True:
            try:
                what, done = self._asked.get_nowait()
            except queue.Empty:
                return
            what()
            done.set()

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            client, _ = self._listening.accept()
        except OSError:
            return  # it has gone again
        self.count.accepted += 1
        target = socket.socket()
        wire = _Wire(self, _End(client), _End(target))
        target.setblocking(False)
        if target.connect_ex(self.target) not in (0, errno.EINPROGRESS):
            self.count.refused += 1
            self._reset(wire)
            return
        self._wires.add(wire)
        for end in (wire.client, wire.target):
            self._selector.register(end.socket, selectors.EVENT_READ, end)
            end.interest = selectors.EVENT_READ

    def _move(self, end: _End, mask: int) -> None:
        wire = end.wire
        try:
            if mask & selectors.EVENT_READ:
                self._read(end)
            if mask & selectors.EVENT_WRITE and wire in self._wires:
                if self._weather[end.incoming.name].held:
                    end.watch(writing=False)
                else:
                    self._write(end.incoming)
        except OSError:
            self._reset(wire)  # a peer has reset it, or the target is not there

    def _read(self, end: _End) -> None:
        lane = end.outgoing
        try:
            data = end.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        weather = self._weather[lane.name]
        if weather.swallowed:
            lane.lossy = True
            self.count.dropped_bytes += len(data)
            lane.ended = not data
            lane.watch()
            return
        if data and self._chance.random() < weather.reset_chance:
            self._reset(end.wire)
            return
        if data and self._chance.random() < weather.drop_chance:
            self.count.dropped_bytes += len(data)
            return
        lane.take(data, weather, self._chance)
        self._schedule(lane)

    def _write(self, lane: _Lane) -> None:
        self.count.passed_bytes[lane.name] += lane.write(time.monotonic())
        if lane.wire.done:
            self._forget(lane.wire)

    def _schedule(self, lane: _Lane) -> None:
        """Pass on what is due, and come back for the rest."""
        if lane.wire not in self._wires or self._weather[lane.name].held:
            return
        lane.watch()
        if lane.queue:
            self._number += 1
            heapq.heappush(self._due, (lane.queue[0][0], self._number, lane))

    def _pass_on_due(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            lane = heapq.heappop(self._due)[2]
            if lane.wire not in self._wires or self._weather[lane.name].held:
                continue
            try:
                self._write(lane)
                self._schedule_rest(lane, now)
            except OSError:
                self._reset(lane.wire)

    def _schedule_rest(self, lane: _Lane, now: float) -> None:
        if lane.wire in self._wires and lane.queue:
            if lane.queue[0][0] > now:
                self._schedule(lane)
            else:
                lane.into.watch(writing=True)  # the peer takes no more for the moment

    def _lanes(self) -> Iterator[_Lane]:
        for wire in list(self._wires):
            yield wire.up
            yield wire.down

    def held(self, lane: _Lane) -> bool:
        """Whether nothing is read for this direction now; for the proxy's own parts."""
        return self._weather[lane.name].held or lane.queued >= QUEUED_BYTES_MAX

    def watch(self, end: _End, interest: int) -> None:
        """What to be woken for; for the proxy's own parts."""
        if end.wire not in self._wires or interest == end.interest:
            return
        if not interest:
            self._selector.unregister(end.socket)
        elif end.interest:
            self._selector.modify(end.socket, interest, end)
        else:
            self._selector.register(end.socket, interest, end)
        end.interest = interest

    def translated(self, direction: str) -> Callable[[bytes], bytes]:
        """What the bytes of a new connection's direction pass through."""
        return self._translator(direction) if self._translator else lambda data: data

    def _reset(self, wire: _Wire) -> None:
        """End a connection the hard way: RST for both peers."""
        self.count.resets += 1
        for end in (wire.client, wire.target):
            try:
                end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                pass  # not connected yet
        self._forget(wire)

    def _forget(self, wire: _Wire) -> None:
        for end in (wire.client, wire.target):
            self.watch(end, 0)
        self._wires.discard(wire)  # before a peer can notice
        for end in (wire.client, wire.target):
            end.socket.close()


class _End:
    """One of the two sockets of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.interest = 0
        self.writing = False
        self.wire: _Wire
        self.outgoing: _Lane  # what is read here
        self.incoming: _Lane  # what is written here

    def watch(self, writing: bool | None = None) -> None:
        """Look for what can be read, unless it is held or has ended, and for room to write."""
        if writing is not None:
            self.writing = writing
        lane = self.outgoing
        reading = not lane.ended and not self.wire.proxy.held(lane)
        interest = selectors.EVENT_READ * reading | selectors.EVENT_WRITE * self.writing
        self.wire.proxy.watch(self, interest)


class _Wire:
    """A connection: the client's end, the target's end, and a lane each way."""

    def __init__(self, proxy: Proxy, client: _End, target: _End) -> None:
        self.proxy = proxy
        self.client, self.target = client, target
        client.wire = target.wire = self
        self.up = client.outgoing = target.incoming = _Lane(UP, self, client, target)
        self.down = target.outgoing = client.incoming = _Lane(DOWN, self, target, client)

    @property
    def done(self) -> bool:
        """Both peers have ended it, and have been told."""
        return self.up.told and self.down.told


class _Lane:
    """One direction of a connection: what waits, and when each chunk is due. b"" is the end."""

    def __init__(self, name: str, wire: _Wire, source: _End, into: _End) -> None:
        self.name, self.wire = name, wire
        self.source, self.into = source, into
        self.queue: list[tuple[float, bytes]] = []
        self.queued = 0
        self.lossy = self.ended = self.told = False
        self._translate = wire.proxy.translated(name)
        self._due = 0.0

    def take(self, data: bytes, weather: Weather, chance: random.Random) -> None:
        """Put what was read into the queue, due when the weather lets it through."""
        self.ended = not data
        data = self._translate(data) if data else data
        if data or self.ended:
            delay_s = chance.uniform(*weather.delay_s) if weather.delay_s[1] else 0.0
            spent_s = len(data) / weather.bytes_per_s if weather.bytes_per_s else 0.0
            self._due = max(self._due + spent_s, time.monotonic() + delay_s + spent_s)
            self.queue.append((self._due, data))
            self.queued += len(data)
        self.watch()

    def write(self, now: float) -> int:
        """Hand on what is due, as far as the peer takes it; how many bytes that were."""
        passed = 0
        while self.queue and self.queue[0][0] <= now:
            due, data = self.queue[0]
            if not data:
                self.told = True
                self.into.socket.shutdown(socket.SHUT_WR)
                self.queue.pop(0)
                continue
            try:
                sent = self.into.socket.send(data)
            except BlockingIOError:
                sent = 0
            passed += sent
            self.queued -= sent
            if sent < len(data):
                self.queue[0] = (due, data[sent:])
                break
            self.queue.pop(0)
        self.into.watch(writing=bool(self.queue) and self.queue[0][0] <= now)
        self.source.watch()
        return passed

    def watch(self) -> None:
        """The weather has changed, or the queue has: read on or not."""
        self.source.watch()
