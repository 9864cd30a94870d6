"""One run of one seed: the cast, what is checked after every step, and how it ends.

First a phase with faults, in which nothing may ever be wrong; then the faults stop, and everything
must come to an end within a bound. A run that injected or compared too little fails as well.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, Callable

from broker.core import snapshot
from broker.core.invariants import InvariantBroken, check
from broker.core.records import Reassigned, Record, Redriven
from broker.errors import BrokerError
from broker.journal.recovery import recover
from simulations.checkers import Judge
from simulations.world import faults
from simulations.world.broker import ADDRESS, Broker, make_channel
from simulations.world.disk import Disk
from simulations.world.handling import PlannedHandling
from simulations.world.network import Network, Weather
from simulations.world.profile import CHANNEL, Plan, draw, find_profile, stream
from simulations.world.publisher import TIMEOUT_US, SimulatedPublisher
from simulations.world.scheduler import MS_US, SECOND_US, Process, Steps, World
from simulations.world.subscriber import SimulatedSubscriber

CALM_S_MAX = 180
EVENTS_MAX = 400_000
RECORDS_MIN = 20
ACCEPTED_MIN = 1
TRACE_LINES_MAX = 100_000


class Wrong(Exception):
    """Something that must never be; ``kind`` is an anomaly's name or says what it is."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


