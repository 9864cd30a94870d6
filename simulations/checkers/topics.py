"""TopicsJudge: every record of every topic and every line of a topic client goes through here.

Records come in the order in which they became durable, over all topics; lines come when they were
written. Both are held against a plain model of what was put and who has how much of it:

- exactly-once-put: what was answered is there, once, where the client was told; what was refused is
  not, and never comes; positions, numbers and stamps run on.
- exactly-once-get: what a client has got of a subscription runs on, and is what was put.
- topic-completeness: nothing is left out from where a subscription begins to where it ends; it
  begins and ends only as its client has asked, in the order in which it has asked; nothing counts
  as confirmed that the client has not.

What was only received (two steps) may come again, always with the same content.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any, Callable, Mapping
from zlib import crc32

from broker.core.topics.records import (
    Confirmed,
    Put,
    TopicCreated,
    TopicRecord,
    TopicSubscribed,
    TopicUnsubscribed,
)
from simulations.checkers.anomaly import Anomaly, Findings

PUT, GET, COMPLETE = "exactly-once-put", "exactly-once-get", "topic-completeness"


class Stay:
    """One subscription of a client, by the records of the topic."""

    def __init__(self, born: int, ticket: int, position: int) -> None:
        self.born = born
        self.ticket = ticket
        self.begin = position
        self.confirmed = position
        self.end: int | None = None  # the topic's last position when it ended


class Life:
    """One topic, from its creation to its removal."""

    def __init__(self, born: int) -> None:
        self.born = born
        self.stamp = born  # the last one
        self.bodies: list[bytes] = []
        self.numbers: Counter[str] = Counter()  # client -> its last number
        self.calls: dict[tuple[str, int], tuple[int, int, int]] = {}  # position, count, checksum
        self.stays: dict[str, Stay] = {}  # the open ones

    def crc(self, first: int, count: int) -> int:
        """Over the bodies of some positions."""
        check = 0
        for body in self.bodies[first - 1 : first - 1 + count]:
            check = crc32(body, check)
        return check


class Book:
    """What a client has said of one topic."""

    def __init__(self) -> None:
        self.asked: dict[tuple[str, int], str] = {}  # directory, request -> what for
        self.answered: Counter[str] = Counter()  # directory -> the newest request answered
        self.tried: dict[int, int] = {}  # number -> checksum of the last call under it
        self.every: set[tuple[int, int]] = set()  # (number, checksum) of all that was tried
        self.refused: set[tuple[int, int]] = set()
        self.stays: dict[int, Stay] = {}  # ticket -> by the records
        self.ticket = 0  # the subscription that the client knows of
        self.got = 0  # the last position of it that is the client's
        self.handed = 0  # the last position that was received in this life


class TopicsJudge:
    """Judges a broker with topics: ``watch`` records, ``hear`` lines, then ``finish``."""

    def __init__(self) -> None:
        self.compared: Counter[str] = Counter()
        self._findings = Findings()
        self._lives: dict[str, Life] = {}
        self._past: dict[tuple[str, int], Life] = {}  # every life, by topic and birth
        self._upto: Counter[str] = Counter()
        self._books: defaultdict[tuple[str, str], Book] = defaultdict(Book)  # by client and topic
        self._takers: dict[str, Callable[[str, int, Any], None]] = {
            "TopicCreated": self._created, "Put": self._put, "TopicSubscribed": self._subscribed,
            "TopicUnsubscribed": self._unsubscribed, "Confirmed": self._confirmed,
        }  # fmt: skip
        self._hearers: dict[str, Callable[[Book, Mapping[str, Any]], None]] = {
            "requested": self._hear_requested, "subscribed": self._hear_subscribed,
            "unsubscribed": self._hear_unsubscribed, "tried": self._hear_tried,
            "answered": self._hear_answered, "refused": self._hear_refused,
            "got": self._hear_got, "received": self._hear_received,
            "confirmed": self._hear_confirmed, "taken_over": self._hear_taken_over,
        }  # fmt: skip

    def watch(self, topic: str, sequence: int, record: TopicRecord) -> list[Anomaly]:
        """Judge the next durable record of a topic; what is new is returned."""
        before = len(self._findings.all)
        self.compared["records"] += 1
        expected = 1 if isinstance(record, TopicCreated) else self._upto[topic] + 1
        if sequence != expected:
            self._report("log-integrity", topic, sequence, f"expected record {expected}")
        self._upto[topic] = sequence
        if (take := self._takers.get(record.kind)) is not None:
            take(topic, sequence, record)
        return self._findings.all[before:]

    def hear(self, line: Mapping[str, Any] | str) -> list[Anomaly]:
        """Take a line of a topic client's history, as a dict or as JSON."""
        if isinstance(line, str):
            line = json.loads(line)
        assert isinstance(line, Mapping)
        before = len(self._findings.all)
        self.compared["lines"] += 1
        if line["event"] == "opened":
            for (name, _), book in self._books.items():
                if name == line["name"]:
                    book.handed = 0
        elif (take := self._hearers.get(line["event"])) is not None:
            take(self._books[line["name"], line["topic"]], line)
        return self._findings.all[before:]

    def finish(self, drained: bool) -> list[Anomaly]:
        """All anomalies; ``drained``: it is over, and everybody must have all."""
        for topic, life in self._lives.items() if drained else ():
            for client, stay in life.stays.items():
                book, last = self._books[client, topic], len(life.bodies)
                if (book.ticket, book.got, stay.confirmed) != (stay.ticket, last, last):
                    text = (
                        f"{client} has {book.got} of subscription {book.ticket} and confirmed "
                        f"{stay.confirmed} of {stay.ticket}; the last message is {last}"
                    )
                    self._report(COMPLETE, topic, self._upto[topic], text)
        return self._findings.all

    def born(self, topic: str) -> int:
        """What tells the topic from an earlier one of its name."""
        return self._lives[topic].born

    def is_subscribed(self, client: str, topic: str) -> bool:
        """Whether a client is, by the records."""
        life = self._lives.get(topic)
        return life is not None and client in life.stays

    def _report(self, name: str, topic: str, sequence: int, text: str) -> None:
        self._findings.report(name, sequence, text, topic)

    # Records.

    @property
    def _stamp(self) -> int:
        """The newest one of any topic that is there."""
        return max((life.stamp for life in self._lives.values()), default=0)

    def dropped(self, topic: str) -> list[Anomaly]:
        """A topic was removed; what is new is returned."""
        before = len(self._findings.all)
        if self._lives.pop(topic).stays:
            self._report(COMPLETE, topic, 0, "it was removed while somebody was subscribed")
        return self._findings.all[before:]

    def _created(self, topic: str, sequence: int, record: TopicCreated) -> None:
        if (topic, record.stamp) in self._past or record.stamp <= self._stamp:
            self._report(PUT, topic, sequence, f"born at {record.stamp}, after {self._stamp}")
        self._lives[topic] = self._past[topic, record.stamp] = Life(record.stamp)

    def _put(self, topic: str, sequence: int, record: Put) -> None:
        life, client, count = self._lives[topic], record.publisher, len(record.bodies)
        book = self._books[client, topic]
        self.compared["messages"] += count
        expected = (len(life.bodies) + 1, life.numbers[client] + 1)
        if (record.position, record.number) != expected:
            text = f"position and number {record.position}, {record.number}, expected {expected}"
            self._report(PUT, topic, sequence, text)
        if record.stamp <= self._stamp:
            text = f"stamp {record.stamp} after {self._stamp}"
            self._report(PUT, topic, sequence, text)
        call = (record.number, record.crc)
        if call not in book.every or call in book.refused:
            why = "refused" if call in book.refused else "never tried"
            self._report(PUT, topic, sequence, f"{record.number} of {client} was {why}")
        life.stamp = record.stamp + count - 1
        life.calls[client, record.number] = (record.position, count, record.crc)
        life.numbers[client] = record.number + count - 1
        life.bodies += record.bodies

    def _subscribed(self, topic: str, sequence: int, record: TopicSubscribed) -> None:
        life, client = self._lives[topic], record.subscriber
        book = self._books[client, topic]
        if client in life.stays or record.position != len(life.bodies):
            text = f"{client} from {record.position} on; the last message is {len(life.bodies)}"
            self._report(COMPLETE, topic, sequence, text)
        if record.ticket in book.stays or record.ticket <= self._stamp:
            text = f"{client} has ticket {record.ticket}, after stamp {self._stamp}"
            self._report(COMPLETE, topic, sequence, text)
        self._check_request(topic, sequence, client, record.request, "subscribe")
        stay = Stay(life.born, record.ticket, record.position)
        life.stamp = record.ticket
        life.stays[client] = book.stays[record.ticket] = stay

    def _unsubscribed(self, topic: str, sequence: int, record: TopicUnsubscribed) -> None:
        life, client = self._lives[topic], record.subscriber
        stay, last = life.stays.pop(client, None), len(life.bodies)
        self._check_request(topic, sequence, client, record.request, "unsubscribe")
        if stay is None:
            self._report(COMPLETE, topic, sequence, f"{client} was not subscribed")
            return
        seen = (record.ticket, record.position, record.count)
        expected = (stay.ticket, stay.confirmed, last - stay.confirmed)
        if seen != expected:
            text = f"{client} leaves with (ticket, position, owed) {seen}, expected {expected}"
            self._report(COMPLETE, topic, sequence, text)
        stay.end = last

    def _check_request(
        self, topic: str, sequence: int, client: str, request: int, ask: str
    ) -> None:
        book = self._books[client, topic]
        # The record of an end does not name the directory, so any may have asked.
        asked = [key[0] for key, what in book.asked.items() if key[1] == request and what == ask]
        if not asked:
            text = f"{client} did not ask to {ask} by request {request}"
            self._report(COMPLETE, topic, sequence, text)
        elif all(request < book.answered[instance] for instance in asked):
            text = f"{ask}, request {request} of {client}, was done after {dict(book.answered)}"
            self._report(COMPLETE, topic, sequence, text)

    def _confirmed(self, topic: str, sequence: int, record: Confirmed) -> None:
        life, client = self._lives[topic], record.subscriber
        stay, book = life.stays.get(client), self._books[client, topic]
        last = record.first + record.count - 1
        if stay is None or (stay.ticket, stay.confirmed + 1) != (record.ticket, record.first):
            text = f"{client} confirms from {record.first} on by ticket {record.ticket}"
            same = stay is not None and stay.ticket == record.ticket
            hole = stay is not None and same and record.first > stay.confirmed + 1
            self._report(COMPLETE if hole else GET, topic, sequence, text)
            return
        if last > len(life.bodies) or record.count < 1:
            self._report(GET, topic, sequence, f"{client} confirms {last}, which was never put")
        elif book.ticket != record.ticket or last > book.got:
            text = f"{client} has confirmed {last}, but got {book.got} by ticket {book.ticket}"
            self._report(COMPLETE, topic, sequence, text)
        stay.confirmed = last

    # Lines: puts.

    def _hear_tried(self, book: Book, line: Mapping[str, Any]) -> None:
        book.tried[line["number"]] = line["crc"]
        book.every.add((line["number"], line["crc"]))

    def _hear_answered(self, book: Book, line: Mapping[str, Any]) -> None:
        topic, number = line["topic"], line["number"]
        life = self._past.get((topic, line["born"]))
        found = life.calls.get((line["name"], number)) if life is not None else None
        expected = (line["position"], line["count"], book.tried.get(number))
        if found != expected:
            text = (
                f"{line['name']} was told that {number} is there as (position, count, checksum) "
                f"{expected}, and there is {found}"
            )
            self._report(PUT, topic, line["n"], text)

    def _hear_refused(self, book: Book, line: Mapping[str, Any]) -> None:
        topic, number = line["topic"], line["number"]
        crc = book.tried.get(number, 0)
        life = self._lives.get(topic)
        found = life.calls.get((line["name"], number)) if life is not None else None
        book.refused.add((number, crc))
        if found is not None and found[2] == crc:
            text = f"{line['name']} was told that {number} is refused, and it is there"
            self._report(PUT, topic, line["n"], text)

    # Lines: subscriptions.

    def _hear_requested(self, book: Book, line: Mapping[str, Any]) -> None:
        book.asked[line["instance"], line["request"]] = line["ask"]

    def _hear_subscribed(self, book: Book, line: Mapping[str, Any]) -> None:
        book.answered[line["instance"]] = line["request"]
        stay, ticket, position = book.stays.get(line["ticket"]), line["ticket"], line["position"]
        expected = None
        if stay is not None:
            expected = book.got if ticket == book.ticket else stay.begin
        if stay is None or stay.born != line["born"] or position != expected:
            text = f"{line['name']} goes on from {position} by ticket {ticket}, not {expected}"
            self._report(COMPLETE, line["topic"], line["n"], text)
        book.ticket, book.got = ticket, position
        book.handed = max(book.handed, position)

    def _hear_unsubscribed(self, book: Book, line: Mapping[str, Any]) -> None:
        book.answered[line["instance"]] = line["request"]
        stay = book.stays.get(line["ticket"])
        if stay is not None and stay.end is None:
            text = f"{line['name']} was told that {line['ticket']} has ended, and it has not"
            self._report(COMPLETE, line["topic"], line["n"], text)
        book.ticket = book.got = book.handed = 0

    def _hear_taken_over(self, book: Book, line: Mapping[str, Any]) -> None:
        ticket, stay = line["ticket"], book.stays.get(line["ticket"])
        if ticket and (stay is None or stay.end is not None or line["position"] < stay.begin):
            text = f"{line['name']} takes over ticket {ticket} at {line['position']}"
            self._report(COMPLETE, line["topic"], line["n"], text)
        elif ticket and ticket == book.ticket and line["position"] > book.got:
            text = f"{line['name']} takes over at {line['position']}, but had {book.got} only"
            self._report(COMPLETE, line["topic"], line["n"], text)
        book.ticket, book.got, book.handed = ticket, line["position"], 0

    # Lines: gets.

    def _hear_got(self, book: Book, line: Mapping[str, Any]) -> None:
        self._check_handed(book, line, book.got)
        book.got = line["first"] + line["count"] - 1
        self.compared["got"] += line["count"]

    def _hear_received(self, book: Book, line: Mapping[str, Any]) -> None:
        # Of one answer over several topics a topic may have several stretches: what goes on where
        # the last one ended counts as well as what comes again.
        goes_on = book.got < line["first"] <= book.handed + 1
        self._check_handed(book, line, line["first"] - 1 if goes_on else book.got)
        book.handed = max(book.handed, line["first"] + line["count"] - 1)
        self.compared["received"] += line["count"]

    def _hear_confirmed(self, book: Book, line: Mapping[str, Any]) -> None:
        position = line["position"]
        if line["ticket"] != book.ticket or not book.got < position <= book.handed:
            text = (
                f"{line['name']} confirms {position} by ticket {line['ticket']}; it had confirmed "
                f"{book.got} and received {book.handed} by ticket {book.ticket}"
            )
            self._report(GET, line["topic"], line["n"], text)
        self.compared["got"] += position - book.got
        book.got = position

    def _check_handed(self, book: Book, line: Mapping[str, Any], upto: int) -> None:
        topic, client, ticket = line["topic"], line["name"], line["ticket"]
        first, count = line["first"], line["count"]
        stay = book.stays.get(ticket)
        if ticket != book.ticket or stay is None:
            text = f"{client} got {first} by ticket {ticket}; it has {book.ticket}"
            self._report(GET, topic, line["n"], text)
            return
        life = self._past[topic, stay.born]
        last = len(life.bodies) if stay.end is None else stay.end
        if first <= upto or first + count - 1 > last:
            text = f"{client} got {count} from {first} on, expected {upto + 1} up to {last}"
            self._report(GET, topic, line["n"], text)
        elif first != upto + 1:
            text = f"{client} got {first} after {upto}"
            self._report(COMPLETE, topic, line["n"], text)
        elif line["crc"] != life.crc(first, count):
            text = f"{client} got other content at {first} than was put"
            self._report(GET, topic, line["n"], text)
