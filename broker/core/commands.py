"""What may be asked of a channel: one imperative class per request. Only data lives here.

A command is checked at the edge for types, sizes and characters (``broker.wire``); the core checks
it against the state. ``Decision`` is what follows from a command.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from broker.core.message import Entry, PartitionKey
from broker.core.records import Delivered, Record


@dataclass(slots=True)
class CreateSubscription:
    """Make a durable group."""

    subscription: str


@dataclass(slots=True)
class DeleteSubscription:
    """Remove a durable group and what it is owed."""

    subscription: str


@dataclass(slots=True)
class OpenPublisher:
    """Start a new epoch of a publisher id and fence the older ones."""

    publisher: str


@dataclass(slots=True)
class Publish:
    """Accept runs of one publisher. A partition occurs once; entries stand run after run.

    ``epoch`` None means that the caller does not take part in fencing. ``size``, ``priority`` and
    ``ids`` sum the entries up, ``columns`` are the same entries column by column; see Published.
    """

    publisher: str
    epoch: int | None
    partitions: list[str]
    firsts: list[int]
    counts: list[int]
    entries: list[Entry]
    size: int
    priority: int = 0
    ids: bool = False
    columns: Any = None


@dataclass(slots=True)
class Subscribe:
    """Join a subscription, or come back to it with the same session."""

    subscription: str
    subscriber: str
    session: str
    prefetch: int
    callback: str
    can_recall: bool = True


@dataclass(slots=True)
class Leave:
    """Give everything back and go; ``reason`` is left, crashed or expired."""

    subscription: str
    subscriber: str
    session: str
    reason: str = "left"


@dataclass(slots=True)
class Ack:
    """Settle positions up to ``uptos`` of the assignments ``epochs``.

    ``delays`` are [epoch, position, milliseconds] of messages that took noticeably long.
    """

    subscription: str
    subscriber: str
    session: str
    epochs: list[int]
    uptos: list[int]
    delays: list[list[int]] = field(default_factory=list)


@dataclass(slots=True)
class Nack:
    """One message failed; what came before it in the run is settled by this, too."""

    subscription: str
    subscriber: str
    session: str
    epoch: int
    position: int
    reason: str = "nack"
    delay_ms: int | None = None
    final: bool = False


@dataclass(slots=True)
class HandBack:
    """The answer to a recall: per epoch the last position that was started and will be settled."""

    subscription: str
    subscriber: str
    session: str
    epochs: list[int]
    uptos: list[int]


@dataclass(slots=True)
class Heartbeat:
    """I am alive."""

    subscription: str
    subscriber: str
    session: str


@dataclass(slots=True)
class Dispatch:
    """Give waiting partitions to subscribers that have room."""


@dataclass(slots=True)
class Tick:
    """Look at the leases and at the balance between subscribers."""


@dataclass(slots=True)
class Start:
    """A broker takes the channel up after recovery."""

    boot: str


@dataclass(slots=True)
class KillQueues:
    """Crash the global queue and all sub-queues."""


@dataclass(slots=True)
class RestoreQueues:
    """Rebuild the queues from the backup queue."""


@dataclass(slots=True)
class Redrive:
    """Send parked work on its way again, or give it up. ``key`` None means all of it."""

    subscription: str
    key: PartitionKey | None = None
    drop: bool = False


Command = Union[
    CreateSubscription, DeleteSubscription, OpenPublisher, Publish, Subscribe, Leave, Ack, Nack,
    HandBack, Heartbeat, Dispatch, Tick, Start, KillQueues, RestoreQueues, Redrive,
]  # fmt: skip


@dataclass(slots=True)
class Send:
    """What one subscriber is to be sent: a Delivered record and the entries it speaks of."""

    subscription: str
    subscriber: str
    delivered: Delivered
    entries: list[Entry]


@dataclass(slots=True)
class Decision:
    """What follows from a command: records to append and apply, an answer, and things to send."""

    records: list[Record]
    reply: dict[str, Any] = field(default_factory=dict)
    sends: list[Send] = field(default_factory=list)