@dataclass(slots=True)
class Result:
    """What became of a run."""

    seed: int
    profile: str
    only: list[int] | None
    kind: str = ""  # what went wrong; empty if nothing did
    text: str = ""
    at_s: float = 0.0
    phase: str = "faults"
    simulated_s: float = 0.0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    records: int = 0
    lines: int = 0
    accepted: int = 0
    handled: int = 0
    digest: str = ""
    trace: list[str] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    histories: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all held."""
        return not self.kind

    @property
    def reproduce(self) -> str:
        """The command that does exactly this again."""
        only = "" if self.only is None else f" --only {','.join(map(str, self.only)) or '0'}"
        profile = "" if self.profile == "standard" else f" --profile {self.profile}"
        return f"fairlead simulate --seed {self.seed}{profile}{only}"


def simulate(
    seed: int,
    profile: str = "standard",
    *,
    only: set[int] | None = None,
    trace: bool = False,
    keep: bool = False,
) -> Result:
    """Run one seed, with all its faults or with those in ``only``.

    ``keep`` leaves the journal's rows and the histories' lines in the result.
    """
    plan = draw(seed, find_profile(profile))
    if only is not None:
        plan = plan.only(only)
    run = Run(plan, trace=trace)
    result = run.perform()
    result.only = None if only is None else sorted(only)
    if keep:
        result.rows = run.disk.rows()
        result.histories = run.lines
    return result


class Run:
    """The stage of one run. Faults reach it through its methods."""

    def __init__(
        self,
        plan: Plan,
        *,
        trace: bool = False,
        handling: type[PlannedHandling] = PlannedHandling,
    ) -> None:
        self.plan = plan
        self.world = World()
        self.network = Network(self.world, stream(plan.seed, "network"))
        self.network.weather = plan.weather
        self.judge = Judge()
        self.lines: list[str] = []
        self.result = Result(plan.seed, plan.profile, None)
        if trace:
            self.world.trace = self._trace
        self.disk = Disk(self.world, stream(plan.seed, "disk"), CHANNEL, self._durable)
        self.disk.sync_us_max = plan.sync_us_max
        self.subscribers: dict[str, SimulatedSubscriber] = {}
        self.publishers: dict[str, SimulatedPublisher] = {}
        self.restart_after_us: dict[str, int] = {}
        self.crash_in_recovery_us = 0
        self.handling = handling(
            stream(plan.seed, "handling"), plan.trouble, self.kill_subscriber
        )
        self._calm = False
        self._director = Process("director")
        self._random = stream(plan.seed, "director")
        self._lives: Counter[str] = Counter()
        self._settings = {item["name"]: item for item in [*plan.publishers, *plan.subscribers]}
        self._frozen: list[Process] = []
        self._unsent: dict[str, list[Any]] = {item["name"]: [] for item in plan.publishers}
        self._confirmed: set[bytes] = set()
        self._with_ids = {
            item[1] for _, _, wanted in plan.messages for item in wanted if item[4]
        }
        self._given_up: set[tuple[str, str]] = set()  # partitions of which parked work was dropped
        self._second_wanted = plan.second_subscription
        self._replaced: list[Process] = []  # lives of those of which a newer one was started
        make_channel(self.disk, CHANNEL, plan.policy, self.world.wall_us() // 1_000)
        self.broker = Broker(self.world, self.network, self.disk, 1, self._broker_ended)

    # The two phases.

    def perform(self) -> Result:
        """Run it all; what goes wrong is in the result."""
        result = self.result
        try:
            self._start()
            self._go_until(self.plan.duration_us)
            result.phase = "calm"
            self._calm_down()
            self._drain()
            result.phase = "end"
            self._judge_the_end()
        except Wrong as wrong:
            result.kind, result.text = wrong.kind, wrong.text
        except InvariantBroken as broken:
            result.kind, result.text = "invariant", str(broken)
        except Exception as error:
            result.kind = f"error {type(error).__name__}"
            result.text = f"{error}\n{traceback.format_exc(limit=-6)}"
        result.at_s = result.simulated_s = self.world.now_us / SECOND_US
        result.events = self.world.events
        result.faults.update(self.network.faults)
        result.records = self.judge.compared["records"]
        result.lines = self.judge.compared["lines"]
        result.handled = self.handling.handled
        if result.kind:
            self._trace("WRONG", f"{result.kind}: {result.text}")
        return result

    def _start(self) -> None:
        self.broker.start()
        if self.plan.second_subscription:
            self.ask_broker("create_subscription", "second")
        for item in self.plan.subscribers:
            self.world.at(self._director, self._random.randrange(SECOND_US),
                          self.start_subscriber, item["name"])  # fmt: skip
        for item in self.plan.publishers:
            self.start_publisher(item["name"])
        for at_us, name, wanted in self.plan.messages:
            self.world.at(self._director, at_us, self._publish, name, wanted)
        for fault in self.plan.faults:
            self.world.at(self._director, fault.at_us, self._inject, fault)

    def _go_until(self, until_us: int) -> None:
        world, disk = self.world, self.disk
        while world.now_us < until_us:
            if not world.step():
                raise Wrong("stuck", "nothing is left to happen")
            if disk.changed:
                disk.changed = False
                self._check()
        if world.events > EVENTS_MAX:
            raise Wrong("livelock", f"{world.events} events in {until_us / SECOND_US:.0f} s")

    def _check(self) -> None:
        broker = self.broker
        if broker.broken is not None:
            raise Wrong("broker broken", repr(broker.broken))
        if not broker.dead:
            check(broker.channel)

    def _calm_down(self) -> None:
        """The faults stop, and all that was broken is put right."""
        self._calm = self.handling.calm = True
        self.world.note("director", "the faults stop; now everything must come to an end")
        self.network.weather = Weather()
        self.network.heal()
        self.disk.sync_us_max = MS_US
        self.crash_in_recovery_us = 0
        for process in self._frozen:
            if process.frozen and not process.dead:
                self._wake(process)

    def _drain(self) -> None:
        end_us = self.world.now_us + CALM_S_MAX * SECOND_US
        while not self._drained():
            if self.world.now_us > end_us:
                raise Wrong("liveness", f"not drained after {CALM_S_MAX} s: {self._left()}")
            if self._second_wanted and "second" not in self.broker.channel.subscriptions:
                # A late copy of the order to delete it came after the order to make it again.
                self.ask_broker("create_subscription", "second")
            if self._parked():
                for group in self.broker.channel.subscriptions_list:
                    self.ask_broker("redrive", group.name, None, False)
            self._go_until(self.world.now_us + SECOND_US)

    def _drained(self) -> bool:
        return (
            not self.broker.dead
            and not any(self._unsent.values())
            and all(item.idle and not item.dead for item in self.publishers.values())
            and not self.broker.channel.unsettled()
            and not self._parked()
            and all(item.idle and not item.dead for item in self.subscribers.values())
            and all(self._has_ended(item) for item in self._replaced)
            and self.disk.durable(CHANNEL) == self.disk.written()[CHANNEL]
        )

    def _has_ended(self, replaced: Process) -> bool:
        """A replaced subscriber hears of it; a replaced publisher does when it publishes next."""
        return replaced.dead or (isinstance(replaced, SimulatedPublisher) and replaced.idle)

    def _parked(self) -> bool:
        groups = self.broker.channel.subscriptions_list
        return any(group.parked or group.parked_partitions for group in groups)

    def _left(self) -> str:
        publishers = [
            f"{name}: {item.outbox.count if item.outbox else 'not open'} open"
            for name, item in self.publishers.items()
            if not item.idle
        ]
        subscribers = [name for name, item in self.subscribers.items() if not item.idle]
        channel = self.broker.channel
        return (
            f"unsettled {channel.unsettled()}, parked {self._parked()}, publishers {publishers}, "
            f"busy subscribers {subscribers}, replaced {self._replaced}, broker {self.broker}; "
            f"{channel}"
        )

    def _judge_the_end(self) -> None:
        for publisher in [*self.publishers.values(), *self._replaced]:
            if isinstance(publisher, SimulatedPublisher):
                self._take_outcomes(publisher)
        self.result.accepted = self.broker.channel.published_total
        trouble = Counter({"deaths by a message": sum(self.handling.deaths.values())})
        self.result.faults += trouble
        for anomaly in self.judge.finish(drained=True):
            raise Wrong(anomaly.name, f"{anomaly.text} (at {anomaly.sequence})")
        self._check_effects()
        self._check_ids()
        self._check_deaths()
        self._check_replay()
        if self.result.accepted < ACCEPTED_MIN or self.judge.compared["records"] < RECORDS_MIN:
            raise Wrong(
                "compared too little",
                f"{self.result.accepted} messages, {dict(self.judge.compared)}",
            )
        wanted = len(self.plan.faults) // 5
        if sum(self.result.faults.values()) < wanted:
            raise Wrong("injected too little", f"{dict(self.result.faults)}, wanted {wanted}")
        digest = hashlib.sha256()
        for row in self.disk.rows():
            digest.update(repr(row).encode())
        self.result.digest = digest.hexdigest()

    def _check_effects(self) -> None:
        """What its publisher was told is accepted has been handled: by the handlers' own books."""
        effects = self.handling.effects
        if not self.plan.bodies_tell:
            return
        for body in sorted(self._confirmed):
            publisher, partition, _ = body.decode().split("/")
            if ("default", body) not in effects and (publisher, partition) not in self._given_up:
                raise Wrong("unseen", f"{body!r} was confirmed and no handler has seen it")

    def _check_deaths(self) -> None:
        """A message that kills its process is set aside after its last attempt."""
        policy = self.plan.policy
        if policy.poison == "block" or self.result.faults["redrive"]:
            return
        for key, count in self.handling.deaths.items():
            if count > policy.attempts_max:
                raise Wrong("delivery-limit", f"{key} killed {count} subscribers")

    def _check_ids(self) -> None:
        """Of messages with the same id one was handled, if the window reaches that far."""
        if self.plan.policy.dedup_window_count_max < 1_000:
            return
        seen: dict[str, bytes] = {}
        for _, _, wanted in self.plan.messages:
            for _, body, _, _, extras, _ in wanted:
                if extras and ("default", body) in self.handling.effects:
                    first = seen.setdefault(extras["id"], body)
                    if first != body:
                        raise Wrong("duplicate", f"{first!r} and {body!r} have {extras}")

    def _check_replay(self) -> None:
        """The journal alone gives the same channel."""
        replayed, _ = recover(self.disk, CHANNEL)
        lasting, live = _lasting(replayed), _lasting(self.broker.channel)
        if lasting != live:
            where = _difference(lasting, live)
            raise Wrong("replay", f"the journal gives another channel: {where}")

    # What the world tells.

    def _durable(self, sequence: int, record: Record) -> None:
        if self.world.trace is not None:
            self._trace("journal", f"{sequence} {_shown(record)}")
        if isinstance(record, Redriven) and record.dropped:
            self._given_up.add((record.key.publisher, record.key.partition))
        elif isinstance(record, Reassigned) and record.reason != "crash":
            self._check_handed_back(record)
        for anomaly in self.judge.watch(sequence, record):
            raise Wrong(anomaly.name, f"{anomaly.text} (at record {sequence})")

    def _check_handed_back(self, record: Reassigned) -> None:
        """What a living subscriber gives back it has not started."""
        for epoch, first in zip(record.epochs, record.firsts):
            place = (record.subscription, record.subscriber, epoch)
            if self.handling.running.get(place, 0) >= first:
                raise Wrong("started and taken back", _shown(record))

    def _hear(self, line: str) -> None:
        self.lines.append(line)
        if self.world.trace is not None:
            self._trace("history", _shown_line(json.loads(line)))
        for anomaly in self.judge.hear(json.loads(line)):
            raise Wrong(anomaly.name, f"{anomaly.text} ({line})")

    def _trace(self, who: str, text: str) -> None:
        if len(self.result.trace) < TRACE_LINES_MAX:
            self.result.trace.append(f"{self.world.now_us / SECOND_US:10.4f} s  {who:9} {text}")

    def _inject(self, fault: Any) -> None:
        if self._calm:
            return
        done = faults.inject(self, fault.kind, fault.salt)
        if done is not None:
            self.result.faults[fault.kind] += 1
            self.world.note("fault", f"{fault.number}: {done}")

    def later(self, delay_us: int, act: Callable[[], None]) -> None:
        """Let the director do something later, unless the faults have stopped by then."""
        self.world.at(self._director, delay_us, lambda: None if self._calm else act())

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
        if not broker.dead and not self._calm:
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
                self._wake(process)

        self.later(for_us, thaw)
        return f"{process.name} is stopped for {for_us / SECOND_US:.1f} s"

    def _wake(self, process: Process) -> None:
        self.world.note(process.name, "wakes up")
        self.world.thaw(process)
        if self.publishers.get(process.name) is process:
            self._publish_unsent(process.name)

    # Publishers.

    def start_publisher(self, name: str) -> None:
        """A new life of a publisher, whether or not the one before it has ended."""
        if (old := self.publishers.get(name)) is not None:
            self._take_outcomes(old)
            if not old.dead:
                self._replaced.append(old)
        settings = self._settings[name]
        self._lives[name] += 1
        publisher = SimulatedPublisher(
            self.network, stream(self.plan.seed, f"{name}/{self._lives[name]}"), name,
            self._lives[name], CHANNEL, refuse=settings["refuse"],
            batch_count_max=settings["batch"], hear=self._hear,
            on_end=self._publisher_ended,
        )  # fmt: skip
        self.publishers[name] = publisher
        publisher.start()
        self._publish_unsent(name)

    def _publish_unsent(self, name: str) -> None:
        unsent, self._unsent[name] = self._unsent[name], []
        for wanted in unsent:
            self._publish(name, wanted)

    def _publish(self, name: str, wanted: list[Any]) -> None:
        publisher = self.publishers[name]
        for old in self._replaced:
            # The program behind an older life does not know yet that it has been replaced.
            if old.name == name and not old.dead and not old.frozen and self._random.random() < 0.5:
                assert isinstance(old, SimulatedPublisher)
                publisher = old
        if publisher.dead or publisher.frozen:
            self._unsent[name].append(wanted)
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
        self._take_outcomes(publisher)
        self.network.kill(publisher)
        delay_us = self.restart_after_us.pop(publisher.name, SECOND_US // 2)

        def restart() -> None:
            if self.publishers[publisher.name] is publisher:
                self.start_publisher(publisher.name)

        self.world.at(self._director, delay_us, restart)

    def _take_outcomes(self, publisher: SimulatedPublisher) -> None:
        last: dict[str, int] = {}
        for body, outcome in publisher.outcomes():
            if isinstance(outcome, tuple) and self.plan.bodies_tell:
                partition = body.decode().split("/")[1]
                if outcome[0] <= last.get(partition, 0):
                    raise Wrong(
                        "nonmonotonic-send",
                        f"{body!r} has sequence {outcome[0]}, one before it {last[partition]}",
                    )
                last[partition] = outcome[0]
            # A message with an id may be dropped as a duplicate, and after a lost answer its
            # publisher is not told so.
            if isinstance(outcome, tuple) and not outcome[1] and body not in self._with_ids:
                self._confirmed.add(body)

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
            self._replaced.append(old)
        subscriber = SimulatedSubscriber(
            self.network, stream(self.plan.seed, f"{name}/{life}"), name, life, CHANNEL,
            settings["subscription"], prefetch=settings["prefetch"],
            concurrency=settings["concurrency"], handling=self.handling, hear=self._hear,
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


def _lasting(channel: Any) -> Any:
    """The state of a channel without what need not survive: who was seen when."""
    state = snapshot.dump(channel)
    place = snapshot.SUB_QUEUE_FIELDS.index("seen_ms")
    for group in state["subscriptions"]:
        for queue in group["subscribers"]:
            queue["fields"][place] = 0
    return state


HIDDEN = {"lines", "columns", "entries", "at_ms", "policy"}
COMMON = {"client", "n", "at_us", "channel", "subscription"}


def _shown(record: Record) -> str:
    """A record in one line, without its bodies."""
    names = [name for name in record.__slots__ if name not in HIDDEN]
    facts = ", ".join(f"{name}={_short(getattr(record, name))}" for name in names)
    return f"{record.kind}({facts})"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "[" + " ".join(map(_short, value)) + "]"
    return str(value)


def _shown_line(line: dict[str, Any]) -> str:
    facts = ", ".join(f"{name}={_short(line[name])}" for name in line if name not in COMMON)
    return f"{line['client']} {facts}"


def _difference(left: Any, right: Any, where: str = "") -> str:
    """Where two states differ first."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in left:
            if left[key] != right.get(key):
                return _difference(left[key], right.get(key), f"{where}.{key}")
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right)):
            if one != other:
                return _difference(one, other, f"{where}[{index}]")
    return f"{where}: {left!r:.200} and {right!r:.200}"
