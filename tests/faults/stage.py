"""The stage of a fault test: one broker, its children, what they saw. Nothing here judges a broker.

``Stage`` starts and ends the processes, each by its own pid; ``Child`` is one of them;
``InProcess`` is a well-behaved subscriber inside the test. Both tell what they saw as ``Seen``, on
one clock (CLOCK_MONOTONIC is the same for all processes of a machine).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Callable, Iterable, NamedTuple

from broker.core.records import Acked, Parked, Record
from broker.journal.sqlite import SqliteJournal
from broker.pyro_setup import Proxy, invoke
from broker.remote.lookup import ChannelAddress, parse_address
from broker.remote.name_server import NameServer
from publisher import Publisher
from subscriber import Message, Subscriber
from tests.processes import BrokerProcess, environment, poll

DEADLINE_S = 15.0
CHANNEL = "orders"

Key = tuple[str, str]


class Seen(NamedTuple):
    """One run of a handler, as the one who ran it saw it. ``finish`` is None if it never ended."""

    who: str
    publisher: str
    partition: str
    sequence: int
    position: int
    attempt: int
    epoch: int
    start: float
    finish: float | None
    body: Any

    @property
    def key(self) -> Key:
        """(publisher, partition)"""
        return (self.publisher, self.partition)


class Child:
    """A process of ``tests.faults.workers``."""

    def __init__(self, kind: str, directory: Path, settings: dict[str, Any]) -> None:
        self.name = str(settings["name"])
        self.record = directory / f"{self.name}.{kind}.{time.monotonic_ns()}"
        file = self.record.with_suffix(".json")
        file.write_text(json.dumps({**settings, "record": str(self.record)}))
        with open(self.record.with_suffix(".log"), "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.workers", kind, str(file)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(),
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to this process only."""
        os.kill(self.process.pid, number)

    def kill9(self) -> None:
        """End it at once."""
        if self.alive:
            self.process.kill()
        self.process.wait()

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait for its own end; the exit code."""
        return self.process.wait(deadline_s)

    @property
    def log(self) -> str:
        """What it wrote to stderr."""
        return self.record.with_suffix(".log").read_text(errors="replace")

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """What it noted so far; a line that is half written is left out."""
        if not self.record.exists():
            return []
        whole = self.record.read_bytes().rpartition(b"\n")[0].splitlines()
        notes = [json.loads(line) for line in whole]
        return [note for note in notes if event in (None, note["event"])]

    def seen(self) -> list[Seen]:
        """Its handler's runs, in the order of their starts."""
        runs: list[Seen] = []
        open_runs: dict[tuple[Any, ...], int] = {}
        for note in self.lines():
            if note["event"] not in ("start", "finish"):
                continue
            facts = [note[name] for name in Seen._fields[1:7]]
            if note["event"] == "start":
                open_runs[tuple(facts)] = len(runs)
                runs.append(Seen._make([self.name, *facts, note["at"], None, note["body"]]))
            else:
                at = open_runs.pop(tuple(facts))
                runs[at] = runs[at]._replace(finish=note["at"])
        return runs


class InProcess:
    """A well-behaved subscriber in the test's own process."""

    def __init__(
        self,
        name: str,
        channel: str,
        name_server: str,
        handle: Callable[[Message], None] | None = None,
        **options: Any,
    ) -> None:
        self.name = name
        self._seen: list[Seen] = []
        self._lock = threading.Lock()
        self.subscriber = Subscriber(name, channel, name_server=name_server, **options)

        @self.subscriber.handler
        def run(message: Message) -> None:
            start = time.monotonic()
            facts = (
                message.publisher, message.partition, message.sequence, message.position,
                message.attempt, message.epoch,
            )  # fmt: skip
            with self._lock:
                at = len(self._seen)
                self._seen.append(Seen(name, *facts, start, None, message.body))
            if handle is not None:
                handle(message)
            with self._lock:
                self._seen[at] = self._seen[at]._replace(finish=time.monotonic())

        self.subscriber.start()

    def seen(self) -> list[Seen]:
        """Its handler's runs, in the order of their starts."""
        with self._lock:
            return list(self._seen)

    def close(self) -> None:
        """Leave cleanly."""
        self.subscriber.close()


