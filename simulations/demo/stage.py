"""The stage of the demonstration: what is started, the flow, the wait for quiet, the end.

What was seen on the way is noted in ``Seen``; whether it is as promised is judged in
``report``. The faults are in ``faults``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from publisher import Publisher
from simulations.demo.cast import CLIENT_HISTORIES, Broker, Child, Worker, end_all
from simulations.demo.check import Told
from simulations.demo.flow import Pump, told
from simulations.demo.history import Run
from simulations.demo.screen import Screen
from simulations.demo.wait import DEADLINE_S, Found, wait_until

CHANNELS = ("orders", "payments")
COUNT_MIN = 2_000  # messages per publisher
POLICY = {
    "lease_ms": 3_000, "delay_ms": 100, "long_delay_ms": 250, "long_delays_max": 3,
}  # fmt: skip
CRASHED = "payments-1"
SLOWED = "orders-2"


@dataclass
class Seen:
    """What was seen of the faults while they happened."""

    in_hand: list[Run] = field(default_factory=list)
    unstarted: int = 0
    crash_exit: int | None = None
    long_delays: int = 0
    slow_session: str = ""
    slow_from: float = 0.0
    slow_until: float = 0.0
    queues_lost: int = 0
    queues_down: tuple[float, float] = (0.0, 0.0)
    while_down: tuple[int, int] = (0, 0)
    plain_sent: dict[str, int] = field(default_factory=dict)
    plain_dropped: dict[str, int] = field(default_factory=dict)
    plain_accepted: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, dict[str, Any]] = field(default_factory=dict)
    parked: dict[str, int] = field(default_factory=dict)
    told: dict[str, Told] = field(default_factory=dict)


class Stage:
    """One performance. ``close`` ends whatever was started, however far it came."""

    def __init__(self, folder: Path, seed: int, screen: Screen) -> None:
        self.folder = folder
        self.seed = seed
        self.screen = screen
        self.seen = Seen()
        self.workers: dict[str, Worker] = {}
        self.pumps: dict[str, list[Pump]] = {channel: [] for channel in CHANNELS}
        self._broker: Broker | None = None

    @property
    def broker(self) -> Broker:
        """The broker process; it is the first thing that is started."""
        assert self._broker is not None
        return self._broker

    @property
    def children(self) -> list[Child]:
        """All processes."""
        return [self.broker, *self.workers.values()]

    def close(self) -> None:
        """End everything: the flow, then the subscribers, then the broker."""
        try:
            for pump in self.all_pumps:
                pump.close()
        finally:
            try:
                end_all(list(self.workers.values()))
            finally:
                if self._broker is not None:
                    self._broker.release()
                    end_all([self._broker])

    # Beginning.

    def start_broker(self) -> None:
        """A broker process of our own."""
        self.screen.step("start", "a broker with its name server, store and fault hooks")
        self._broker = Broker(self.folder)
        self.wait(self.broker.ready, "the broker can be reached", self.broker.tail)

    def open_channels(self) -> None:
        """Two channels, with two publishers each."""
        for channel in CHANNELS:
            for publisher in ("web", "app"):
                opened = Publisher(
                    publisher, channel, name_server=self.broker.name_server, policy=POLICY,
                    history=self.folder / CLIENT_HISTORIES,
                )  # fmt: skip
                self.pumps[channel].append(Pump(opened, self.seed, COUNT_MIN))

    def start_workers(self) -> None:
        """Two subscriber processes for each channel."""
        for channel in CHANNELS:
            for number in (1, 2):
                name = f"{channel}-{number}"
                self.workers[name] = Worker(
                    name, channel, self.broker.name_server, self.folder, self.seed
                )

        def joined() -> list[str]:
            return [name for c in CHANNELS for name in self.broker.group(c)["subscribers"]]

        self.wait(
            lambda: set(joined()) == set(self.workers),
            "four subscribers have joined",
            lambda: f"joined: {', '.join(joined()) or 'nobody'}",
        )
        pids = ", ".join(f"{name} ({item.process.pid})" for name, item in self.workers.items())
        self.screen.step("start", f"subscriber processes: {pids}")

    def start_flow(self) -> None:
        """Messages flow from here on."""
        for pump in self.all_pumps:
            pump.start()
        self.wait(
            lambda: all(worker.history().runs for worker in self.workers.values()),
            "every subscriber has handled something",
            self.handled,
        )
        self.screen.step("flow", "two publishers per channel; every subscriber is at work")

    # The end.

    def finish_flow(self) -> None:
        """Let the publishers come to their end, and collect what they were told."""
        for pump in self.all_pumps:
            pump.finish()
        self.wait(
            lambda: not any(pump.is_alive() for pump in self.all_pumps),
            "the publishers have published everything",
            lambda: f"{sum(len(pump.sent) for pump in self.all_pumps)} published",
        )
        for channel in CHANNELS:
            self.seen.told[channel] = found = told(self.pumps[channel])
            found.sent_again += self.seen.plain_sent[channel]
            found.duplicates += self.seen.plain_dropped[channel]
        counts = [f"{len(self.seen.told[c].accepted)} to {c}" for c in CHANNELS]
        self.screen.step("flow", f"publishers are done; accepted: {', '.join(counts)}")

    def wait_for_quiet(self) -> None:
        """Until every accepted message is finished by a handler and the broker owes nothing."""
        for channel in CHANNELS:
            self._wait_for_quiet_of(channel)
            self.seen.statistics[channel] = self.broker.statistics(channel)
            self.seen.parked[channel] = len(self.broker.call(channel, "parked"))
        self.screen.step("end", "everything is settled; stopping all processes (SIGTERM)")

    def _wait_for_quiet_of(self, channel: str) -> None:
        accepted = self.seen.told[channel].accepted

        def missing() -> int:
            done = [w.history().finished() for w in self.workers.values() if w.channel == channel]
            return len(accepted.difference(*done))

        def owed() -> int:
            count: int = self.broker.group(channel)["backup"]
            return count

        self.wait(
            lambda: not missing() and not owed(),
            f"every message of {channel} is finished and acknowledged",
            lambda: f"{missing()} not finished, {owed()} not acknowledged",
        )

    # Helpers.

    @property
    def all_pumps(self) -> list[Pump]:
        """The publishers of both channels."""
        return [pump for pumps in self.pumps.values() for pump in pumps]

    def handled(self) -> str:
        """How much each subscriber has handled, in words."""
        return ", ".join(f"{name} {len(w.history().runs)}" for name, w in self.workers.items())

    def wait(
        self,
        condition: Callable[[], Found | None],
        what: str,
        seen: Callable[[], str],
        deadline_s: float = DEADLINE_S,
    ) -> Found:
        """Wait with an eye on the children and the flow."""

        def meanwhile() -> None:
            for child in self.children:
                child.check()
            for pump in self.all_pumps:
                pump.check()
            self.screen.progress(what, seen)

        found = wait_until(condition, what, seen, deadline_s, meanwhile)
        self.screen.quiet()
        return found
