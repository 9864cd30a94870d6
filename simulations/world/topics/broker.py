"""The simulated broker of topics: the real ``TopicsHost`` on the simulated disk, clock and network.

One object is one life of the broker's process. What the exposed object of a real broker does
(``broker.server.topics_object``) is in ``_METHODS``: hand to the host, wait for the commit, answer.
A thread that waits in a real broker is a task here, on the same halves of the host.
"""

from __future__ import annotations

from typing import Any, Callable

from broker import wire
from broker.core.topics import TopicPolicy
from broker.core.topics import commands as c
from broker.errors import BrokerError, JournalError
from broker.server.topics_host import Looked, TopicsHost
from simulations.world.broker import ADDRESS, BootClock
from simulations.world.network import Answer, Network
from simulations.world.scheduler import Process, Signal, Steps, World
from simulations.world.topics.disk import TopicsDisk

BYTES_MAX = 200  # of one answer to a get; small, so that it matters


class TopicsBroker(Process):
    """One life of the broker's process."""

    def __init__(
        self,
        world: World,
        network: Network,
        disk: TopicsDisk,
        *,
        policy: TopicPolicy,
        remember_s: float,
        tick_us: int,
        on_end: Callable[[TopicsBroker, str], None],
    ) -> None:
        super().__init__(ADDRESS)
        self.world, self.network, self.disk = world, network, disk
        self.broken: BaseException | None = None  # an error that must never happen
        self._on_end = on_end
        self._tick_us = tick_us
        disk.mount(self, self._journal_failed)
        self.host = TopicsHost(
            disk, BootClock(world), self._failed, policy=policy, remember_s=remember_s
        )

    def start(self) -> None:
        """Take the topics up, then listen."""
        self.host.recover()
        self.world.note(self.name, f"serves topics {self.host.topics()}")
        self.network.listen(ADDRESS, self, self.serve)
        self.world.spawn(self, self._ticks(), self._ended)

    def _ticks(self) -> Steps:
        while True:
            yield self._tick_us
            self.host.sweep()

    def _ended(self, value: Any, error: BrokerError | None) -> None:
        self._on_end(self, f"ends: {error}")

    def _journal_failed(self, error: JournalError) -> None:
        """The first failure of the disk ends the process: it is read again from the start."""
        if not self.dead:
            self._on_end(self, f"the journal failed: {error}")

    def _failed(self, error: BaseException) -> None:
        self.broken = error

    def trim(self) -> int:
        """Begin to trim every topic of which something is of no use; how many those are."""
        helds = [held for held in self.host._held.values() if held.cut > held.base]
        for held in helds:
            self.world.spawn(self, self._trim(held), lambda value, error: None)
        return len(helds)

    def _trim(self, held: Any) -> Steps:
        trim = self.host.begin_trim(held)
        if trim is not None:
            yield self.disk.when_durable(held.name, trim.upto)
            self.host.end_trim(trim)

    # What is asked of it.

    def serve(self, method: str, args: tuple[Any, ...], answer: Answer) -> None:
        """One remote call."""

        def ended(value: Any, error: BrokerError | None) -> None:
            answer(value, error)
            if isinstance(error, JournalError):
                self._journal_failed(error)

        self.world.spawn(self, _METHODS[method](self, *args), ended)

    def _settle(
        self,
        topic: str,
        command: c.TopicCommand,
        create: bool = False,
        order: tuple[int, int] | None = None,
    ) -> Steps:
        reply, held, sequence = self.host.execute(topic, command, create, order)
        yield self.disk.when_durable(held.name, sequence)
        return reply

    def _subscribe(self, topic: str, client: str, instance: str, request: int) -> Steps:
        return self._settle(topic, c.Subscribe(client, instance, request), create=True)

    def _unsubscribe(
        self, topic: str, client: str, instance: str, request: int, ticket: int | None
    ) -> Steps:
        return self._settle(topic, c.Unsubscribe(client, instance, request, ticket))

    def _put(
        self,
        topic: str,
        client: str,
        instance: str,
        number: int,
        formats: int,
        bodies: list[bytes],
        order: tuple[int, int],
    ) -> Steps:
        size, crc = sum(map(len, bodies)), wire.call_checksum(formats, bodies)
        command = c.PutMessages(client, instance, number, formats, bodies, size, crc)
        return self._settle(topic, command, create=True, order=order)

    def _get(
        self, client: str, instance: str, asked: dict[str, list[int]], count: int, wait_us: int
    ) -> Steps:
        commands = {
            topic: c.Confirm(client, instance, ticket, received)
            for topic, (ticket, received) in asked.items()
        }
        end_us = self.world.now_us + wait_us
        while True:
            left_us = end_us - self.world.now_us
            waiter = _Waiter(self.world, self) if left_us > 0 else None
            looked = self.host.look(commands, count, BYTES_MAX, waiter)
            if looked.found or waiter is None:
                for held, sequence in looked.needed:
                    yield self.disk.when_durable(held.name, sequence)
                return _columns(looked)
            yield waiter.signal.wait(left_us)
            self.host.leave(asked, waiter)

    def _confirm(
        self, topic: str, client: str, instance: str, ticket: int, received: int
    ) -> Steps:
        return self._settle(topic, c.Confirm(client, instance, ticket, received))

    def _take_over(self, topic: str, client: str, instance: str) -> Steps:
        return self._settle(topic, c.TakeOver(client, instance))

    def _topics(self) -> Steps:
        yield 0
        return self.host.topics()


class _Waiter:
    """What a waiting get hands to the host."""

    def __init__(self, world: World, owner: Process) -> None:
        self.signal = Signal(world, owner)

    def release(self) -> None:
        """There may be messages."""
        self.signal.set()


def _columns(looked: Looked) -> dict[str, Any]:
    return {
        "topics": looked.told,
        "messages": [(item.topic, item.position, *item.entry) for item in looked.found],
    }


_METHODS: dict[str, Callable[..., Steps]] = {
    "subscribe": TopicsBroker._subscribe,
    "unsubscribe": TopicsBroker._unsubscribe,
    "put": TopicsBroker._put,
    "get": TopicsBroker._get,
    "confirm": TopicsBroker._confirm,
    "take_over": TopicsBroker._take_over,
    "topics": TopicsBroker._topics,
}
