"""The cast of a run of topics: the broker and the clients, their lives, deaths and second lives.

What lives here: starting, killing and freezing processes. What may not: a judgement. What is seen
is told to whoever plays the run (``durable``, ``hear``, ``got``).
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, Sequence

from broker.errors import BrokerError, ClientElsewhere
from simulations.world.broker import ADDRESS
from simulations.world.cast import Wrong
from simulations.world.profile import stream
from simulations.world.scheduler import MS_US, SECOND_US, Process, Steps, World
from simulations.world.topics.broker import TopicsBroker
from simulations.world.topics.client import TIMEOUT_US, TopicsClient
from simulations.world.topics.directory import Directory
from simulations.world.topics.disk import TopicsDisk
from simulations.world.topics.network import StickyNetwork
from simulations.world.topics.plan import TopicsPlan
from simulations.world.topics.program import Program
from topics.message import TopicMessage


class TopicsCast:
    """Who takes part in a run. Faults reach it through its methods."""

    def __init__(self, plan: TopicsPlan) -> None:
        self.plan = plan
        self.world = World()
        self.network = StickyNetwork(self.world, stream(plan.seed, "network"))
        self.network.weather = plan.weather
        self.disk = TopicsDisk(self.world, stream(plan.seed, "disk"), self.durable, self.dropped)
        self.disk.sync_us_max = plan.sync_us_max
        self.calm = False
        self.programs = {
            wishes.name: Program(wishes, plan.topics, self.world, plan.duration_us)
            for wishes in plan.clients
        }
        self.clients: dict[str, TopicsClient] = {}
        self.directories = {name: Directory(f"{name}-1") for name in self.programs}
        self.restart_after_us: dict[str, int] = {}
        #: (appends from now, delay, restart after): when the broker is to be killed.
        self.crash_at_append: tuple[int, int, int] | None = None
        self.trim_at_append = 0  # appends from now; 0: not at all
        self._director = Process("director")
        self._random = stream(plan.seed, "director")
        self._frozen: list[Process] = []
        self.broker = self._make_broker()

    # What is seen.

    def durable(self, journal: str, sequence: int, record: Any) -> None:
        """A record has become durable."""

    def dropped(self, journal: str) -> None:
        """A topic was removed."""

    def hear(self, line: str) -> None:
        """A client has written a line of its history."""

    def got(
        self,
        client: TopicsClient,
        messages: Sequence[TopicMessage],
        over: tuple[tuple[str, int], ...],
    ) -> None:
        """A client hands messages to its user."""

    def knows(self, client: str, topic: str) -> bool:
        """Whether a topic surely knows a client."""
        raise NotImplementedError

    def later(self, delay_us: int, act: Callable[[], None]) -> None:
        """Let the director do something later, unless the faults have stopped by then."""
        self.world.at(self._director, delay_us, lambda: None if self.calm else act())

    # The broker.

    def _make_broker(self) -> TopicsBroker:
        return TopicsBroker(
            self.world, self.network, self.disk, policy=self.plan.policy,
            remember_s=self.plan.remember_s, tick_us=self.plan.tick_us, on_end=self._broker_ended,
        )  # fmt: skip

    def crash_broker(self, why: str, restart_us: int) -> int:
        """End the broker's process at once; it comes back after a while."""
        self.network.kill(self.broker)
        lost = self.disk.crash()
        self.world.note(ADDRESS, f"{why}: {lost} appends are lost")
        self.world.at(self._director, restart_us, self._restart_broker, self.broker)
        return lost

    def _broker_ended(self, broker: TopicsBroker, why: str) -> None:
        if not broker.dead:
            self.crash_broker(why, self._random.randrange(20 * MS_US, SECOND_US))

    def _restart_broker(self, old: TopicsBroker) -> None:
        if self.broker is old:
            self.broker = self._make_broker()
            self.broker.start()

    def appended(self) -> None:
        """Something was written: the moment that a crash may have waited for."""
        if self.trim_at_append and not self.broker.dead:
            self.trim_at_append -= 1
            if not self.trim_at_append:
                self.broker.trim()
        if self.crash_at_append is None or self.calm:
            return
        left, delay_us, restart_us = self.crash_at_append
        self.crash_at_append = (left - 1, delay_us, restart_us)
        if left <= 1:
            self.crash_at_append = None
            broker = self.broker

            def crash() -> None:
                if not broker.dead:
                    self.crash_broker("killed", restart_us)

            self.later(delay_us, crash)

    def freeze(self, process: Process, for_us: int) -> str | None:
        """Stop a process for a while."""
        if process.frozen or process.dead:
            return None
        self.world.freeze(process)
        self._frozen.append(process)
        self.later(for_us, lambda: self.wake(process))
        return f"{process.name} is stopped for {for_us / SECOND_US:.1f} s"

    def wake(self, process: Process) -> None:
        """Let a frozen process go on."""
        if process.frozen and not process.dead:
            self.world.note(process.name, "wakes up")
            self.world.thaw(process)

    # Clients.

    def start_client(self, name: str) -> None:
        """A new life of a client."""
        directory = self.directories[name]
        life = directory.life + 1
        client = self.clients[name] = TopicsClient(
            self.network, stream(self.plan.seed, f"{directory.instance}/{life}"), name, directory,
            hear=self.hear, on_got=self.got, on_crash=self.kill_client,
        )  # fmt: skip
        self.world.note(name, f"starts, life {life} of directory {directory.instance}")
        self.programs[name].run(client)

    def kill_client(self, client: TopicsClient) -> None:
        """End a client's process at once; it comes back after a while."""
        self.world.note(client.name, "killed")
        self.network.kill(client)
        delay_us = self.restart_after_us.pop(client.name, SECOND_US // 2)
        self.world.at(self._director, delay_us, self._restart_client, client)

    def _restart_client(self, old: TopicsClient) -> None:
        if self.clients[old.name] is old:
            self.start_client(old.name)

    def lose_directory(self, client: TopicsClient) -> None:
        """A client dies, and what it had written down is gone."""
        name, old = client.name, self.directories[client.name].instance.rstrip("+")
        count = int(old.rpartition("-")[2]) + 1
        self.directories[name] = Directory(f"{name}-{count}+")
        self.programs[name].takes_over = True
        self.kill_client(client)

    def pick(self, random: Random) -> TopicsClient | None:
        """A client that lives, if any."""
        living = [item for item in self.clients.values() if not item.dead]
        return random.choice(living) if living else None

    def start_second(self, name: str, topic: str, method: str) -> None:
        """Somebody uses a client's id from another directory, and must be refused."""
        second = Process(name)
        more: tuple[Any, ...] = {
            "put": (1, 0, [b"second"], (50, 1)), "subscribe": (1_000,), "unsubscribe": (1_000, None)
        }[method]  # fmt: skip

        def use() -> Steps:
            for _ in range(3):
                args = (topic, name, f"{name}-second", *more)
                try:
                    yield self.network.call(second, ADDRESS, method, args, TIMEOUT_US)
                except ClientElsewhere:
                    return
                except BrokerError:
                    continue
                raise Wrong("two directories", f"{method} of a second {name} to {topic} was done")

        self.world.spawn(second, use())
