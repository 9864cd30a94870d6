"""What happened: the facts of a channel, in the past tense, one class each. Only data lives here.

A record covers a whole batch. Its runs are parallel lists (``keys``, ``firsts``, ``counts`` ...),
one item per run, so that ten thousand interleaved partitions are still one record and one journal
row.

Three numbers must not be confused:

- ``sequence`` is a message's place in what its publisher sent to the partition: 1, 2, 3 ...
- ``position`` is its place in what a subscription is handed of the partition: 1, 2, 3 ... It is
  fixed when the message is handed out for the first time. As long as timestamps rise, and for a
  subscription that was there from the start, the two are equal.
- the journal's own sequence of a record, which belongs to the journal and is not in here.

A record with ``durable = False`` changes only what need not survive (who was seen when); the
journal never sees it. A field named ``lines`` is the list of Line objects that a decision has
looked up already: it saves ``apply`` the second look-up, is no part of the fact, and is None when
read back. Likewise ``columns`` are the entries as they came over the wire: they save the journal a
transposition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Union

from broker.core.message import Entry, PartitionKey


def _resolved() -> Any:
    return field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class ChannelCreated:
    """The first record of every channel."""

    kind: ClassVar[str] = "ChannelCreated"
    durable: ClassVar[bool] = True
    at_ms: int
    name: str
    policy: dict[str, Any]


@dataclass(slots=True)
class BrokerStarted:
    """A broker took the channel up again: every lease starts anew."""

    kind: ClassVar[str] = "BrokerStarted"
    durable: ClassVar[bool] = True
    at_ms: int
    boot: str


@dataclass(slots=True)
class SubscriptionCreated:
    """A durable group was made; it gets everything published after this record."""

    kind: ClassVar[str] = "SubscriptionCreated"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str


@dataclass(slots=True)
class SubscriptionDeleted:
    """A durable group was removed with all that it was still owed."""

    kind: ClassVar[str] = "SubscriptionDeleted"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    count: int


@dataclass(slots=True)
class PublisherOpened:
    """A publisher opened the channel; older epochs of the same id are fenced from here on."""

    kind: ClassVar[str] = "PublisherOpened"
    durable: ClassVar[bool] = True
    at_ms: int
    publisher: str
    epoch: int


@dataclass(slots=True)
class Published:
    """A batch was accepted. ``firsts`` and ``counts`` are the sequences that each run used up.

    ``entries`` are the messages that are kept, run after run. A message whose user-chosen id was
    known already uses up its sequence but is not kept; its index in the batch is in ``dropped``.
    ``size`` is the bytes of the kept bodies, ``priority`` the highest priority among them, ``ids``
    whether any of them has an id of the user's choice.
    """

    kind: ClassVar[str] = "Published"
    durable: ClassVar[bool] = True
    at_ms: int
    publisher: str
    epoch: int
    partitions: list[str]
    firsts: list[int]
    counts: list[int]
    dropped: list[int]
    size: int
    priority: int
    ids: bool
    entries: list[Entry]
    lines: Any = _resolved()
    columns: Any = _resolved()


@dataclass(slots=True)
class DuplicatesDropped:
    """Sequences that had been accepted before came again and were dropped."""

    kind: ClassVar[str] = "DuplicatesDropped"
    durable: ClassVar[bool] = True
    at_ms: int
    publisher: str
    partitions: list[str]
    firsts: list[int]
    counts: list[int]


@dataclass(slots=True)
class Subscribed:
    """A subscriber joined a subscription; ``session`` tells its lives apart."""

    kind: ClassVar[str] = "Subscribed"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    subscriber: str
    session: str
    prefetch: int
    callback: str
    can_recall: bool


@dataclass(slots=True)
class Resumed:
    """A known session came back after a broken connection or a broker restart, work in hand."""

    kind: ClassVar[str] = "Resumed"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    subscriber: str
    session: str
    callback: str


@dataclass(slots=True)
class SubscriberLeft:
    """A subscriber is gone: ``reason`` is left, crashed, expired or replaced."""

    kind: ClassVar[str] = "SubscriberLeft"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    subscriber: str
    session: str
    reason: str


@dataclass(slots=True)
class Delivered:
    """Runs were given to one subscriber, to be sent once this record is durable.

    ``firsts`` are positions, ``sequences`` the publisher's sequence of each run's first message; a
    run is contiguous in both. A new epoch is a new assignment. ``late`` lists the indexes (over the
    whole batch) of messages that are older than one handed out before them.
    """

    kind: ClassVar[str] = "Delivered"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    subscriber: str
    keys: list[PartitionKey]
    firsts: list[int]
    sequences: list[int]
    counts: list[int]
    epochs: list[int]
    attempts: list[int]
    late: list[int]
    lines: Any = _resolved()


@dataclass(slots=True)
class Acked:
    """Runs were handled. ``delays`` are [run index, position, milliseconds] of slow messages."""

    kind: ClassVar[str] = "Acked"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    subscriber: str
    keys: list[PartitionKey]
    firsts: list[int]
    counts: list[int]
    epochs: list[int]
    delays: list[list[int]]
    lines: Any = _resolved()


@dataclass(slots=True)
class StaleAcked:
    """Acks or nacks of superseded assignments came in and changed nothing."""

    kind: ClassVar[str] = "StaleAcked"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    subscriber: str
    epochs: list[int]
    uptos: list[int]


@dataclass(slots=True)
class Nacked:
    """One message failed; its partition is withdrawn, and retried from it on at that time."""

    kind: ClassVar[str] = "Nacked"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    subscriber: str
    key: PartitionKey
    position: int
    epoch: int
    attempt: int
    not_before_ms: int
    reason: str


@dataclass(slots=True)
class Recalled:
    """A subscriber was asked to hand back what it has not started: ``reason`` slow or join."""

    kind: ClassVar[str] = "Recalled"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    subscriber: str
    keys: list[PartitionKey]
    epochs: list[int]
    reason: str


@dataclass(slots=True)
class Reassigned:
    """Messages were taken back from a subscriber and wait again.

    ``firsts`` is the first position taken back per run. ``reason`` is left, crash, slow, join or
    queue_crash; after a crash the messages count as tried, since any of them may have been started.
    """

    kind: ClassVar[str] = "Reassigned"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    subscriber: str
    keys: list[PartitionKey]
    firsts: list[int]
    counts: list[int]
    epochs: list[int]
    reason: str


@dataclass(slots=True)
class Slowed:
    """A subscriber had too many long delays in the window."""

    kind: ClassVar[str] = "Slowed"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    subscriber: str
    delays_ms: list[int]


@dataclass(slots=True)
class Parked:
    """A message (or, with scope "partition", its whole partition) was set aside with a reason."""

    kind: ClassVar[str] = "Parked"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    key: PartitionKey
    position: int
    attempt: int
    scope: str
    reason: str


@dataclass(slots=True)
class Redriven:
    """Parked messages were sent on their way again (``dropped``: given up for good)."""

    kind: ClassVar[str] = "Redriven"
    durable: ClassVar[bool] = True
    at_ms: int
    subscription: str
    key: PartitionKey
    positions: list[int]
    dropped: bool


@dataclass(slots=True)
class QueuesKilled:
    """The global queue and all sub-queues crashed (a fault hook)."""

    kind: ClassVar[str] = "QueuesKilled"
    durable: ClassVar[bool] = True
    at_ms: int
    count: int


@dataclass(slots=True)
class QueuesRestored:
    """The queues were rebuilt from the backup queue."""

    kind: ClassVar[str] = "QueuesRestored"
    durable: ClassVar[bool] = True
    at_ms: int
    count: int


@dataclass(slots=True)
class Seen:
    """A subscriber gave a sign of life. Never journaled."""

    kind: ClassVar[str] = "Seen"
    durable: ClassVar[bool] = False
    at_ms: int
    subscription: str
    subscriber: str


Record = Union[
    ChannelCreated, BrokerStarted, SubscriptionCreated, SubscriptionDeleted, PublisherOpened,
    Published, DuplicatesDropped, Subscribed, Resumed, SubscriberLeft, Delivered, Acked,
    StaleAcked, Nacked, Recalled, Reassigned, Slowed, Parked, Redriven, QueuesKilled,
    QueuesRestored, Seen,
]  # fmt: skip

RECORD_TYPES: dict[str, type[Any]] = {
    cls.kind: cls
    for cls in (
        ChannelCreated, BrokerStarted, SubscriptionCreated, SubscriptionDeleted, PublisherOpened,
        Published, DuplicatesDropped, Subscribed, Resumed, SubscriberLeft, Delivered, Acked,
        StaleAcked, Nacked, Recalled, Reassigned, Slowed, Parked, Redriven, QueuesKilled,
        QueuesRestored, Seen,
    )
}  # fmt: skip


def message_count(record: Any) -> int:
    """How many messages a record speaks of: the journal's ``count`` column. Topics' records too."""
    counts = getattr(record, "counts", None)
    if counts is not None:
        return sum(counts)
    count: int | None = getattr(record, "count", None)
    if count is not None:
        return count
    if hasattr(record, "bodies"):
        return len(record.bodies)
    if isinstance(record, (Nacked, Parked)):
        return 1
    if isinstance(record, Redriven):
        return len(record.positions)
    return 0
