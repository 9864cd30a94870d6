"""The cast of a run: broker, publishers and subscribers, their lives, deaths and second lives.

What lives here: starting, killing and freezing processes, and what their programs and operators do.
What may not: a judgement. What is seen is told to whoever plays the run (``durable``, ``hear``,
``outcomes_of``).
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Callable

from broker.core.invariants import check
from broker.core.records import Record
from broker.errors import BrokerError
from simulations.world.broker import ADDRESS, Broker, make_channel
from simulations.world.disk import Disk
from simulations.world.handling import PlannedHandling
from simulations.world.network import Network
from simulations.world.profile import CHANNEL, Plan, stream
from simulations.world.publisher import TIMEOUT_US, SimulatedPublisher
from simulations.world.scheduler import MS_US, SECOND_US, Process, Steps, World
from simulations.world.subscriber import SimulatedSubscriber


class Wrong(Exception):
    """Something that must never be; ``kind`` is an anomaly's name or says what it is."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class Cast:
    """Who takes part in a run. Faults reach it through its methods."""

    def __init__(self, plan: Plan, handling: type[PlannedHandling]) -> None:
        self.plan = plan
        self.world = World()
        self.network = Network(self.world, stream(plan.seed, "network"))
        self.network.weather = plan.weather
        self.disk = Disk(self.world, stream(plan.seed, "disk"), CHANNEL, self.durable)
        self.disk.sync_us_max = plan.sync_us_max
        self.subscribers: dict[str, SimulatedSubscriber] = {}
        self.publishers: dict[str, SimulatedPublisher] = {}
        self.restart_after_us: dict[str, int] = {}
        self.crash_in_recovery_us = 0
        self.handling = handling(
            stream(plan.seed, "handling"), plan.trouble, self.kill_subscriber
        )
        self.calm = False
        self._director = Process("director")
        self._random = stream(plan.seed, "director")
        self._lives: Counter[str] = Counter()
        self._settings = {item["name"]: item for item in [*plan.publishers, *plan.subscribers]}
        self._frozen: list[Process] = []
        self.unsent: dict[str, list[Any]] = {item["name"]: [] for item in plan.publishers}
        self.replaced: list[Process] = []  # lives of those of which a newer one was started
        make_channel(self.disk, CHANNEL, plan.policy, self.world.wall_us() // 1_000)
        self.broker = Broker(self.world, self.network, self.disk, 1, self._broker_ended)

    # What is seen.

    def durable(self, sequence: int, record: Record) -> None:
        """A record has become durable."""

    def hear(self, line: str) -> None:
        """A client has written a line of its history."""

    def outcomes_of(self, publisher: SimulatedPublisher) -> None:
        """A life of a publisher is over, or the run is: what became of its messages."""

    # What people and time do.

    def later(self, delay_us: int, act: Callable[[], None]) -> None:
        """Let the director do something later, unless the faults have stopped by then."""
        self.world.at(self._director, delay_us, lambda: None if self.calm else act())

    def ask_broker(self, method: str, *args: Any) -> None:
        """An operator's call: tried again until it is answered."""

        def ask() -> Steps:
            for _ in range(100):
                try:
                    yield self.network.call(self._director, ADDRESS, method, args, TIMEOUT_US)
                    return
                except BrokerError as error:
                    if error.definite and not error.retriable:
                        return
                    yield 300 * MS_US

        self.world.spawn(self._director, ask())

    # The broker.

    def crash_broker(self, why: str, restart_us: int) -> int:
        """End the broker's process at once; it comes back after a while."""
        self.network.kill(self.broker)
        lost = self.disk.crash()
        self.world.note(ADDRESS, f"{why}: {lost} written records are lost")
        self.world.at(self._director, restart_us, self._restart_broker, self.broker)
        return lost

    def _broker_ended(self, broker: Broker, why: str) -> None:
        if not broker.dead:
            self.crash_broker(why, self._random.randrange(20 * MS_US, SECOND_US))

    def _restart_broker(self, old: Broker) -> None:
        if self.broker is not old:
            return
        self.broker = Broker(
            self.world, self.network, self.disk, old.boot + 1, self._broker_ended
        )
        self.broker.start()
        check(self.broker.channel)
        if self.crash_in_recovery_us:
            after_us, self.crash_in_recovery_us = self.crash_in_recovery_us, 0
            self.world.at(self._director, after_us, self._crash_again, self.broker)

    def _crash_again(self, broker: Broker) -> None:
        if not broker.dead and not self.calm:
            self.crash_broker("killed while it starts", 50 * MS_US)

    def kill_queues(self, restore_after_ms: int) -> str:
        """Crash the queues of the channel."""
        try:
            self.broker.host.kill_queues(restore_after_ms)
        except BrokerError:
            pass  # it is not durable yet: nobody waits for that here
        return f"the queues crash for {restore_after_ms} ms"

    def freeze(self, process: Process, for_us: int) -> str | None:
        """Stop a process for a while."""
        if process.frozen or process.dead:
            return None
        self.world.freeze(process)
        self._frozen.append(process)

        def thaw() -> None:
            if process.frozen and not process.dead:
                self.wake(process)

        self.later(for_us, thaw)
        return f"{process.name} is stopped for {for_us / SECOND_US:.1f} s"

    def wake(self, process: Process) -> None:
        """Let a frozen process go on; its program does now what it was about to do."""
        self.world.note(process.name, "wakes up")
        self.world.thaw(process)
        if self.publishers.get(process.name) is process:
            self._publish_unsent(process.name)

    # Publishers.

    def start_publisher(self, name: str) -> None:
        """A new life of a publisher, whether or not the one before it has ended."""
        if (old := self.publishers.get(name)) is not None:
            self.outcomes_of(old)
            if not old.dead:
                self.replaced.append(old)
        settings = self._settings[name]
        self._lives[name] += 1
        publisher = SimulatedPublisher(
            self.network, stream(self.plan.seed, f"{name}/{self._lives[name]}"), name,
            self._lives[name], CHANNEL, refuse=settings["refuse"],
            batch_count_max=settings["batch"], hear=self.hear,
            on_end=self._publisher_ended,
        )  # fmt: skip
        self.publishers[name] = publisher
        publisher.start()
        self._publish_unsent(name)

    def _publish_unsent(self, name: str) -> None:
        unsent, self.unsent[name] = self.unsent[name], []
        for wanted in unsent:
            self.publish(name, wanted)

    def publish(self, name: str, wanted: list[Any]) -> None:
        """What a publisher's program has to say; it waits while its process is not there."""
        publisher = self.publishers[name]
        for old in () if self.calm else self.replaced:
            # The program behind an older life does not know yet that it has been replaced.
            if old.name == name and not old.dead and not old.frozen and self._random.random() < 0.5:
                assert isinstance(old, SimulatedPublisher)
                publisher = old
        if publisher.dead or publisher.frozen:
            self.unsent[name].append(wanted)
            return
        wall_us = self.world.wall_us()
        publisher.publish(
            [
                (partition, body, priority, wall_us + skew_us, extras, kind)
                for partition, body, priority, skew_us, extras, kind in wanted
            ]
        )

    def _publisher_ended(self, publisher: SimulatedPublisher, error: BrokerError) -> None:
        self.world.note(publisher.name, f"ends: {error}")
        if error.code == "publisher-fenced" and self._lives[publisher.name] == 1:
            raise Wrong("fenced by itself", f"{publisher.name} had one life only: {error}")
        if not publisher.dead:
            self.kill_publisher(publisher)

    def kill_publisher(self, publisher: SimulatedPublisher) -> None:
        """End a publisher's process at once; it comes back after a while."""
        self.outcomes_of(publisher)
        self.network.kill(publisher)
        delay_us = self.restart_after_us.pop(publisher.name, SECOND_US // 2)

        def restart() -> None:
            if self.publishers[publisher.name] is publisher:
                self.start_publisher(publisher.name)

        self.world.at(self._director, delay_us, restart)

    def pick_publisher(self, random: Random) -> SimulatedPublisher | None:
        """One that lives, if any."""
        living = [item for item in self.publishers.values() if not item.dead]
        return random.choice(living) if living else None

    # Subscribers.

    def start_subscriber(self, name: str) -> None:
        """A new life of a subscriber."""
        settings = self._settings[name]
        self._lives[name] += 1
        life = self._lives[name]
        if (old := self.subscribers.get(name)) is not None and not old.dead:
            self.replaced.append(old)
        subscriber = SimulatedSubscriber(
            self.network, stream(self.plan.seed, f"{name}/{life}"), name, life, CHANNEL,
            settings["subscription"], prefetch=settings["prefetch"],
            concurrency=settings["concurrency"], handling=self.handling, hear=self.hear,
            on_end=self._subscriber_ended,
        )  # fmt: skip
        self.subscribers[name] = subscriber
        self.world.note(name, f"starts, life {life}")
        subscriber.start()

    def kill_subscriber(self, subscriber: SimulatedSubscriber, why: str) -> None:
        """End a subscriber's process at once; it comes back after a while."""
        self.world.note(subscriber.name, why)
        self.network.kill(subscriber)
        self._subscriber_gone(subscriber)

    def _subscriber_ended(self, subscriber: SimulatedSubscriber, why: str) -> None:
        self.world.note(subscriber.name, f"ends: {why}")
        self.network.kill(subscriber)
        self._subscriber_gone(subscriber)

    def _subscriber_gone(self, subscriber: SimulatedSubscriber) -> None:
        name = subscriber.name
        if self.subscribers.get(name) is not subscriber:
            return
        if self._settings[name].get("guest"):
            del self.subscribers[name]
            return
        delay_us = self.restart_after_us.pop(name, SECOND_US // 2)

        def restart() -> None:
            if self.subscribers.get(name) is subscriber:
                self.start_subscriber(name)

        self.world.at(self._director, delay_us, restart)

    def pick_subscriber(self, random: Random) -> SimulatedSubscriber | None:
        """One that lives, if any."""
        living = [item for item in self.subscribers.values() if not item.dead]
        return random.choice(living) if living else None

    def is_guest(self, subscriber: SimulatedSubscriber) -> bool:
        """Whether it joined for a while only."""
        return bool(self._settings[subscriber.name].get("guest"))

    def join(self, prefetch: int, for_us: int) -> str:
        """A further subscriber joins, and leaves after a while."""
        self._lives["guests"] += 1
        name = f"g{self._lives['guests']}"
        self._settings[name] = {
            "name": name, "prefetch": prefetch, "concurrency": 1, "subscription": "default",
            "guest": True,
        }  # fmt: skip
        self.start_subscriber(name)
        guest = self.subscribers[name]
        self.later(for_us, guest.leave)
        return name

    def make_second_anew(self, pause_us: int) -> str | None:
        """Delete the second subscription and make it again: its positions start from 1."""
        second = self.subscribers.get("t1")
        if second is None or second.dead or second.frozen:
            return None
        self.restart_after_us["t1"] = pause_us + SECOND_US
        second.leave()

        def anew() -> None:
            self.ask_broker("delete_subscription", "second")
            self.world.at(
                self._director, SECOND_US // 2, self.ask_broker, "create_subscription", "second"
            )

        self.world.at(self._director, pause_us, anew)
        return "the second subscription is to be deleted and made again"
