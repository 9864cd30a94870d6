"""What happens in the demonstration, in its order: the flow, four faults, the wait for quiet.

Each fault is brought about, and then waited for until its effect has been seen. What was seen on
the way is noted in ``Seen`` for the report; whether it is as promised is judged there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from publisher import Publisher
from simulations.demo_cast import Broker, Child, Worker, end_all
from simulations.demo_check import Told
from simulations.demo_flow import Pump, accepted_between, told
from simulations.demo_history import Run
from simulations.demo_screen import Screen
from simulations.demo_wait import DEADLINE_S, Found, wait_until

CHANNELS = ("orders", "payments")
COUNT_MIN = 1_500  # messages per publisher
POLICY = {
    "lease_ms": 3_000, "delay_ms": 100, "long_delay_ms": 250, "long_delays_max": 3,
}  # fmt: skip
CRASHED = "payments-1"
SLOWED = "orders-2"
SLOW_S = 0.4
QUEUES_DOWN_S = 0.8
UNSTARTED_MIN = 10
COPIES = 25


@dataclass
class Seen:
    """What was seen of the faults while they happened."""

    in_hand: list[Run] = field(default_factory=list)
    unstarted: int = 0
    crash_exit: int | None = None
    long_delays: int = 0
    slow_sessions: list[str] = field(default_factory=list)
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


class Story:
    """One performance. ``close`` ends whatever was started, however far it came."""

    def __init__(self, folder: Path, seed: int, screen: Screen) -> None:
        self.folder = folder
        self.seed = seed
        self.screen = screen
        self.seen = Seen()
        self.workers: dict[str, Worker] = {}
        self.pumps: dict[str, list[Pump]] = {channel: [] for channel in CHANNELS}
        self.children: list[Child] = []
        self.broker: Broker

    def perform(self) -> None:
        """All of it, from the first process to the last."""
        self.start_broker()
        self.open_channels()
        self.start_workers()
        self.start_flow()
        self.crash_subscriber("payments", CRASHED)
        self.slow_subscriber("orders", SLOWED)
        self.crash_queues("orders")
        for channel in CHANNELS:
            self.publish_copies(channel)
        self.finish_flow()
        self.wait_for_quiet()
        self.close()

    def close(self) -> None:
        """End everything: the flow, then the subscribers, then the broker."""
        for pump in self.all_pumps:
            pump.close()
        workers = [child for child in self.children if isinstance(child, Worker)]
        others = [child for child in self.children if not isinstance(child, Worker)]
        try:
            end_all(workers)
        finally:
            for child in others:
                if isinstance(child, Broker):
                    child.release()
            end_all(others)

    # Beginning.

    def start_broker(self) -> None:
        """A broker process of our own."""
        self.screen.step("start", "a broker with its name server, store and fault hooks")
        self.broker = Broker(self.folder)
        self.children.append(self.broker)
        self.wait(self.broker.ready, "the broker can be reached", self.broker.tail)

    def open_channels(self) -> None:
        """Two channels, with two publishers each."""
        for channel in CHANNELS:
            for publisher in ("web", "app"):
                opened = Publisher(
                    publisher, channel, name_server=self.broker.name_server, policy=POLICY
                )
                self.pumps[channel].append(Pump(opened, self.seed, COUNT_MIN))

    def start_workers(self) -> None:
        """Two subscriber processes for each channel."""
        for channel in CHANNELS:
            for number in (1, 2):
                name = f"{channel}-{number}"
                worker = Worker(name, channel, self.broker.name_server, self.folder, self.seed)
                self.workers[name] = worker
                self.children.append(worker)

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

    # Faults.

    def crash_subscriber(self, channel: str, name: str) -> None:
        """SIGKILL in the middle of a message, with more in the buffer."""
        victim = self.workers[name]
        victim.tell("hold")

        def loaded() -> bool:
            history = victim.history()
            return bool(history.in_hand) and history.unstarted >= UNSTARTED_MIN

        self.wait(
            loaded,
            f"{name} is inside a message and has {UNSTARTED_MIN} more in its buffer",
            lambda: f"{len(victim.history().in_hand)} in hand, {victim.history().unstarted} more",
        )
        history = victim.crash()
        self.seen.in_hand, self.seen.unstarted = history.in_hand, history.unstarted
        self.seen.crash_exit = victim.process.returncode
        self.screen.step(
            "crash", f"killed {name} (SIGKILL) inside {len(history.in_hand)} message(s), with "
            f"{history.unstarted} more in its buffer",
        )  # fmt: skip
        other = next(w for w in self.workers.values() if w.channel == channel and w is not victim)
        wanted = {run.message for run in history.in_hand}
        self.wait(
            lambda: wanted <= other.history().finished(),
            f"what {name} had in hand is finished by {other.name}",
            lambda: f"{channel} has the subscribers {list(self.broker.group(channel)['subscribers'])}",
        )
        self.screen.step("crash", f"{other.name} has taken over, from the message that was running")

    def slow_subscriber(self, channel: str, name: str) -> None:
        """Three long delays; the spell ends when its unstarted work has been seen to move."""
        slow = self.workers[name]
        before = self.broker.group(channel)
        self.seen.slow_sessions = [before["subscribers"][name]["session"]]
        moved_before = before["handover_total"].get("slow", 0)
        slow.tell(f"slow {SLOW_S}")
        self.screen.step("slow", f"{name} takes {SLOW_S * 1000:.0f} ms for each message from now on")

        def moved() -> int:
            total: int = self.broker.group(channel)["handover_total"].get("slow", 0)
            return total - moved_before

        def delays() -> int:
            return len(slow.history().longer_than(POLICY["long_delay_ms"] / 1000))

        self.wait(
            lambda: delays() >= POLICY["long_delays_max"] and moved(),
            f"three long delays of {name}, and its unstarted messages go to the other",
            lambda: f"{delays()} long delays, {moved()} messages moved",
        )
        slow.tell("normal")
        self.seen.long_delays, self.seen.slow_until = delays(), time.monotonic()
        self.screen.step(
            "slow", f"after {delays()} long delays {moved()} unstarted messages moved to the other"
        )
        self.wait(
            lambda: any(run.start > self.seen.slow_until for run in slow.history().runs),
            f"{name} gets new work",
            self.handled,
        )

    def crash_queues(self, channel: str) -> None:
        """Lose the global queue and all sub-queues while publishing goes on."""
        lost = self.broker.call(channel, "kill_queues", QUEUES_DOWN_S)["killed"]
        begin = end = time.monotonic()
        self.screen.step("queues", f"crashed all queues of {channel}; {lost} messages were in them")

        def restored() -> bool:
            nonlocal end
            asked_at = time.monotonic()
            if self.broker.statistics(channel)["queues_down"]:
                end = asked_at
                return False
            return True

        self.wait(restored, f"the backup has restored the queues of {channel}", lambda: "still down")
        self.seen.queues_lost, self.seen.queues_down = lost, (begin, end)
        pumps = self.pumps[channel]
        self.seen.while_down = sent, accepted = accepted_between(pumps, begin, end)
        self.screen.step(
            "queues", f"restored from the backup; {accepted} of {sent} messages that were published "
            "meanwhile are accepted",
        )  # fmt: skip

    def publish_copies(self, channel: str) -> None:
        """The same ids again, and old sequences again by a plain remote call."""
        copies = [copy for pump in self.pumps[channel] for copy in pump.repeat_ids(COPIES)]
        self.wait(
            lambda: all(copy.receipt.done() for copy in copies),
            f"the copies for {channel} are answered",
            lambda: f"{sum(copy.receipt.done() for copy in copies)} of {len(copies)} answered",
        )
        sent = dropped = accepted = 0
        for pump in self.pumps[channel]:
            bodies = [{"body": {"number": n, "copy": True}} for n in range(COPIES)]
            partition = pump.sent[0].partition
            reply = self.broker.call(
                channel, "publish", pump.name_of_publisher, partition, bodies, 1
            )
            sent += len(bodies)
            dropped += reply["duplicates"]
            accepted += reply["accepted"]
        self.seen.plain_sent[channel] = sent
        self.seen.plain_dropped[channel] = dropped
        self.seen.plain_accepted[channel] = accepted
        self.screen.step(
            "copies", f"published again to {channel}: {len(copies)} messages with ids of their own, "
            f"{sent} with old sequences",
        )  # fmt: skip

    # The end.

    def finish_flow(self) -> None:
        """Let the publishers come to their end, and collect what they were told."""
        for pump in self.all_pumps:
            pump.finish()
        self.wait(
            lambda: not any(pump.is_alive() for pump in self.all_pumps),
            "the publishers have published everything",
            lambda: ", ".join(f"{p.name_of_publisher} {len(p.sent)}" for p in self.all_pumps),
        )
        for channel in CHANNELS:
            self.seen.told[channel] = found = told(self.pumps[channel])
            found.sent_again += self.seen.plain_sent[channel]
            found.duplicates += self.seen.plain_dropped[channel]
        counts = [f"{len(self.seen.told[c].accepted)} to {c}" for c in CHANNELS]
        self.screen.step("flow", f"publishers are done; accepted: {', '.join(counts)}")

    def wait_for_quiet(self) -> None:
        """Until every accepted message is finished by a handler and the broker owes nothing."""

        def missing(channel: str) -> int:
            done = [w.history().finished() for w in self.workers.values() if w.channel == channel]
            return len(self.seen.told[channel].accepted.difference(*done))

        for channel in CHANNELS:
            self.wait(
                lambda c=channel: not missing(c) and not self.broker.group(c)["backup"],  # type: ignore[misc]
                f"every message of {channel} is finished and acknowledged",
                lambda c=channel: f"{missing(c)} not finished, "  # type: ignore[misc]
                f"{self.broker.group(c)['backup']} not acknowledged",
            )
            self.seen.statistics[channel] = self.broker.statistics(channel)
            self.seen.parked[channel] = len(self.broker.call(channel, "parked"))
        group = self.broker.group("orders")
        self.seen.slow_sessions += [
            item["session"] for name, item in group["subscribers"].items() if name == SLOWED
        ]
        self.screen.step("end", "everything is settled; stopping all processes (SIGTERM)")

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
