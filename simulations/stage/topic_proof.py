"""The judgement of a story's topics: their journals and the histories of their clients together.

``TopicsJudge`` wants records and lines in an order in which they can have happened. Journals and
histories are files by themselves, and their clocks are too coarse to tell; but what must come
before what is known: nothing is recorded that nobody has asked for, and nobody hears of what is not
recorded. ``merged`` finds an order that keeps to that. If there is none, it goes on with the oldest
by the clock, and the judge will find out why.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Iterator

from broker.core.topics.records import (
    Confirmed,
    Put,
    TopicCreated,
    TopicRecord,
    TopicSubscribed,
    TopicUnsubscribed,
)
from simulations.checkers.topics import TopicsJudge

Line = dict[str, Any]
Journals = dict[str, list[tuple[int, TopicRecord]]]  # by the plain name of the topic
#: What comes next: a record with its topic and sequence, or a line.
Step = tuple[str, int, TopicRecord] | Line


def topic_anomalies(
    journals: Journals, lines: list[Line], drained: bool, kept: bool = True
) -> list[str]:
    """What is wrong with the topics of a broker, in words; too little to judge is told, too.

    ``kept``: no record was released. Otherwise only topics are judged whose journal is whole.
    """
    judge = TopicsJudge()
    found = _missing_lines(lines)
    if not kept:
        journals = {topic: records for topic, records in journals.items() if records[0][0] == 1}
        lines = [line for line in lines if line.get("topic") in (None, *journals)]
    for step in merged(journals, lines):
        if isinstance(step, tuple):
            judge.watch(*step)
        else:
            judge.hear(step)
    found += [str(anomaly) for anomaly in judge.finish(drained)]
    if not found and not (judge.compared["records"] and judge.compared["lines"]):
        found.append(f"unknown: of {dict(judge.compared)} too little could be compared")
    return found


def _missing_lines(lines: list[Line]) -> list[str]:
    """Each life of a client has the lines 0, 1, 2 ..., as many as it came to write."""
    lives: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        lives.setdefault((line["name"], line["session"]), []).append(line["n"])
    return [
        f"unknown: the history of {name} in its life {life} has lines missing"
        for (name, life), numbers in lives.items()
        if numbers != list(range(len(numbers)))
    ]


def merged(journals: Journals, lines: list[Line]) -> Iterator[Step]:
    """All records and lines, in an order in which they can have happened."""
    merge = _Merge(journals, lines)
    while True:
        yield from merge.possible()
        forced = merge.oldest()
        if forced is None:
            return
        yield forced


def _stamp(record: TopicRecord) -> int:
    """Its place among the records of all topics; 0 if only its topic knows one."""
    if isinstance(record, (Put, TopicCreated)):
        return record.stamp
    return record.ticket if isinstance(record, TopicSubscribed) else 0


class _Merge:
    """What is still to come, and what the records and lines so far make possible."""

    def __init__(self, journals: Journals, lines: list[Line]) -> None:
        self._records = {topic: deque(records) for topic, records in journals.items()}
        self._lines: dict[str, deque[Line]] = {}
        for line in sorted(lines, key=lambda line: int(line["session"])):
            self._lines.setdefault(line["name"], deque()).append(line)
        everything = [item for records in journals.values() for _, item in records]
        self._stamps = deque(
            sorted(stamp for stamp in map(_stamp, everything) if stamp)
        )
        self._leaving = {
            (topic, item.subscriber, item.request)
            for topic, records in journals.items()
            for _, item in records
            if isinstance(item, TopicUnsubscribed)
        }
        self._last: dict[str, int] = {}  # topic -> the last position that is recorded
        self._tickets: set[tuple[str, int]] = set()  # of the subscriptions that are recorded
        self._said: set[tuple[Any, ...]] = set()  # requests and puts, by the lines
        self._has: dict[tuple[str, str, int], int] = {}  # what each client has got

    def possible(self) -> Iterator[Step]:
        """Everything that can be next, until nothing can."""
        moved = True
        while moved:
            moved = False
            for topic, records in self._records.items():
                while records and self._can_record(topic, records[0][1]):
                    yield self._take_record(topic)
                    moved = True
            for client, lines in self._lines.items():
                while lines and self._can_say(lines[0]):
                    yield self._take_line(client)
                    moved = True

    def oldest(self) -> Step | None:
        """What is next by the clock; None if there is nothing left."""
        heads: list[tuple[int, Callable[[], Step]]] = []
        for topic, records in self._records.items():
            if records:
                heads.append((records[0][1].at_ms * 1_000, lambda it=topic: self._take_record(it)))  # type: ignore[misc]
        for client, lines in self._lines.items():
            if lines:
                heads.append((lines[0]["at_us"], lambda it=client: self._take_line(it)))  # type: ignore[misc]
        return min(heads, key=lambda head: head[0])[1]() if heads else None

    # What must have come before.

    def _can_record(self, topic: str, record: TopicRecord) -> bool:
        if (stamp := _stamp(record)) and stamp != self._stamps[0]:
            return False
        if isinstance(record, Put):
            return ("put", topic, record.publisher, record.number, record.crc) in self._said
        if isinstance(record, (TopicSubscribed, TopicUnsubscribed)):
            return ("request", topic, record.subscriber, record.request) in self._said
        if isinstance(record, Confirmed):
            place = (topic, record.subscriber, record.ticket)
            return self._has.get(place, 0) >= record.first + record.count - 1
        return True

    def _can_say(self, line: Line) -> bool:
        event, topic = line["event"], line.get("topic", "")
        if event == "answered":
            return bool(self._last.get(topic, 0) >= line["position"] + line["count"] - 1)
        if event in ("got", "received"):
            return bool(self._last.get(topic, 0) >= line["first"] + line["count"] - 1)
        if event == "subscribed":
            return (topic, line["ticket"]) in self._tickets
        if event == "unsubscribed":
            return (topic, line["name"], line["request"]) not in self._leaving
        return True

    # What follows.

    def _take_record(self, topic: str) -> Step:
        sequence, record = self._records[topic].popleft()
        if stamp := _stamp(record):
            self._stamps.remove(stamp)
        if isinstance(record, Put):
            self._last[topic] = record.position + len(record.bodies) - 1
        elif isinstance(record, TopicSubscribed):
            self._tickets.add((topic, record.ticket))
        elif isinstance(record, TopicUnsubscribed):
            self._leaving.discard((topic, record.subscriber, record.request))
        return topic, sequence, record

    def _take_line(self, client: str) -> Step:
        line = self._lines[client].popleft()
        event, topic = line["event"], line.get("topic", "")
        if event == "tried":
            self._said.add(("put", topic, client, line["number"], line["crc"]))
        elif event == "requested":
            self._said.add(("request", topic, client, line["request"]))
        elif event == "got":
            last = line["first"] + line["count"] - 1
            self._has[topic, client, line["ticket"]] = last
        elif event == "confirmed":
            self._has[topic, client, line["ticket"]] = line["position"]
        return line
