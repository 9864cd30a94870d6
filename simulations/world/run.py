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
from typing import Any

from broker.core.invariants import InvariantBroken, check
from broker.core.records import (
    Delivered,
    Nacked,
    Parked,
    Reassigned,
    Record,
    Redriven,
    StaleAcked,
    Subscribed,
    SubscriberLeft,
)
from broker.errors import BrokerError
from broker.journal.recovery import recover
from simulations.checkers import Judge
from simulations.world import faults
from simulations.world.cast import Cast, Wrong
from simulations.world.handling import PlannedHandling
from simulations.world.network import Weather
from simulations.world.profile import CHANNEL, KINDS, Plan, draw, find_profile
from simulations.world.publisher import SimulatedPublisher
from simulations.world.scheduler import MS_US, SECOND_US, Process
from simulations.world.subscriber import SimulatedSubscriber
from simulations.world.trace import difference, lasting, shown, shown_line
from subscriber.message import Message

CALM_S_MAX = 180
EVENTS_MAX = 400_000
RECORDS_MIN = 20
ACCEPTED_MIN = 1
TRACE_LINES_MAX = 100_000


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


class Run(Cast):
    """One run: its two phases, and everything that is checked on the way and at the end."""

    def __init__(
        self,
        plan: Plan,
        *,
        trace: bool = False,
        handling: type[PlannedHandling] = PlannedHandling,
    ) -> None:
        self.judge = Judge()
        self.lines: list[str] = []
        self.result = Result(plan.seed, plan.profile, None)
        self._confirmed: set[bytes] = set()
        self._with_ids = {
            item[1] for _, _, wanted in plan.messages for item in wanted if item[4]
        }
        self._given_up: set[tuple[str, str]] = set()  # partitions of which parked work was dropped
        #: When a session became a member for the last time, and the newest epoch of that moment.
        self._joined: dict[tuple[str, str], tuple[int, int]] = {}
        self._epoch = 0  # the newest one that is durable
        super().__init__(plan, handling)
        self.handling.on_start = self._check_start
        if trace:
            self.world.trace = self._trace

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
            self.world.at(self._director, at_us, self.publish, name, wanted)
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
        self.calm = self.handling.calm = True
        self.world.note("director", "the faults stop; now everything must come to an end")
        self.network.weather = Weather()
        self.network.heal()
        self.disk.sync_us_max = MS_US
        self.crash_in_recovery_us = 0
        for process in self._frozen:
            if process.frozen and not process.dead:
                self.wake(process)
        for settings in self.plan.publishers if self.plan.bodies_tell else ():
            # Whatever has happened, there is one more message to be handled by everybody.
            name, partition = settings["name"], settings["partitions"][0]
            body = f"{name}/{partition}/last".encode()
            self.publish(name, [(partition, body, 0, 0, None, 0)])

    def _drain(self) -> None:
        end_us = self.world.now_us + CALM_S_MAX * SECOND_US
        while not self._drained():
            if self.world.now_us > end_us:
                raise Wrong("liveness", f"not drained after {CALM_S_MAX} s: {self._left()}")
            if self.plan.second_subscription and "second" not in self.broker.channel.subscriptions:
                # A late copy of the order to delete it came after the order to make it again.
                self.ask_broker("create_subscription", "second")
            if self._parked():
                for group in self.broker.channel.subscriptions_list:
                    self.ask_broker("redrive", group.name, None, False)
            self._go_until(self.world.now_us + SECOND_US)

    def _drained(self) -> bool:
        return (
            not self.broker.dead
            and not any(self.unsent.values())
            and all(item.idle and not item.dead for item in self.publishers.values())
            and not self.broker.channel.unsettled()
            and not self._parked()
            and all(item.idle and not item.dead for item in self.subscribers.values())
            and all(self._has_ended(item) for item in self.replaced)
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
            f"busy subscribers {subscribers}, replaced {self.replaced}, broker {self.broker}; "
            f"{channel}"
        )

    def _judge_the_end(self) -> None:
        for publisher in [*self.publishers.values(), *self.replaced]:
            if isinstance(publisher, SimulatedPublisher):
                self.outcomes_of(publisher)
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
        wanted = min(len(self.plan.faults), max(1, len(self.plan.faults) // 6))
        done = sum(self.result.faults[kind] for kind in KINDS) + trouble.total()
        if done < wanted:
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
        again, live = lasting(replayed), lasting(self.broker.channel)
        if again != live:
            where = difference(again, live)
            raise Wrong("replay", f"the journal gives another channel: {where}")

    # What the world tells.

    def durable(self, sequence: int, record: Record) -> None:
        if self.world.trace is not None:
            self._trace("journal", f"{sequence} {shown(record)}")
        if isinstance(record, Redriven) and record.dropped:
            self._given_up.add((record.key.publisher, record.key.partition))
        elif isinstance(record, Subscribed):
            moment = (self.world.now_us, self._epoch)
            self._joined[record.subscription, record.session] = moment
        elif isinstance(record, Delivered):
            self._epoch = max(self._epoch, *record.epochs)
        elif isinstance(record, Reassigned) and record.reason != "crash":
            self._check_handed_back(record)
        if not find_profile(self.plan.profile).kinds:
            self._check_unprovoked(record)
        for anomaly in self.judge.watch(sequence, record):
            raise Wrong(anomaly.name, f"{anomaly.text} (at record {sequence})")

    def _check_start(self, subscriber: SimulatedSubscriber, message: Message) -> None:
        """Who has heard from the broker since it joined anew starts nothing of before."""
        place = (subscriber.subscription, subscriber.session_id)
        joined_us, epoch = self._joined.get(place, (0, 0))
        if subscriber.heard_us > joined_us and message.epoch <= epoch:
            raise Wrong(
                "single-owner",
                f"{subscriber.name} starts {message!r}; it joined anew at epoch {epoch}",
            )

    def _check_unprovoked(self, record: Record) -> None:
        """Without any fault nobody is given up, and nothing is tried twice."""
        gone = isinstance(record, SubscriberLeft) and record.reason != "left"
        if gone or isinstance(record, (Nacked, Parked, StaleAcked)):
            raise Wrong("unprovoked", shown(record))

    def _check_handed_back(self, record: Reassigned) -> None:
        """What a living subscriber gives back it has not started."""
        for epoch, first in zip(record.epochs, record.firsts):
            place = (record.subscription, record.subscriber, epoch)
            if self.handling.running.get(place, 0) >= first:
                raise Wrong("started and taken back", shown(record))

    def hear(self, line: str) -> None:
        self.lines.append(line)
        if self.world.trace is not None:
            self._trace("history", shown_line(json.loads(line)))
        for anomaly in self.judge.hear(json.loads(line)):
            raise Wrong(anomaly.name, f"{anomaly.text} ({line})")

    def _trace(self, who: str, text: str) -> None:
        if len(self.result.trace) < TRACE_LINES_MAX:
            self.result.trace.append(f"{self.world.now_us / SECOND_US:10.4f} s  {who:9} {text}")

    def _inject(self, fault: Any) -> None:
        if self.calm:
            return
        done = faults.inject(self, fault.kind, fault.salt)
        if done is not None:
            self.result.faults[fault.kind] += 1
            self.world.note("fault", f"{fault.number}: {done}")

    def _check_refusal(
        self, publisher: SimulatedPublisher, body: bytes, error: BrokerError
    ) -> None:
        """A message fails only if its publisher asked for that, or was replaced."""
        full = error.code == "channel-full" and self._settings[publisher.name]["refuse"]
        fenced = error.code == "publisher-fenced" and self._lives[publisher.name] > 1
        if not full and not fenced:
            raise Wrong("refused for nothing", f"{body!r} of {publisher.name}: {error}")

    def outcomes_of(self, publisher: SimulatedPublisher) -> None:
        last: dict[str, int] = {}
        for body, outcome in publisher.outcomes():
            if isinstance(outcome, BrokerError):
                self._check_refusal(publisher, body, outcome)
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