class Stage:
    """A broker of the test's own with everything that is started around it."""

    def __init__(self, directory: Path, *args: object, name_server: str | None = None) -> None:
        self.directory = directory
        self.gates: set[Path] = set()
        self._members: list[Child | InProcess] = []
        self._publishers: list[Publisher] = []
        self.broker = BrokerProcess(directory, *args, name_server=name_server)
        self.name_server = self.broker.name_server

    # Who plays.

    def create(self, channel: str = CHANNEL, **policy: Any) -> None:
        """Make a channel with the given limits and times."""
        self.call_broker("create_channel", channel, policy)

    def publisher(self, name: str = "p", channel: str = CHANNEL, **options: Any) -> Publisher:
        """A publisher in this process; it is closed with the stage."""
        made = Publisher(name, channel, name_server=self.name_server, **options)
        self._publishers.append(made)
        return made

    def subscriber(
        self,
        name: str,
        channel: str = CHANNEL,
        handle: Callable[[Message], None] | None = None,
        **options: Any,
    ) -> InProcess:
        """A subscriber in this process."""
        made = InProcess(name, channel, self.name_server, handle, **options)
        self._members.append(made)
        return made

    def child(self, kind: str, name: str, channel: str = CHANNEL, **settings: Any) -> Child:
        """A child process; it is up to the caller to wait for what it does."""
        settings |= {"name": name, "channel": channel, "name_server": self.name_server}
        made = Child(kind, self.directory, settings)
        self._members.append(made)
        return made

    def joined(self, child: Child, channel: str = CHANNEL) -> Child:
        """Wait until a child's subscription is known to the broker."""

        def known() -> bool:
            assert child.alive, child.log
            return child.name in self.group(channel)["subscribers"]

        poll(known, DEADLINE_S, f"{child.name} has subscribed")
        return child

    def gate(self, name: str) -> Path:
        """A file that handlers wait for; it exists once the gate is opened."""
        path = self.directory / f"gate-{name}"
        self.gates.add(path)
        return path

    # What the broker says.

    def call(self, method: str, *args: Any, channel: str = CHANNEL, **keywords: Any) -> Any:
        """A plain remote call of a channel."""
        return self._invoke(ChannelAddress(channel, self.name_server, 5.0).uri(), method, *args,
                            **keywords)  # fmt: skip

    def call_broker(self, method: str, *args: Any) -> Any:
        """A plain remote call of the broker object."""
        names = NameServer(*parse_address(self.name_server))
        return self._invoke(names.lookup("fairlead.broker"), method, *args)

    def _invoke(self, uri: str, method: str, *args: Any, **keywords: Any) -> Any:
        with Proxy(uri) as proxy:
            proxy._pyroTimeout = 10.0
            return invoke(proxy, method, *args, **keywords)

    def statistics(self, channel: str = CHANNEL) -> dict[str, Any]:
        """The channel in numbers."""
        found: dict[str, Any] = self.call("statistics", channel=channel)
        return found

    def group(self, channel: str = CHANNEL) -> dict[str, Any]:
        """The default subscription in numbers."""
        found: dict[str, Any] = self.statistics(channel)["subscriptions"]["default"]
        return found

    def until(
        self, channel: str = CHANNEL, deadline_s: float = DEADLINE_S, **wanted: Any
    ) -> dict[str, Any]:
        """Wait until the default subscription shows these numbers."""

        def reached() -> dict[str, Any] | None:
            group = self.group(channel)
            shown.update({name: group[name] for name in wanted})
            return group if shown == wanted else None

        shown: dict[str, Any] = {}
        try:
            return poll(reached, deadline_s, f"{wanted} of channel {channel}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it shows {shown}") from None

    def settled(self, count: int, channel: str = CHANNEL, deadline_s: float = DEADLINE_S) -> Any:
        """Wait until so many are acknowledged and nothing is owed."""
        return self.until(channel, deadline_s, acked_total=count, backup=0)

    def journal(self, channel: str = CHANNEL) -> list[Record]:
        """Stop the broker and read what it has written."""
        self.leave()
        assert self.broker.stop() == 0, self.broker.tail()
        journal = SqliteJournal(str(self.broker.store))
        try:
            return [record for _, record in journal.read(channel)]
        finally:
            journal.close()

    # The end.

    def leave(self) -> None:
        """Let everybody who runs inside the test go, and end the children."""
        for gate in self.gates:
            gate.touch()
        for publisher in self._publishers:
            publisher.close(2.0)
        for member in self._members:
            if isinstance(member, InProcess):
                member.close()
            elif member.alive:
                member.signal(signal.SIGCONT)
                member.kill9()
        self._members.clear()
        self._publishers.clear()

    def close(self) -> None:
        """End everything that was started here."""
        try:
            self.leave()
        finally:
            self.broker.kill9()


# What was really seen.


def runs_of(*members: Child | InProcess) -> list[Seen]:
    """Everything that these subscribers saw, by the time of the start."""
    return sorted((run for member in members for run in member.seen()), key=lambda run: run.start)


def by_key(runs: Iterable[Seen]) -> dict[Key, list[Seen]]:
    """The runs of each partition."""
    found: dict[Key, list[Seen]] = defaultdict(list)
    for run in runs:
        found[run.key].append(run)
    return dict(found)


def sequences(runs: Iterable[Seen], partition: str | None = None) -> list[int]:
    """The sequences, in the order of the starts."""
    return [run.sequence for run in runs if partition in (None, run.partition)]


def whole(runs: Iterable[Seen], first: int = 1) -> dict[Key, int]:
    """Assert that each partition was handled once, in order, without overlap; its counts."""
    counts = {}
    for key, seen in by_key(runs).items():
        assert sequences(seen) == list(range(first, first + len(seen))), (key, sequences(seen))
        in_turn(seen)
        counts[key] = len(seen)
    return counts


def in_turn(runs: Iterable[Seen]) -> None:
    """Assert that no run of one partition began before the one before it had ended, and that its
    epochs never fall."""
    before: Seen | None = None
    for run in runs:
        if before is not None:
            assert before.finish is not None and before.finish <= run.start, (before, run)
            assert before.epoch <= run.epoch, (before, run)
        before = run


# What the journal tells.


def of_kind(records: list[Record], *kinds: type[Any]) -> list[Any]:
    """The records of some kinds, in order."""
    return [record for record in records if isinstance(record, kinds)]


def settled_once(records: list[Record]) -> None:
    """Assert that the journal settles every position of every partition once, in order."""
    done: dict[Any, int] = {}
    for record in of_kind(records, Acked, Parked):
        if isinstance(record, Parked):
            assert record.position == done.get(record.key, 0) + 1, record
            done[record.key] = record.position
            continue
        for key, first, count in zip(record.keys, record.firsts, record.counts):
            assert first == done.get(key, 0) + 1, (key, first, record)
            done[key] = first + count - 1
