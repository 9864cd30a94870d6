"""One run of one seed of topics: what is checked after every step, and how it ends.

First a phase with faults, in which nothing may ever be wrong; then the faults stop, and everything
must come to an end within a bound. A run that injected or compared too little fails as well.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from typing import Any, Sequence

from broker.core.topics.records import Put
from broker.core.topics.snapshot import dump
from broker.journal.bases import TOPIC_PREFIX
from broker.journal.recovery import recover_topic
from broker.server.topics_host import Held
from simulations.checkers.topics import TopicsJudge
from simulations.world.cast import Wrong
from simulations.world.network import Weather
from simulations.world.profile import TOPIC_KINDS, find_profile
from simulations.world.run import Result
from simulations.world.scheduler import MS_US, SECOND_US
from simulations.world.topics import faults
from simulations.world.topics.cast import TopicsCast
from simulations.world.topics.client import TopicsClient
from simulations.world.topics.plan import TopicsPlan, draw_topics
from simulations.world.trace import difference, shown, shown_line
from topics.message import TopicMessage

CALM_S_MAX = 60
EVENTS_MAX = 200_000
RECORDS_MIN = 5
MESSAGES_MIN = 1
TRACE_LINES_MAX = 100_000


def simulate_topics(
    seed: int,
    profile: str,
    *,
    only: set[int] | None = None,
    trace: bool = False,
    keep: bool = False,
) -> Result:
    """Run one seed, with all its faults or with those in ``only``."""
    plan = draw_topics(seed, find_profile(profile))
    if only is not None:
        plan = plan.only(only)
    run = TopicsRun(plan, trace=trace)
    result = run.perform()
    result.only = None if only is None else sorted(only)
    if keep:
        result.rows = run.disk.rows
        result.histories = run.lines
    return result


class TopicsRun(TopicsCast):
    """One run: its two phases, and everything that is checked on the way and at the end."""

    def __init__(self, plan: TopicsPlan, *, trace: bool = False) -> None:
        self.judge = TopicsJudge()
        self.lines: list[str] = []
        self.result = Result(plan.seed, plan.profile, None)
        self._stamps: dict[tuple[str, tuple[tuple[str, int], ...]], int] = {}
        self._bodies: set[tuple[str, bytes]] = set()
        super().__init__(plan)
        if trace:
            self.world.trace = self._trace

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
        except Exception as error:
            result.kind = f"error {type(error).__name__}"
            result.text = f"{error}\n{traceback.format_exc(limit=-6)}"
        result.at_s = result.simulated_s = self.world.now_us / SECOND_US
        result.events = self.world.events
        result.faults.update(self.network.faults)
        compared = self.judge.compared
        result.records, result.lines = compared["records"], compared["lines"]
        result.accepted, result.handled = compared["messages"], compared["got"]
        if result.kind:
            self._trace("WRONG", f"{result.kind}: {result.text}")
        return result

    def _start(self) -> None:
        self.broker.start()
        for name in self.programs:
            self.world.at(
                self._director, self._random.randrange(SECOND_US), self.start_client, name
            )
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
                self.appended()
            if world.events > EVENTS_MAX:
                raise Wrong("livelock", f"{world.events} events in {until_us / SECOND_US:.0f} s")

    def _check(self) -> None:
        broker = self.broker
        if broker.broken is not None:
            raise Wrong("broker broken", repr(broker.broken))
        if not broker.dead:
            for held in broker.host._held.values():
                _check_held(held)

    def _calm_down(self) -> None:
        """The faults stop, and all that was broken is put right."""
        self.calm = True
        self.world.note("director", "the faults stop; now everything must come to an end")
        self.network.weather = Weather()
        self.network.heal()
        self.disk.sync_us_max = MS_US
        for process in self._frozen:
            self.wake(process)
        for client in self.clients.values():
            client.steps_left = 0
            if client.dead:
                self.world.at(self._director, SECOND_US, self._restart_client, client)
        for program in self.programs.values():
            program.calm = True

    def _drain(self) -> None:
        end_us = self.world.now_us + CALM_S_MAX * SECOND_US
        while left := self._left():
            if self.world.now_us > end_us:
                raise Wrong("liveness", f"not drained after {CALM_S_MAX} s: {left}")
            self._go_until(self.world.now_us + SECOND_US // 2)

    def _left(self) -> str:
        """What is not done yet; empty when all is."""
        if self.broker.dead or not self.disk.settled:
            return "the broker"
        for name, program in self.programs.items():
            client = self.clients.get(name)
            if client is None or client.dead or not all(program.idle.values()):
                return f"{name}: {program.idle}, {client and client.ledger.accounts}"
        for client in self.clients.values():
            for topic in self.plan.topics:
                if text := self._owed(client, topic):
                    return text
        return ""

    def _owed(self, client: TopicsClient, topic: str) -> str:
        account = client.ledger.account(topic)
        held = self.broker.host._held.get(topic)
        place = held.topic.places.get(client.name) if held is not None else None
        if place is None or held is None:
            if account.ticket:
                return f"{client.name} is not subscribed to {topic}, and believes that it is"
            return ""
        if (place.ticket, place.confirmed) == (account.ticket, held.topic.log.last):
            return ""
        return (
            f"{client.name} has {place.confirmed} of {held.topic.log.last} of {topic} by ticket "
            f"{place.ticket}; its own is {account.ticket}"
        )

    # The end.

    def _judge_the_end(self) -> None:
        for client in self.clients.values():
            for account in client.ledger.accounts.values():
                if account.pending is not None:
                    raise Wrong("liveness", f"{client.name} has a put pending: {account}")
        for anomaly in self.judge.finish(drained=True):
            raise Wrong(anomaly.name, f"{anomaly.text} (at {anomaly.sequence})")
        for held in self.broker.host._held.values():
            self._check_replay(held)
        compared = self.judge.compared
        if compared["messages"] < MESSAGES_MIN or compared["records"] < RECORDS_MIN:
            raise Wrong("compared too little", f"{dict(compared)}")
        wanted = min(len(self.plan.faults), max(1, len(self.plan.faults) // 6))
        done = sum(self.result.faults[kind] for kind in TOPIC_KINDS)
        if done < wanted:
            raise Wrong("injected too little", f"{dict(self.result.faults)}, wanted {wanted}")
        digest = hashlib.sha256()
        for row in self.disk.rows:
            digest.update(repr(row).encode())
        self.result.digest = digest.hexdigest()

    def _check_replay(self, held: Held) -> None:
        """The journal alone gives the same topic."""
        replayed, sequence = recover_topic(self.disk, held.name)
        # Only what is still being restored has a state ahead of itself.
        replayed.upto = replayed.expected_last = 0
        held.topic.upto = held.topic.expected_last = 0
        again, live = dump(replayed, sequence, True), dump(held.topic, held.sequence, True)
        if again != live:
            raise Wrong("replay", f"the journal gives another topic: {difference(again, live)}")

    # What the world tells.

    def durable(self, journal: str, sequence: int, record: Any) -> None:
        topic = journal.removeprefix(TOPIC_PREFIX)
        if self.world.trace is not None:
            self._trace("journal", f"{topic} {sequence} {shown(record)}")
        if isinstance(record, Put):
            self._check_bodies(topic, record)
        for anomaly in self.judge.watch(topic, sequence, record):
            raise Wrong(anomaly.name, f"{anomaly.text} (at record {sequence} of {topic})")

    def dropped(self, journal: str) -> None:
        topic = journal.removeprefix(TOPIC_PREFIX)
        self.result.faults["topic removed"] += 1
        self.world.note("broker", f"topic {topic} is removed: nobody has used it for long")
        for anomaly in self.judge.dropped(topic):
            raise Wrong(anomaly.name, f"{topic}: {anomaly.text}")

    def _check_bodies(self, topic: str, record: Put) -> None:
        """Every body is put by one call of a user; a topic that is made anew knows nothing."""
        born = self.judge.born(topic)
        for body in record.bodies:
            if (f"{topic}/{born}", body) in self._bodies:
                raise Wrong("exactly-once-put", f"{body!r} is twice in {topic}")
            self._bodies.add((f"{topic}/{born}", body))

    def hear(self, line: str) -> None:
        self.lines.append(line)
        if self.world.trace is not None:
            self._trace("history", shown_line(json.loads(line)))
        for anomaly in self.judge.hear(line):
            raise Wrong(anomaly.name, f"{anomaly.text} ({line})")

    def got(
        self,
        client: TopicsClient,
        messages: Sequence[TopicMessage],
        over: tuple[tuple[str, int], ...],
    ) -> None:
        """Over the same subscriptions the stamps only rise."""
        place = (client.directory.instance, over)
        for message in messages:
            if message.stamp <= self._stamps.get(place, 0):
                raise Wrong("one order", f"{client.name} got {message} after {self._stamps[place]}")
            self._stamps[place] = message.stamp

    def knows(self, client: str, topic: str) -> bool:
        return self.judge.is_subscribed(client, topic)

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


def _check_held(held: Held) -> None:
    """What must hold of a topic between any two steps."""
    topic, log = held.topic, held.topic.log
    floor = min((place.confirmed for place in topic.places.values()), default=log.last)
    if topic.floor != floor or log.first != floor + 1 or len(log) < 0:
        raise Wrong("invariant", f"{topic}: floor {topic.floor}, expected {floor}")
    if any(not place.joined <= place.confirmed <= log.last for place in topic.places.values()):
        raise Wrong("invariant", f"{topic}: {topic.places}")
    if held.marks and not (held.marks[0][0] >= log.first and held.marks[-1][0] == log.last):
        raise Wrong("invariant", f"{topic}: {held.marks}")
    if len(log) != sum(1 for _ in log.after(0, 1 << 30, 1 << 62)) or (len(log) and not held.marks):
        raise Wrong("invariant", f"{topic}: {len(log)} messages, marks {held.marks}")
