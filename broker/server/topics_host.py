"""TopicsHost: the topics of a broker, under one lock. Only here is that lock taken.

The way of a request is that of a channel: decode (before), lock, decide, append, apply, unlock,
wait for the group commit, reply. One lock for all topics, since several are read as one line: the
stamps of what is accepted rise under it, and the journal commits in the order of the appends, so
what is durable is always a beginning of that line.

A ``get`` confirms what came with the one before, and waits only for the messages that it hands
out to be durable. What it confirms need not be: its client will say it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Any, Callable, Collection, Iterable, NamedTuple, Protocol

from broker.core.topics import Topic, TopicPolicy
from broker.core.topics import commands as c
from broker.core.topics.log import BODY, STAMP, Entry
from broker.core.topics.records import AnyRecord, Put, TopicRecord, TopicUnsubscribed
from broker.errors import (
    BrokerStopping,
    BrokerUnavailable,
    CallOvertaken,
    JournalError,
    LimitReached,
    RequestOvertaken,
    TopicNotFound,
)
from broker.journal import Journal
from broker.journal.bases import TOPIC_PREFIX, Base, is_topic, make_early_base
from broker.journal.recovery import recover_topic
from broker.server.clock import Clock

log = logging.getLogger("fairlead.topics")

COMMIT_TIMEOUT_S = 20.0
TOPIC_COUNT_MAX = 10_000
#: A topic's journal is trimmed when so many of its records, or bytes, are of no use any more.
RELEASE_RECORDS = 2_000
RELEASE_BYTES = 16 << 20
#: How often topics are looked at for that.
RELEASE_INTERVAL_S = 1.0


class Got(NamedTuple):
    """A message as it is handed out."""

    topic: str
    ticket: int
    position: int
    entry: Entry


class Looked(NamedTuple):
    """What a get has found, where each topic stands, and the records that must be durable first."""

    found: list[Got]
    told: dict[str, dict[str, Any]]
    needed: list[tuple[Held, int]]


class Trim(NamedTuple):
    """A base, still without its checksum, that counts when record ``upto`` is durable."""

    held: Held
    base: Base
    upto: int
    released: int


class Waiter(Protocol):
    """Somebody who waits for messages: a lock that is held until there may be some."""

    def release(self) -> None:
        """There may be some."""
        ...


class Held:
    """A topic with its place in the journal. ``marks`` are (last position, record, bytes) of each
    record with messages that are not released."""

    def __init__(self, topic: Topic, sequence: int) -> None:
        self.topic = topic
        self.name = TOPIC_PREFIX + topic.name
        self.sequence = sequence
        self.base = 0  # the record that the journal starts after
        self.marks: deque[tuple[int, int, int]] = deque()
        self.released_bytes = 0  # since the last trim
        self.waiters: list[Waiter] = []
        #: Client -> its state directory, and the order of its newest put.
        self._orders: dict[str, tuple[str, tuple[int, int]]] = {}
        #: Client -> its state directory, and its newest request, also one that changed nothing.
        self._requests: dict[str, tuple[str, int]] = {}

    def refuse_overtaken(self, client: str, instance: str, order: tuple[int, int]) -> None:
        """A copy of a put that got stuck on its way must not be done after a newer one.

        The client has been told of a refusal, say, and given the number to another message. Not
        kept over a restart: the connections of before do not outlive it.
        """
        # A directory that has taken the id over counts from 1 again; nobody else may move it.
        self.topic.known(client, instance)
        self._refuse_many(self._orders, client)
        newest_instance, newest = self._orders.get(client, (instance, (0, 0)))
        if instance == newest_instance and order <= newest:
            raise CallOvertaken(
                f"a put of client {client} to topic {self.topic.name} came after a newer one and "
                "was not done; send it again"
            )
        self._orders[client] = (instance, order)

    def refuse_late_request(self, command: c.Subscribe | c.Unsubscribe) -> None:
        """The same for requests: one that changed nothing has left no record to tell it by."""
        client, instance, request = command.client, command.instance, command.request
        if request is None:
            return
        self.topic.known(client, instance)
        self._refuse_many(self._requests, client)
        newest_instance, newest = self._requests.get(client, (instance, 0))
        if instance == newest_instance and request < newest:
            raise RequestOvertaken(
                f"request {request} of client {client} about its subscription to topic "
                f"{self.topic.name} came too late: number {newest} came before it",
                request=newest,
            )
        self._requests[client] = (instance, request)

    def _refuse_many(self, book: Collection[str], client: str) -> None:
        """Also who is only refused, and so no client of the topic, is remembered here."""
        limit = self.topic.policy.client_count_max
        if client not in book and len(book) >= limit:
            raise LimitReached(
                f"client {client} cannot use topic {self.topic.name}: calls of {limit} clients are "
                "remembered since the broker was started, which is its limit (client_count_max)"
            )

    def note(self, sequence: int, record: AnyRecord) -> None:
        """Remember where messages are in the journal."""
        if isinstance(record, Put):
            last = record.position + len(record.bodies) - 1
            self.marks.append((last, sequence, sum(map(len, record.bodies))))

    def forget(self) -> None:
        """Drop the marks of what is released."""
        marks, first = self.marks, self.topic.log.first
        while marks and marks[0][0] < first:
            self.released_bytes += marks.popleft()[2]

    def record_of(self, position: int, durable: int) -> int:
        """The record in which a message is, if that is not durable yet; else 0."""
        found = 0
        for last, sequence, _ in reversed(self.marks):
            if last < position or sequence <= durable:
                break
            found = sequence
        return found

    def wake(self) -> None:
        """Let whoever waits look again."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            try:
                waiter.release()
            except RuntimeError:
                pass  # it waits for several topics, and another one has woken it

    @property
    def cut(self) -> int:
        """The last record before the first one with a message that somebody is owed."""
        return self.marks[0][1] - 1 if self.marks else self.sequence


