"""What happened to a topic: facts in the past tense, one class each. Only data lives here.

- ``position`` is a message's place in the topic: 1, 2, 3 ... in the order of acceptance, for all.
- ``number`` is its place in what its client put into the topic: 1, 2, 3 ...
- ``stamp`` is its place among all that the broker has accepted in any topic. It only rises, and it
  is the order in which several topics are read as one.
- ``request`` numbers what a client asked about its subscription to the topic.
- ``ticket`` tells a client's subscriptions to a topic apart; a later one has a larger ticket.
- ``instance`` is the state directory that a client id belongs to.

Clients stand in the journal's columns ``publisher`` (who put) and ``subscriber`` (who gets).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Sequence, Union

from broker.core.records import Record


@dataclass(slots=True)
class TopicCreated:
    """The first record of every topic; ``stamp`` tells it from an earlier one of that name."""

    kind: ClassVar[str] = "TopicCreated"
    durable: ClassVar[bool] = True
    at_ms: int
    name: str
    stamp: int
    policy: dict[str, int]


@dataclass(slots=True)
class Put:
    """Messages of one client were accepted: the positions, numbers and stamps from these on.

    ``formats`` is one number if all bodies have the same format. ``crc`` is the checksum of the
    call, by which its repetition is recognised.
    """

    kind: ClassVar[str] = "Put"
    durable: ClassVar[bool] = True
    at_ms: int
    publisher: str
    instance: str
    number: int
    position: int
    stamp: int
    crc: int
    formats: Sequence[int] | int
    bodies: Sequence[bytes]


@dataclass(slots=True)
class TopicSubscribed:
    """A client is owed every message after ``position``."""

    kind: ClassVar[str] = "TopicSubscribed"
    durable: ClassVar[bool] = True
    at_ms: int
    subscriber: str
    instance: str
    request: int
    ticket: int
    position: int


@dataclass(slots=True)
class TopicUnsubscribed:
    """A client is owed nothing any more; ``position`` was the last one that it had confirmed."""

    kind: ClassVar[str] = "TopicUnsubscribed"
    durable: ClassVar[bool] = True
    at_ms: int
    subscriber: str
    request: int
    ticket: int
    position: int
    count: int


@dataclass(slots=True)
class Confirmed:
    """A client has ``count`` messages from position ``first`` on: they never come again."""

    kind: ClassVar[str] = "Confirmed"
    durable: ClassVar[bool] = True
    at_ms: int
    subscriber: str
    ticket: int
    first: int
    count: int


@dataclass(slots=True)
class ClientTakenOver:
    """A client id belongs to another state directory from here on."""

    kind: ClassVar[str] = "ClientTakenOver"
    durable: ClassVar[bool] = True
    at_ms: int
    subscriber: str
    instance: str


TopicRecord = Union[
    TopicCreated, Put, TopicSubscribed, TopicUnsubscribed, Confirmed, ClientTakenOver
]

#: What a journal holds: facts of a channel or of a topic.
AnyRecord = Union[Record, TopicRecord]

TOPIC_RECORD_TYPES: dict[str, type[Any]] = {
    cls.kind: cls
    for cls in (TopicCreated, Put, TopicSubscribed, TopicUnsubscribed, Confirmed, ClientTakenOver)
}
