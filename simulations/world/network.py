"""The network: calls that are delayed, lost, repeated and reordered, and links that are cut.

An address is the name of a process, with ``#`` and a number behind it where its lives differ.

A call is a request, what the other side does, and an answer. Each of the two ways has its own luck.
What may arrive late arrives late: also a request whose caller has given up. That is more than TCP
does to a connection and no more than a proxy in between, or a reconnecting client, can do to a
broker. A connection does not outlive the process at its other end: what was sent to a process that
has ended since arrives nowhere.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Any, Callable

from broker.errors import BrokerError, BrokerUnavailable
from simulations.world.scheduler import MS_US, Pending, Process, World

#: Told the outcome of a call by the one who was called.
Answer = Callable[[Any, "BrokerError | None"], None]
Serve = Callable[[str, "tuple[Any, ...]", Answer], None]

LOCAL_DELAY_US = 300


@dataclass(slots=True)
class Weather:
    """How the network is at the moment; shares are of all messages."""

    lost: float = 0.0
    repeated: float = 0.0
    late: float = 0.0
    late_us_max: int = 5_000_000


class Flight:
    """One call on its way."""

    __slots__ = ("caller", "pending")

    def __init__(self, caller: Process, pending: Pending) -> None:
        self.caller = caller
        self.pending = pending


class Network:
    """Carries calls between processes, by address."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.weather = Weather()
        self.faults: dict[str, int] = {}
        self._random = random
        self._servers: dict[str, tuple[Process, Serve]] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self._wire = Process("wire")

    # Who can be called, and who cannot reach whom.

    def listen(self, address: str, process: Process, serve: Serve) -> None:
        """From now on calls to ``address`` go to this process."""
        self._servers[address] = (process, serve)

    def cut(self, source: str, target: str) -> None:
        """Nothing of ``source`` reaches ``target`` any more, answers included."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        """Undo one ``cut``."""
        if (source, target) in self._cuts:
            self._cuts[source, target] -= 1

    def heal(self) -> None:
        """Undo every ``cut``."""
        self._cuts.clear()

    def kill(self, process: Process) -> None:
        """End a process; its connections break, and who waits for it learns so, or times out."""
        for flight in self.world.kill(process):
            if self._random.random() < 0.8:
                self._later(flight, self._delay_us(), None, _reset(process.name))

    # Calls.

    def call(
        self, caller: Process, address: str, method: str, args: tuple[Any, ...], timeout_us: int
    ) -> Pending:
        """To be yielded: the answer, or the error that the caller sees."""
        pending = Pending()
        flight = Flight(caller, pending)
        there = self._servers.get(address)
        if self._gets_through(caller.name, address):
            self.world.at(
                self._wire, self._delay_us(), self.arrive, flight, there, address, method, args
            )
        if self._happens("repeated", self.weather.repeated):
            # A second copy of the request; nobody waits for its answer.
            delay_us = self._delay_us() + self._random.randrange(50 * MS_US)
            self.world.at(self._wire, delay_us, self.arrive, None, there, address, method, args)
        self.world.at(caller, timeout_us, pending.complete, None, _timeout(address, method))
        return pending

    def arrive(
        self,
        flight: Flight | None,
        there: tuple[Process, Serve] | None,
        address: str,
        method: str,
        args: tuple[Any, ...],
    ) -> None:
        """A request is ``there``. If nobody listens any more, the caller hears that."""
        process, serve = there or (self._wire, _nobody)
        if process.dead or serve is _nobody:
            if flight is not None:
                self._later(flight, self._delay_us(), None, _refused(address))
            return
        if flight is None:
            self.world.at(process, 0, serve, method, args, _ignore)
            return
        process.serving[flight] = None

        def answer(value: Any, error: BrokerError | None) -> None:
            process.serving.pop(flight, None)
            if self._gets_through(process.name, flight.caller.name):
                self._later(flight, self._delay_us(), value, error)

        self.world.at(process, 0, serve, method, args, answer)

    def _later(
        self, flight: Flight, delay_us: int, value: Any, error: BrokerError | None
    ) -> None:
        self.world.at(flight.caller, delay_us, flight.pending.complete, value, error)

    # Luck.

    def _gets_through(self, source: str, target: str) -> bool:
        if self._cuts and self._cuts.get((source, target.partition("#")[0]), 0) > 0:
            self.count("cut off")
            return False
        return not self._happens("lost", self.weather.lost)

    def _happens(self, kind: str, share: float) -> bool:
        if not share or self._random.random() >= share:
            return False
        self.count(kind)
        return True

    def count(self, kind: str) -> None:
        """One more fault of that kind was injected."""
        self.faults[kind] = self.faults.get(kind, 0) + 1

    def _delay_us(self) -> int:
        weather = self.weather
        if weather.late and self._random.random() < weather.late:
            self.count("late")
            return LOCAL_DELAY_US + self._random.randrange(weather.late_us_max)
        return LOCAL_DELAY_US + self._random.randrange(1_000)


class Pipe:
    """One connection with several calls under way: in order there, and answered in order.

    When one of them is lost the connection is broken: nothing that follows gets through.
    """

    def __init__(self, network: Network, caller: Process, address: str, timeout_us: int) -> None:
        self._network = network
        self._world = network.world
        self._caller = caller
        self._address = address
        self._timeout_us = timeout_us
        self._broken = False
        self._last_us = [0, 0]  # the last arrival there and here
        self._requests: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._there: tuple[Process, Serve] | None = None  # who listened when it was opened
        self._busy = False
        self._inbox: deque[tuple[Any, BrokerError | None]] = deque()
        self._waiting: Pending | None = None

    def send(self, method: str, *args: Any) -> None:
        """Send a request; its answer comes after those of the requests before it."""
        network = self._network
        if self._there is None:
            self._there = network._servers.get(self._address)
        if not network._gets_through(self._caller.name, self._address):
            self._broken = True
        if self._broken:
            return
        self._world.at(network._wire, self._in_order(0), self._arrive, method, args)
        if network._happens("repeated", network.weather.repeated):
            delay_us = network._delay_us() + network._random.randrange(50 * MS_US)
            self._world.at(
                network._wire, delay_us, network.arrive, None, self._there, self._address, method,
                args,
            )  # fmt: skip

    def receive(self) -> Pending:
        """To be yielded: the next answer."""
        pending = Pending()
        if self._inbox:
            pending.complete(*self._inbox.popleft())
            return pending
        self._waiting = pending
        error = _timeout(self._address, "a pipelined call")
        self._world.at(self._caller, self._timeout_us, pending.complete, None, error)
        return pending

    def close(self) -> None:
        """Forget it; what is under way still arrives there."""
        self._waiting = None
        self._broken = True

    def _in_order(self, way: int) -> int:
        due_us = max(self._world.now_us + self._network._delay_us(), self._last_us[way] + 1)
        self._last_us[way] = due_us
        return due_us - self._world.now_us

    def _arrive(self, method: str, args: tuple[Any, ...]) -> None:
        process, serve = self._there or (self._network._wire, _nobody)
        if serve is _nobody or process.dead:
            self._fail(_reset(self._address))
            return
        process.serving[self] = None
        self._requests.append((method, args))
        if not self._busy:
            self._next(process, serve)

    def _next(self, process: Process, serve: Serve) -> None:
        if not self._requests:
            self._busy = False
            return
        self._busy = True
        method, args = self._requests.popleft()

        def answer(value: Any, error: BrokerError | None) -> None:
            if self._broken or not self._network._gets_through(process.name, self._caller.name):
                self._broken = True
            else:
                self._world.at(self._caller, self._in_order(1), self._deliver, value, error)
            self._next(process, serve)

        self._world.at(process, 0, serve, method, args, answer)

    def _deliver(self, value: Any, error: BrokerError | None) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done:
            waiting.complete(value, error)
        else:
            self._inbox.append((value, error))

    def _fail(self, error: BrokerError) -> None:
        self._broken = True
        self._world.at(self._caller, LOCAL_DELAY_US, self._deliver, None, error)

    # Seen by ``Network.kill`` as a call without an answer.

    @property
    def caller(self) -> Process:
        """Who opened it."""
        return self._caller

    @property
    def pending(self) -> Pipe:
        """What is told of the end of the server."""
        return self

    def complete(self, value: Any, error: BrokerError | None) -> None:
        """The server is gone."""
        self._broken = True
        self._deliver(value, error)


def _nobody(method: str, args: tuple[Any, ...], answer: Answer) -> None:
    raise AssertionError("nobody listens here")


def _ignore(value: Any, error: BrokerError | None) -> None:
    """Nobody waits for the answer to a repeated request."""


def _refused(address: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"nobody listens at {address}")


def _reset(name: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"the connection to {name} broke")


def _timeout(address: str, method: str) -> BrokerUnavailable:
    return BrokerUnavailable(f"{method} of {address} did not answer in time")