class TopicsHost:
    """All topics of this broker."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
        *,
        policy: TopicPolicy | None = None,
        release: bool = True,
        remember_s: float = 7 * 86_400.0,
    ) -> None:
        self.policy = policy or TopicPolicy()
        self.on_created: Callable[[str], None] = lambda name: None
        self.on_dropped: Callable[[str], None] = lambda name: None
        self._journal = journal
        self._clock = clock
        self._on_failure = on_failure
        self._release = release
        self._remember_ms = int(remember_s * 1000)
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._dropping: set[str] = set()  # topics whose journals are being removed
        self._stamp = 0
        self._closed = False
        self._releasing = threading.Lock()

    def recover(self) -> None:
        """Take up every topic that the journal knows.

        Stamps go on from the newest one, or from the clock: a topic that was removed has had some
        that no journal knows any more, and one that is made anew must be told from it.
        """
        self._stamp = self._clock.now_us()
        for name in self._journal.channels():
            if is_topic(name):
                held = self._recovered(name)
                held.base = self._journal.base(name).sequence
                held.forget()
                self._held[held.topic.name] = held
                self._stamp = max(self._stamp, held.topic.stamp)

    def _recovered(self, name: str) -> Held:
        notes: list[tuple[int, AnyRecord]] = []
        topic, sequence = recover_topic(self._journal, name, lambda *noted: notes.append(noted))
        held = Held(topic, sequence)
        for noted in notes:
            held.note(*noted)
        return held

    def topics(self) -> list[str]:
        """Their names, in order of creation."""
        with self._lock:
            return list(self._held)

    # The way of a request.

    def create(self, name: str) -> dict[str, Any]:
        """Make a topic; finding it made already is fine."""
        with self._lock:
            self._refuse_closed()
            held, new = self._open(name)
            sequence = held.sequence
        self._confirm(held, sequence)
        if new:
            self.on_created(name)
        return {"name": name, "created": new}

    def _open(self, name: str) -> tuple[Held, bool]:
        held = self._held.get(name)
        if held is not None:
            return held, False
        if len(self._held) >= TOPIC_COUNT_MAX:
            raise LimitReached(
                f"topic {name} cannot be made: this broker has {TOPIC_COUNT_MAX} topics, which is "
                "its limit; topics that nobody is subscribed to are removed after a while"
            )
        if name in self._dropping:
            raise BrokerUnavailable(
                f"topic {name} is being removed, since nobody had used it for long; try again"
            )
        held = Held(Topic(name, self.policy), 0)
        self._held[name] = held
        birth = Topic.birth(name, self.policy, self._stamp + 1, self._clock.now_ms())
        self._take_in(held, birth)
        return held, True

    def execute(
        self,
        name: str,
        command: c.TopicCommand,
        create: bool = False,
        order: tuple[int, int] | None = None,
    ) -> tuple[dict[str, Any], Held, int]:
        """Decide and apply; the reply counts once the returned record is durable.

        ``order`` rises with each call that a client sends.
        """
        new = False
        with self._lock:
            self._refuse_closed()
            if create:
                held, new = self._open(name)
            else:
                held = self._find(name)
            if isinstance(command, (c.Subscribe, c.Unsubscribe)):
                held.refuse_late_request(command)
            if order is not None:
                held.refuse_overtaken(command.client, command.instance, order)
            reply = self._execute(held, command)
            sequence = held.sequence
        if new:
            self.on_created(name)
        return reply, held, sequence

    def settle(
        self,
        name: str,
        command: c.TopicCommand,
        create: bool = False,
        order: tuple[int, int] | None = None,
    ) -> dict[str, Any]:
        """Execute, and return the reply when it is durable."""
        reply, held, sequence = self.execute(name, command, create, order)
        self._confirm(held, sequence)
        return reply

    def _execute(self, held: Held, command: c.TopicCommand) -> dict[str, Any]:
        if isinstance(command, c.PutMessages):
            command.stamp = self._stamp + 1
        elif isinstance(command, c.Subscribe):
            command.ticket = self._stamp + 1
        decision = held.topic.decide(command, self._clock.now_ms())
        if decision.records:
            self._take_in(held, decision.records)
        return decision.reply

    def _take_in(self, held: Held, records: list[TopicRecord]) -> None:
        topic = held.topic
        held.sequence = self._journal.append(held.name, held.sequence + 1, records)
        try:
            for record in records:
                topic.apply(record)
                held.note(held.sequence, record)
            self._stamp = max(self._stamp, topic.stamp)
            held.forget()
        except BaseException as error:
            # The journal has it and the state has not: only a recovery can put that right.
            self._closed = True
            self._on_failure(error)
            raise
        if any(isinstance(record, (Put, TopicUnsubscribed)) for record in records):
            held.wake()

    def _find(self, name: str) -> Held:
        held = self._held.get(name)
        if held is None:
            raise TopicNotFound(
                f"there is no topic {name}: nobody has subscribed to it or put something into it "
                "for a while; subscribe to it, and it is made"
            )
        return held

    def _refuse_closed(self) -> None:
        if self._closed:
            raise BrokerStopping("the broker is stopping; try again when it is back")

    def _confirm(self, held: Held, sequence: int) -> None:
        if not self._journal.wait_durable(held.name, sequence, COMMIT_TIMEOUT_S):
            raise BrokerUnavailable(
                f"topic {held.topic.name}: the journal did not confirm record {sequence} within "
                f"{COMMIT_TIMEOUT_S:.0f} s; the outcome is unknown, repeat the same request"
            )

    # Getting.

    def get(
        self, asked: dict[str, c.Confirm], count_max: int, bytes_max: int, wait_s: float
    ) -> tuple[list[Got], dict[str, dict[str, Any]]]:
        """The next messages of one topic or of several read as one, and where each topic stands.

        ``asked`` has what the client has of each; that is confirmed first.
        """
        deadline = time.monotonic() + wait_s
        while True:
            left = deadline - time.monotonic()
            signal = None
            if left > 0:
                signal = threading.Lock()
                signal.acquire()
            looked = self.look(asked, count_max, bytes_max, signal)
            if looked.found or signal is None:
                for held, sequence in looked.needed:
                    self._confirm(held, sequence)
                return looked.found, looked.told
            signal.acquire(timeout=left)
            self.leave(asked, signal)

    def look(
        self,
        asked: dict[str, c.Confirm],
        count_max: int,
        bytes_max: int,
        waiter: Waiter | None = None,
    ) -> Looked:
        """What a get does without waiting; if it finds nothing, ``waiter`` is told of the next."""
        with self._lock:
            self._refuse_closed()
            helds = [self._find(name) for name in asked]
            # Of several all are looked at before any is changed: an error changes nothing.
            for held in helds if len(helds) > 1 else ():
                held.topic.decide(asked[held.topic.name], self._clock.now_ms())
            told = {held.topic.name: self._execute(held, asked[held.topic.name]) for held in helds}
            found = self._next(told, count_max, bytes_max)
            last = {item.topic: item.position for item in found}
            needed = [self._record_of(name, position) for name, position in last.items()]
            if not found and waiter is not None:
                for held in helds:
                    held.waiters.append(waiter)
        return Looked(found, told, [item for item in needed if item[1]])

    def leave(self, asked: Iterable[str], waiter: Waiter) -> None:
        """Wait no more."""
        with self._lock:
            for held in [self._held[name] for name in asked if name in self._held]:
                if waiter in held.waiters:
                    held.waiters.remove(waiter)

    def _record_of(self, name: str, position: int) -> tuple[Held, int]:
        held = self._held[name]
        return held, held.record_of(position, self._journal.durable(held.name))

    def _next(
        self, told: dict[str, dict[str, Any]], count_max: int, bytes_max: int
    ) -> list[Got]:
        if len(told) == 1:
            ((name, reply),) = told.items()
            start = reply["position"]
            entries = self._held[name].topic.log.after(start, count_max, bytes_max)
            return [
                Got(name, reply["ticket"], position, entry)
                for position, entry in enumerate(entries, start + 1)
            ]
        return self._merged(told, count_max, bytes_max)

    def _merged(
        self, told: dict[str, dict[str, Any]], count_max: int, bytes_max: int
    ) -> list[Got]:
        """Several topics in the order of their stamps."""
        heads: list[tuple[int, str, int]] = []
        for name, reply in told.items():
            stamps = self._held[name].topic.log.stamps_after(reply["position"], 1)
            if stamps:
                heads.append((stamps[0], name, reply["position"] + 1))
        heapify(heads)
        found: list[Got] = []
        size = 0
        while heads and len(found) < count_max:
            _, name, position = heappop(heads)
            entries = self._held[name].topic.log.after(position - 1, 2, 1 << 62)
            size += len(entries[0][BODY])
            if found and size > bytes_max:
                break
            found.append(Got(name, told[name]["ticket"], position, entries[0]))
            if len(entries) > 1:
                heappush(heads, (entries[1][STAMP], name, position + 1))
        return found

    def subscriptions(self, client: str) -> dict[str, int]:
        """The topics that a client is subscribed to, and what it has confirmed of each."""
        with self._lock:
            return {
                name: held.topic.places[client].confirmed
                for name, held in self._held.items()
                if client in held.topic.places
            }

    # Releasing.

    def tick(self) -> None:
        """Trim what is of no use any more, and remove topics that nobody will miss."""
        if not self._release or not self._releasing.acquire(blocking=False):
            return
        try:
            for held in self.sweep():
                self._trim(held)
        finally:
            self._releasing.release()

    def sweep(self) -> list[Held]:
        """Remove topics that nobody will miss; returns those whose journals are to be trimmed."""
        now_ms = self._clock.now_ms()
        with self._lock:
            wanted = [held for held in self._held.values() if self._is_due(held)]
            forgotten = [held for held in self._held.values() if self._is_over(held, now_ms)]
        for held in forgotten:
            self._drop(held)
        return wanted

    def _is_due(self, held: Held) -> bool:
        count = held.cut - held.base
        # A state is written each time: the larger it is, the more must be gained by it.
        topic = held.topic
        worth = max(RELEASE_RECORDS, (len(topic.places) + len(topic.clients)) // 4)
        return count >= worth or (held.released_bytes >= RELEASE_BYTES and count > 0)

    def _is_over(self, held: Held, now_ms: int) -> bool:
        topic = held.topic
        return topic.released and topic.touched_ms + self._remember_ms <= now_ms

    def _trim(self, held: Held) -> None:
        """Write a base, and delete what is before it. Without the lock but for the state."""
        trim = self.begin_trim(held)
        if trim is None:
            return
        try:
            self._confirm(held, trim.upto)
            self.end_trim(trim)
        except JournalError as error:
            # It is only put off. If the store is at fault, its writer finds out and stops us.
            held.released_bytes += trim.released
            log.warning("topic %s is not trimmed: %s", held.topic.name, error)

    def begin_trim(self, held: Held) -> Trim | None:
        """What is to be trimmed, once the state that is put in its place is durable."""
        with self._lock:
            if self._closed or self._held.get(held.topic.name) is not held:
                return None
            base = make_early_base(held.topic, held.cut, 0, held.sequence)
            released, held.released_bytes = held.released_bytes, 0
            return Trim(held, base, held.sequence, released)

    def end_trim(self, trim: Trim) -> None:
        """Put the state in the place of what is before it."""
        held, cut = trim.held, trim.base.sequence
        checksum = self._journal.checksum(held.name, cut)
        count = self._journal.trim(held.name, trim.base._replace(checksum=checksum))
        held.base = cut
        log.info("topic %s: %d records released up to %d", held.topic.name, count, cut)

    def _drop(self, held: Held) -> None:
        name = held.topic.name
        with self._lock:
            if self._held.get(name) is not held or not self._is_over(held, self._clock.now_ms()):
                return
            del self._held[name]
            self._dropping.add(name)
            held.wake()
        try:
            self.on_dropped(name)
            self._journal.drop(held.name)
        finally:
            with self._lock:
                self._dropping.discard(name)
        log.info("topic %s removed: nobody is subscribed, and all is forgotten", name)

    # Looking.

    def overview(self) -> list[dict[str, Any]]:
        """All topics in numbers."""
        found = []
        for name in self.topics():
            try:
                found.append(self.statistics(name))
            except TopicNotFound:
                pass  # removed since
        return found

    def statistics(self, name: str, clients: int = 0) -> dict[str, Any]:
        """One topic in numbers; with ``clients`` up to so many of its subscribers."""
        with self._lock:
            held = self._find(name)
            topic = held.topic
            found: dict[str, Any] = {
                "name": name,
                "subscribers": len(topic.places),
                "clients": len(topic.clients),
                "backlog": len(topic.log),
                "backlog_bytes": topic.log.size,
                "last": topic.log.last,
                "put_total": topic.put_total,
                "confirmed_total": topic.confirmed_total,
                "records": held.sequence - held.base,
                "policy": topic.policy.to_dict(),
            }
            if clients:
                rows = [
                    {"client": client, "position": place.confirmed, "owed": topic.owed(client)}
                    for client, place in topic.places.items()
                ]
                rows.sort(key=lambda row: (-int(str(row["owed"])), str(row["client"])))
                found["subscriptions"] = rows[:clients]
            sequence = held.sequence
        found["journal_sequence"] = sequence
        found["journal_durable"] = self._journal.durable(held.name)
        return found

    def close(self) -> None:
        """Take nothing more; whoever waits is sent away."""
        with self._lock:
            self._closed = True
            for held in self._held.values():
                held.wake()
