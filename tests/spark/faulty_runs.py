"""Journals of real runs with real faults: many channels of one broker, each with a mix of its own.

``make`` runs a real broker over loopback Pyro5 with real publishers and subscribers, one ``Run``
per channel and all of them at the same time. Each run plays some acts, goes through a restart of
the broker with messages under way, plays some more, and ends drained or with work deliberately
left. What a channel plays follows from the seed; how the threads interleave does not. What may not
live here: anything that judges what the journal says.

    python -m tests.spark.faulty_runs DIR [--seed 1] [--histories DIR]
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgpack  # type: ignore[import-untyped]

from broker.core.policy import Policy
from broker.core.records import RECORD_TYPES
from broker.pyro_setup import Proxy, invoke, pyro_server
from broker.remote.lookup import ChannelAddress
from broker.server.service import Service, Settings
from publisher import Publisher
from subscriber import Message, Subscriber
from tests.faults.stage import Child
from tests.processes import HOST, free_port, poll

CHANNELS = 26
DEADLINE_S = 30.0
WORK_S = 0.001
SLOW_S = 0.08
LEASE_MS = 2_500
#: A subscriber that only a lease can find out must not be missed by accident.
LONG_LEASE_MS = 60_000
DEFAULT = "default"
DURABLE = {kind for kind, cls in RECORD_TYPES.items() if cls.durable}


class ChannelFacts(TypedDict):
    """What is known of a run besides its journal.

    ``published`` are the messages that were confirmed and were no duplicates; ``drained`` says that
    no subscription is owed anything; ``parked`` are the messages left parked; ``kinds`` how many
    records of each kind its journal has.
    """

    name: str
    drained: bool
    published: int
    parked: int
    faults: list[str]
    kinds: dict[str, int]


class FaultyStore(NamedTuple):
    """A store without a broker, and its channels in order of creation."""

    store: Path
    channels: list[ChannelFacts]


@dataclass
class Plan:
    """What one channel goes through."""

    name: str
    seed: int
    before: list[str]
    after: list[str]
    ending: str = "drained"
    poison: str = "park_message"
    lease_ms: int = LEASE_MS
    partitions: int = 8
    subscribers: int = 2
    concurrency: int = 1
    prefetch: int = 1_000

    def policy(self) -> Policy:
        """Short times, so that faults are noticed within the run."""
        return Policy(
            lease_ms=self.lease_ms, send_backoff_ms=30, send_timeout_ms=2_000, backoff_ms=10,
            delay_ms=20, long_delay_ms=60, long_delays_max=2, recall_after_ms=50,
            poison=self.poison, ageing_ms=100, pending_bytes_max=200_000,
        )  # fmt: skip


def plans(seed: int) -> list[Plan]:
    """The mix of every channel: each act comes first in some channel, the others are drawn."""
    draw = random.Random(seed)
    firsts = list(ACTS)
    made = []
    for index in range(CHANNELS):
        ending = {6: "waiting", 12: "fetched", 18: "held", 24: "parked"}.get(index, "drained")
        unnoticed = ending in ("fetched", "held")
        choices = [act for act in ACTS if not (unnoticed and act in NEED_LEASE)]
        first = firsts[index % len(firsts)]
        acts = [first if first in choices else choices[0], *draw.sample(choices, 3)]
        if index % 8 in (2, 3):
            acts[1] = "poison"  # so that each way of the policy with it occurs
        shared = "joiner shares" in acts
        made.append(
            Plan(
                f"run-{index:02}", draw.getrandbits(32), acts[:2], acts[2:], ending,
                ("park_message", "park_message", "park_partition", "block")[index % 4],
                LONG_LEASE_MS if unnoticed else LEASE_MS,
                draw.choice((3, 8, 40)), draw.choice((2, 2, 3)), draw.choice((1, 1, 4)),
                1_000 if shared else draw.choice((20, 100, 1_000)),
            )
        )  # fmt: skip
    return made


@pyro_server.expose
class RaisingCallback:
    """The callback of a plain script that takes nothing."""

    def receive(self, messages: list[dict[str, Any]]) -> None:
        """Fail."""
        raise RuntimeError("this subscriber takes nothing")


class Run:
    """One channel with everybody who uses it."""

    def __init__(
        self, plan: Plan, name_server: str, directory: Path, histories: str | None
    ) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.faults: list[str] = []
        self.accepted = 0
        self.healed: set[str] = set()
        self.gates: dict[str, threading.Event] = {}
        self.children: list[Child] = []
        self.workers: list[Subscriber] = []
        self._name_server = name_server
        self._directory = directory
        self._histories: dict[str, Any] = {} if histories is None else {"history": histories}
        self._receipts: list[Any] = []
        self._numbers = iter(range(1, 1 << 60))
        self._daemons: list[Any] = []
        self.publisher = self.open_publisher()

    def number(self) -> str:
        """A number of its own, as text."""
        return str(next(self._numbers))

    # Who plays.

    def open_publisher(self) -> Publisher:
        """The channel's publisher; one that is open already is fenced by it."""
        return Publisher(
            "p", self.plan.name, name_server=self._name_server, create=False, **self._histories
        )

    def join(self, name: str | None = None, subscription: str = DEFAULT) -> Subscriber:
        """One more subscriber inside this process."""
        plan = self.plan
        worker = Subscriber(
            name or f"worker-{self.number()}", plan.name, name_server=self._name_server,
            subscription=subscription, prefetch=plan.prefetch, concurrency=plan.concurrency,
            stop_s=10.0, **self._histories,
        )  # fmt: skip
        worker.handler(self._handle)
        self.workers.append(worker)
        return worker.start()

    def part(self, worker: Subscriber) -> None:
        """Let one of them leave."""
        self.workers.remove(worker)
        worker.close()

    def child(self, **settings: Any) -> Child:
        """A subscriber that is a process, known to the broker when this returns."""
        settings |= {
            "name": f"process-{self.number()}", "channel": self.plan.name,
            "name_server": self._name_server, "options": dict(self._histories),
        }  # fmt: skip
        directory = self._directory / self.plan.name
        directory.mkdir(exist_ok=True)
        made = Child("subscriber", directory, settings)
        self.children.append(made)

        def known() -> bool:
            assert made.alive, made.log
            return made.name in self.group()["subscribers"]

        poll(known, DEADLINE_S, f"{made.name} has subscribed to {self.plan.name}")
        return made

    def pull(self) -> Callable[..., Any]:
        """A plain script that fetches; the answer calls its methods."""
        name = f"script-{self.number()}"
        session = self.call("subscribe", name)["session"]
        return lambda method, *args, **more: self.call(method, name, session, *args, **more)

    def raising(self) -> str:
        """A plain script whose callback only fails; its name."""
        name = f"script-{self.number()}"
        daemon = pyro_server.Daemon(host=HOST, port=0)
        self._daemons.append(daemon)
        threading.Thread(target=daemon.requestLoop, daemon=True).start()
        self.call("subscribe", name, str(daemon.register(RaisingCallback())))
        return name

    def _handle(self, message: Message) -> None:
        """What a message does to its handler is written in its headers."""
        fault, _, value = message.headers.get("fault", "").partition(":")
        if fault == "fail" and message.attempt <= int(value):
            raise ValueError(f"attempt {message.attempt} fails")
        if fault == "poison" and value not in self.healed:
            raise ValueError("poison")
        if fault == "gate":
            self.gates[value].wait(DEADLINE_S)
        time.sleep(SLOW_S if fault == "slow" else WORK_S)

    # What they do.

    def publish(self, partition: str | None = None, fault: str = "", **more: Any) -> None:
        """One message; its outcome is looked at later."""
        number = self.number()
        name = partition or f"k{self.random.randrange(self.plan.partitions)}"
        headers = {"fault": fault} if fault else None
        body = f"{self.plan.name}:{number}"
        self._receipts.append(self.publisher.publish(body, name, headers=headers, **more))

    def burst(self, count: int | None = None, partition: str | None = None) -> None:
        """Many messages without a fault."""
        for _ in range(count or self.random.randint(30, 80)):
            self.publish(partition)

    def spread(self, count: int) -> None:
        """Messages for partitions that nobody has handled yet, so that newcomers get some."""
        for _ in range(count):
            self.publish(f"new-{self.number()}")

    def confirm(self) -> None:
        """Wait until everything published so far is confirmed, and count it."""
        receipts, self._receipts = self._receipts, []
        for receipt in receipts:
            self.accepted += not receipt.result(DEADLINE_S).duplicate

    def call(self, method: str, *args: Any, **more: Any) -> Any:
        """A plain remote call of the channel."""
        uri = ChannelAddress(self.plan.name, self._name_server, 5.0).uri()
        with Proxy(uri) as proxy:
            proxy._pyroTimeout = 10.0
            return invoke(proxy, method, *args, **more)

    def groups(self) -> dict[str, dict[str, Any]]:
        """Every subscription in numbers."""
        found: dict[str, dict[str, Any]] = self.call("statistics")["subscriptions"]
        return found

    def group(self, subscription: str = DEFAULT) -> dict[str, Any]:
        """One subscription in numbers."""
        return self.groups()[subscription]

    def until(self, what: str, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Wait for something to be true of the default subscription."""
        seen: dict[str, Any] = {}

        def reached() -> bool:
            seen.update(self.group())
            return bool(condition(seen))

        try:
            poll(reached, DEADLINE_S, f"{what} on {self.plan.name}")
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.plan}; it shows {seen}") from None
        return seen

    def wait_parked(self, subscription: str, partition: str) -> None:
        """Wait until something of a partition is parked."""

        def reached() -> bool:
            rows = self.call("parked", subscription)
            return any(row["partition"] == partition for row in rows)

        poll(reached, DEADLINE_S, f"{partition} of {self.plan} is parked for {subscription}")

    def settled(self) -> None:
        """Wait until no subscription is owed anything; parked partitions are sent on meanwhile."""
        self.confirm()

        def reached() -> bool:
            seen.update(self.groups())
            for name in [name for name, group in seen.items() if group["parked_partitions"]]:
                self.call("redrive", name)
            return not any(group["backup"] for group in seen.values())

        seen: dict[str, Any] = {}
        try:
            poll(reached, DEADLINE_S, f"everything is settled on {self.plan.name}")
        except AssertionError as error:
            lines = {name: self.call("partitions", name) for name in seen}
            raise AssertionError(f"{error}; {self.plan}; {seen}; {lines}") from None

    # The course of a run.

    def begin(self) -> None:
        """Subscribers, some work, and the acts before the restart."""
        for _ in range(self.plan.subscribers):
            self.join()
        self.burst()
        self._play(self.plan.before)

    def under_way(self) -> None:
        """Work that the restart of the broker comes upon."""
        self.faults.append("broker restart")
        self.burst(150)

    def go_on(self) -> None:
        """What the restart interrupted is confirmed; then the acts after it, and the end."""
        self.confirm()
        self._play(self.plan.after)
        ENDINGS[self.plan.ending](self)
        self.confirm()
        self.faults.append(f"ended {self.plan.ending}")

    def _play(self, acts: list[str]) -> None:
        for name in acts:
            self.faults.append(name)
            ACTS[name](self)
            self.burst(20)

    def part_all(self) -> None:
        """Everybody inside this process leaves."""
        for worker in list(self.workers):
            self.part(worker)

    def facts(self) -> ChannelFacts:
        """What is known of the run while the broker still is there; the kinds come later."""
        groups = self.groups().values()
        return {
            "name": self.plan.name,
            "drained": not any(group["backup"] for group in groups),
            "published": self.accepted,
            "parked": sum(group["parked"] for group in groups),
            "faults": self.faults,
            "kinds": {},
        }

    def close(self) -> None:
        """End everything that was started here; the broker may be gone by now."""
        for gate in self.gates.values():
            gate.set()
        for child in self.children:
            child.kill9()
        self.publisher.close(2.0)
        for worker in self.workers:
            worker.close(1.0)
        for daemon in self._daemons:
            daemon.shutdown()


# The acts. Each leaves a channel on which all goes on; what it started may still be settling.


def handlers_fail(run: Run) -> None:
    """Handlers raise once or twice for some messages, and then take them."""
    for number in range(12):
        run.publish(fault=f"fail:{1 + number % 2}")
        run.burst(3)


def poison(run: Run) -> None:
    """A message always fails: it is parked and redriven or given up, or blocks until it is well."""
    number = run.number()
    partition = f"poison-{number}"
    run.burst(3, partition)
    run.publish(partition, f"poison:{number}")
    run.burst(5, partition)
    before = run.group()["nacked_total"]
    if run.plan.poison == "block":
        run.until("several failures", lambda group: group["nacked_total"] >= before + 5)
        run.healed.add(number)
        return
    drop = run.random.random() < 0.5
    run.faults[-1] += " (dropped)" if drop else " (redriven)"
    for name in run.groups():
        run.wait_parked(name, partition)
    if not drop:
        run.healed.add(number)
    for name in run.groups():
        run.call("redrive", name, "p", partition, drop)


def slow_handlers(run: Run) -> None:
    """Enough long delays that a subscriber is found slow and asked to hand back."""
    before = run.group()["slowed_total"]
    for _ in range(4 * run.plan.subscribers):
        run.publish(fault="slow")
        run.burst(4)
    run.until("a subscriber found slow", lambda group: group["slowed_total"] > before)


def joiner_shares(run: Run) -> None:
    """All work is in the hands of those who are stuck; one who joins gets some of it."""
    number = run.number()
    gate = run.gates[number] = threading.Event()
    run.settled()
    before = run.until("everybody is back", lambda group: not _away(group))
    shared = before["handover_total"].get("join", 0)

    def is_shared(group: dict[str, Any]) -> bool:
        return bool(group["handover_total"].get("join", 0) > shared)

    for line in range(6):
        partition = f"gate-{number}-{line}"
        run.publish(partition, f"gate:{number}")
        run.burst(10, partition)
    run.confirm()
    try:
        # Those who are there share first, if one of them has nothing to do.
        run.until("all is held", lambda group: not group["messages_ready"] or is_shared(group))
        run.join()
        run.until("work shared", is_shared)
    finally:
        gate.set()


def _away(group: dict[str, Any]) -> bool:
    return any(subscriber["away"] for subscriber in group["subscribers"].values())


def process_killed(run: Run) -> None:
    """A subscriber's process is killed while its handler runs."""
    child = run.child(sleep_s=0.02)

    def started() -> bool:
        run.spread(10)
        return bool(child.lines("start"))

    poll(started, DEADLINE_S, f"{child.name} handles something")
    child.kill9()


def callback_raises(run: Run) -> None:
    """A plain script refuses what it is sent, until it counts as crashed."""
    name = run.raising()

    def gone() -> bool:
        run.spread(10)
        return name not in run.group()["subscribers"]

    poll(gone, DEADLINE_S, f"{name} is given up")


def script_vanishes(run: Run) -> None:
    """A plain script fetches and is never heard of again; its lease finds it out."""
    _fetch(run, run.pull())


def stale_ack(run: Run) -> None:
    """A plain script nacks a message and then acknowledges the assignment that has ended."""
    script = run.pull()
    first = _fetch(run, script)[0]
    script("nack", first["epoch"], first["position"], "not now")
    assert script("ack", first["epoch"], first["position"])["stale"] == [first["epoch"]]
    script("leave")


def _fetch(run: Run, script: Callable[..., Any]) -> list[dict[str, Any]]:
    def fetched() -> Any:
        run.spread(20)
        return script("fetch", 20, 0.05)["messages"]

    found: list[dict[str, Any]] = poll(fetched, DEADLINE_S, f"messages for {run.plan.name}")
    return found


def leave_and_join(run: Run) -> None:
    """One leaves in the middle of its work, another comes."""
    run.burst()
    run.part(run.workers[0])
    run.join()
    run.burst()


def session_replaced(run: Run) -> None:
    """A second subscriber with the same id takes over from the first."""
    run.burst()
    first = run.workers[0]
    run.join(first.subscriber)
    run.burst()
    run.part(first)


def queues_crash(run: Run) -> None:
    """The queues are lost and restored from the backup."""
    run.burst()
    run.call("kill_queues", 0.1)
    run.burst()
    run.until("the queues are back", lambda group: not run.call("statistics")["queues_down"])


def publisher_reopened(run: Run) -> None:
    """The publisher is closed and opened again under its id."""
    run.burst()
    run.confirm()
    run.publisher.close()
    run.publisher = run.open_publisher()
    run.burst()


def publisher_fenced(run: Run) -> None:
    """Two publishers with one id: the older one may not go on."""
    run.burst()
    run.confirm()
    older, run.publisher = run.publisher, run.open_publisher()
    refused = older.publish("too late", "k0").error(DEADLINE_S)
    assert refused is not None and refused.code == "publisher-fenced", refused
    older.close(2.0)
    run.burst()


def refused_for_good(run: Run) -> None:
    """A message for which the channel will never have room; the next one gets its sequence."""
    partition = f"k{run.random.randrange(run.plan.partitions)}"
    refused = run.publisher.publish(bytes(300_000), partition).error(DEADLINE_S)
    assert refused is not None and refused.code == "channel-full", refused
    run.burst(5, partition)


def resent(run: Run) -> None:
    """What was accepted is sent again under the same sequences."""
    partition = f"again-{run.number()}"
    run.burst(5, partition)
    run.confirm()
    answer = run.call("publish", "p", partition, ["again"] * 5, 1)
    assert (answer["accepted"], answer["duplicates"]) == (0, 5), answer


def known_ids(run: Run) -> None:
    """Ids that users chose come twice, in one call and in another one."""
    run.confirm()
    ids = [f"{run.plan.name}-{run.number()}" for _ in range(10)]
    before = run.accepted
    for chosen in [*ids, *ids[:5]]:
        run.publish(id=chosen)
    run.confirm()
    for chosen in ids:
        run.publish(id=chosen)
    run.confirm()
    assert run.accepted == before + 10, (run.accepted, before)


def late_messages(run: Run) -> None:
    """Messages are older than what was handed out before them."""
    before = run.group()["late_total"]
    partition = f"late-{run.number()}"
    run.burst(5, partition)
    run.settled()
    for age_s in (100.0, 50.0, 200.0):
        run.publish(partition, timestamp=time.time() - age_s)
    run.burst(3, partition)
    run.until("late messages", lambda group: group["late_total"] >= before + 3)


def urgent_messages(run: Run) -> None:
    """Some messages are urgent."""
    for _ in range(30):
        run.publish(priority=run.random.choice((0, 1, 5, 9)))


def second_subscription(run: Run) -> None:
    """A group is made in mid-run and gets everything from then on."""
    name = f"group-{run.number()}"
    run.burst()
    run.call("create_subscription", name)
    run.burst()
    run.join(subscription=name)


def subscription_made_anew(run: Run) -> None:
    """A group is deleted and made again under its name, once drained and once owed messages."""
    name = f"group-{run.number()}"
    run.call("create_subscription", name)
    for owed in (0, 30):
        worker = run.join(subscription=name)
        run.burst()
        run.settled()
        run.part(worker)
        run.burst(owed) if owed else None
        run.confirm()
        assert run.call("delete_subscription", name)["dropped"] >= owed
        run.call("create_subscription", name)
    run.burst()
    run.join(subscription=name)


ACTS: dict[str, Callable[[Run], None]] = {
    "handlers fail": handlers_fail, "poison": poison, "slow handlers": slow_handlers,
    "joiner shares": joiner_shares, "process killed": process_killed,
    "callback raises": callback_raises, "script vanishes": script_vanishes,
    "stale ack": stale_ack, "leave and join": leave_and_join,
    "session replaced": session_replaced, "queues crash": queues_crash,
    "publisher reopened": publisher_reopened, "publisher fenced": publisher_fenced,
    "refused for good": refused_for_good, "resent": resent, "known ids": known_ids,
    "late messages": late_messages,
    "urgent messages": urgent_messages, "second subscription": second_subscription,
    "subscription made anew": subscription_made_anew,
}  # fmt: skip

#: The acts whose end only a lease may find out.
NEED_LEASE = ("script vanishes", "process killed")


# The ends.


def drained(run: Run) -> None:
    """Everything is settled, and nothing is parked."""
    run.settled()
    for name, group in run.groups().items():
        if group["parked"]:
            run.call("redrive", name)
    run.settled()
    run.part_all()


def waiting(run: Run) -> None:
    """Nobody is left, and messages wait."""
    run.settled()
    run.part_all()
    run.burst(25)


def fetched(run: Run) -> None:
    """A plain script holds messages when the broker ends."""
    run.settled()
    run.part_all()
    _fetch(run, run.pull())


def held(run: Run) -> None:
    """A process is in the middle of a message when the broker ends, and is killed after it."""
    run.settled()
    run.part_all()
    child = run.child(hold={"1": "never opened"})
    run.burst(25)
    poll(lambda: child.lines("start"), DEADLINE_S, f"{child.name} has begun")


def parked(run: Run) -> None:
    """Everything is settled but one message, which is parked and stays so in each subscription."""
    run.settled()
    for name in run.groups():
        run.call("redrive", name, drop=True)
    partition = f"poison-{run.number()}"
    run.publish(partition, "poison:never")
    for name in run.groups():
        run.wait_parked(name, partition)
    run.settled()
    run.part_all()


ENDINGS: dict[str, Callable[[Run], None]] = {
    "drained": drained, "waiting": waiting, "fetched": fetched, "held": held, "parked": parked,
}  # fmt: skip


# All of them.


@dataclass
class Theatre:
    """The broker, and the runs on it."""

    directory: Path
    histories: str | None
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.store = self.directory / "fairlead.db"
        self.runs: list[Run] = []
        self._start()

    def _start(self) -> None:
        self.service = Service(
            Settings(
                store=str(self.store), name_server_port=self.port, tick_s=0.02, clients_max=512,
                fault_injection=True,
            )
        ).start()  # fmt: skip

    def play(self, wanted: list[Plan]) -> list[ChannelFacts]:
        """The whole course of all runs at once; the broker is closed at the end."""
        for plan in wanted:
            self.service.create_channel(plan.name, plan.policy())
        address = f"{HOST}:{self.port}"
        with ThreadPoolExecutor(len(wanted)) as pool:

            def each(step: Callable[[Run], Any]) -> list[Any]:
                return list(pool.map(step, self.runs))

            try:
                made = lambda plan: Run(plan, address, self.directory, self.histories)  # noqa: E731
                self.runs = list(pool.map(made, wanted))
                each(Run.begin)
                each(Run.under_way)
                self.service.close()
                self._start()
                each(Run.go_on)
                return each(Run.facts)
            finally:
                failure = self.service.failure
                self.service.close()
                each(Run.close)
                assert failure is None, failure


def kinds_of(store: Path) -> dict[str, dict[str, int]]:
    """How many records of each kind each channel of a store has."""
    found: dict[str, dict[str, int]] = {}
    query = "SELECT channel, kind, count(*) FROM records GROUP BY 1, 2 ORDER BY 1, 2"
    with closing(sqlite3.connect(store)) as connection:
        for channel, kind, count in connection.execute(query):
            found.setdefault(channel, {})[kind] = count
    return found


def accepted_of(store: Path) -> dict[str, int]:
    """How many messages each channel's journal has taken in, without those dropped by their ids."""
    found: dict[str, int] = {}
    query = "SELECT channel, count, runs FROM records WHERE kind = 'Published'"
    with closing(sqlite3.connect(store)) as connection:
        for channel, count, runs in connection.execute(query):
            dropped = msgpack.unpackb(runs, strict_map_key=False)["dropped"]
            found[channel] = found.get(channel, 0) + count - len(dropped)
    return found


def make(directory: Path, seed: int = 1, histories: str | None = None) -> FaultyStore:
    """Run everything; fails unless every durable kind of record occurs in the store, and unless
    each journal has taken in as many messages as its publishers were told.

    ``histories``: a folder for the clients' own histories; None: they keep none.
    """
    theatre = Theatre(Path(directory), histories)
    channels = theatre.play(plans(seed))
    kinds = kinds_of(theatre.store)
    for facts in channels:
        facts["kinds"] = kinds[facts["name"]]
    told = {facts["name"]: facts["published"] for facts in channels}
    accepted = accepted_of(theatre.store)
    assert accepted == told, {name: (accepted[name], told[name]) for name in told}
    missing = DURABLE - {kind for found in kinds.values() for kind in found}
    assert not missing, f"no channel has a record of kind {', '.join(sorted(missing))}"
    return FaultyStore(theatre.store, channels)


def _lines(made: FaultyStore) -> Iterator[str]:
    for facts in made.channels:
        state = "drained" if facts["drained"] else "open"
        yield f"{facts['name']}: {facts['published']} published, {facts['parked']} parked, {state}"
        yield f"  faults: {', '.join(facts['faults'])}"
        yield "  kinds:  " + ", ".join(f"{kind} {n}" for kind, n in facts["kinds"].items())


def main() -> None:
    """The command line: makes the store in a folder, with what is known of it as JSON beside it."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.faulty_runs", description=__doc__)
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--histories", metavar="DIR")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=options.directory / "faulty_runs.log", level=logging.INFO)
    began = time.monotonic()
    made = make(options.directory, options.seed, options.histories)
    (options.directory / "channels.json").write_text(json.dumps(made.channels, indent=2))
    print("\n".join(_lines(made)))
    print(f"{made.store}: {len(made.channels)} channels in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
