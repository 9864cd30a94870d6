"""The simulated broker: the real ``ChannelHost`` on the simulated disk, clock and network.

One object is one life of the broker's process: it recovers the channel from the disk, serves, and
dies. What the exposed objects of a real broker do (``broker.server.channel_object``) is in
``_METHODS``: decode, hand to the host, wait for the commit, answer.
"""

from __future__ import annotations

from typing import Any, Callable

from broker import wire
from broker.core import commands as c
from broker.core.channel import Channel
from broker.core.message import PartitionKey
from broker.errors import BrokerError, BrokerStopping, JournalError
from broker.journal.recovery import recover
from broker.server.channel_host import ChannelHost
from broker.server.clock import Clock
from simulations.world.disk import Disk
from simulations.world.link import SimulatedLink
from simulations.world.network import Answer, Network
from simulations.world.scheduler import MS_US, Process, Steps, World

ADDRESS = "broker"
TICK_US = 100 * MS_US


class BootClock(Clock):
    """A broker's clock: the wall clock at its start, and the monotonic clock from there on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._offset_us = world.wall_offset_us

    def now_ms(self) -> int:
        """The time for decisions and records."""
        return (self._world.now_us + self._offset_us) // 1_000

    def now_us(self) -> int:
        """The timestamp of a message whose publisher gave none."""
        return self._world.now_us + self._offset_us


class Broker(Process):
    """One life of the broker's process."""

    def __init__(
        self,
        world: World,
        network: Network,
        disk: Disk,
        boot: int,
        on_end: Callable[[Broker, str], None],
    ) -> None:
        super().__init__(ADDRESS)
        self.world, self.network, self.disk = world, network, disk
        self.boot = boot
        self._on_end = on_end
        self.clock = BootClock(world)
        self.broken: BaseException | None = None  # an error that must never happen
        disk.mount(self, self._journal_failed)
        name = disk.channels()[0]
        self.channel, sequence = recover(disk, name)
        self.host = ChannelHost(self.channel, sequence, disk, self.clock, self._failed)

    def start(self) -> None:
        """Take the channel up, then listen."""
        self.world.spawn(self, self._run(), self._ended)

    def _run(self) -> Steps:
        _, sequence = self.host.execute(c.Start(f"boot-{self.boot}"))
        yield self.disk.when_durable(sequence)
        self.world.note(self.name, f"serves again, journal at {sequence}")
        self.network.listen(ADDRESS, self, self.serve)
        while True:
            yield TICK_US
            try:
                self.host.tick()
            except JournalError:
                raise
            except BrokerError as error:
                self.world.note(self.name, f"tick: {error}")

    def _ended(self, value: Any, error: BrokerError | None) -> None:
        self._on_end(self, f"ends: {error}")

    def _journal_failed(self, error: JournalError) -> None:
        """The first failure of the disk ends the process: it is read again from the start."""
        if not self.dead:
            self._on_end(self, f"the journal failed: {error}")

    def _failed(self, error: BaseException) -> None:
        self.broken = error

    # What is asked of it.

    def serve(self, method: str, args: tuple[Any, ...], answer: Answer) -> None:
        """One remote call."""

        def ended(value: Any, error: BrokerError | None) -> None:
            answer(value, error)
            if isinstance(error, JournalError):
                self._journal_failed(error)

        self.world.spawn(self, _METHODS[method](self, *args), ended)

    def settle(self, command: c.Command) -> Steps:
        """Execute, and go on when it is durable."""
        reply, sequence = self.host.execute(command)
        yield self.disk.when_durable(sequence)
        return reply

    def _open_publisher(self, publisher: str, instance: str) -> Steps:
        reply, sequence = self.host.open_publisher(c.OpenPublisher(publisher), instance)
        yield self.disk.when_durable(sequence)
        return {**reply, "policy": self.host.policy.to_dict()}

    def _publish_runs(self, *columns: Any) -> Steps:
        *columns_, wait, place = columns
        command = wire.publish_command(self.host.policy, *columns_)
        order = (command.publisher, columns_[1], place[0], place[1])
        reply = self.host.publish(lambda channel: command, False, order)
        if wait:
            yield self.disk.when_durable(reply["record"])
        reply["durable"] = self.disk.durable(self.host.name)
        return reply

    def _wait_durable(self, record: int) -> Steps:
        yield self.disk.when_durable(record)
        return self.disk.durable(self.host.name)

    def _next_sequences(
        self, publisher: str, partitions: list[str], epoch: int, place: list[int]
    ) -> Steps:
        yield 0
        order = (publisher, epoch, place[0], place[1])
        return self.host.next_sequences(publisher, list(partitions), order)

    def _subscribe(
        self, subscriber: str, callback: str, prefetch: int, subscription: str, session: str
    ) -> Steps:
        command = c.Subscribe(subscription, subscriber, session, prefetch, callback, True)
        link = SimulatedLink(self, subscription, subscriber, session, callback)
        reply, sequence = self.host.attach(command, link)
        yield self.disk.when_durable(sequence)
        self.world.spawn(self, link.sender())
        return reply

    def _settle(
        self,
        subscription: str,
        subscriber: str,
        session: str,
        epochs: list[int],
        uptos: list[int],
        delays: list[list[int]],
    ) -> Steps:
        return self.settle(c.Ack(subscription, subscriber, session, epochs, uptos, delays))

    def _nack(
        self,
        subscriber: str,
        session: str,
        epoch: int,
        position: int,
        reason: str,
        delay_s: float | None,
        final: bool,
        subscription: str,
    ) -> Steps:
        delay_ms = None if delay_s is None else int(delay_s * 1000)
        return self.settle(
            c.Nack(subscription, subscriber, session, epoch, position, reason, delay_ms, final)
        )

    def _heartbeat(self, subscriber: str, session: str, subscription: str) -> Steps:
        yield 0
        return self.host.execute(c.Heartbeat(subscription, subscriber, session))[0]

    def _leave(self, subscriber: str, session: str, subscription: str) -> Steps:
        return self.settle(c.Leave(subscription, subscriber, session))

    def _redrive(self, subscription: str, key: PartitionKey | None, drop: bool) -> Steps:
        return self.settle(c.Redrive(subscription, key, drop))

    def _create_subscription(self, subscription: str) -> Steps:
        return self.settle(c.CreateSubscription(subscription))

    def _delete_subscription(self, subscription: str) -> Steps:
        return self.settle(c.DeleteSubscription(subscription))


_METHODS: dict[str, Callable[..., Steps]] = {
    "open_publisher": Broker._open_publisher,
    "publish_runs": Broker._publish_runs,
    "wait_durable": Broker._wait_durable,
    "next_sequences": Broker._next_sequences,
    "subscribe": Broker._subscribe,
    "settle": Broker._settle,
    "nack": Broker._nack,
    "heartbeat": Broker._heartbeat,
    "leave": Broker._leave,
    "redrive": Broker._redrive,
    "create_subscription": Broker._create_subscription,
    "delete_subscription": Broker._delete_subscription,
}


def make_channel(disk: Disk, name: str, policy: Any, now_ms: int) -> None:
    """Write the first records of a channel on an empty disk."""
    disk.append(name, 1, Channel.birth(name, policy, now_ms))
    disk.sync()
    disk.changed = False
    disk._tell()


__all__ = ["ADDRESS", "BootClock", "Broker", "BrokerStopping", "make_channel"]
