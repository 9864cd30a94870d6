"""What may be asked of a topic: one imperative class per request. Only data lives here.

A command is checked at the edge for types and sizes; the topic checks it against its state.
Numbers that are None come from plain scripts, which do not take part in that protection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence, Union

from broker.core.topics.records import TopicRecord


@dataclass(slots=True)
class Subscribe:
    """Owe a client what comes from now on."""

    client: str
    instance: str
    request: int | None = None
    ticket: int = 0  # of the subscription, if one is made


@dataclass(slots=True)
class Unsubscribe:
    """Owe a client nothing any more; with ``ticket`` only if that is its subscription."""

    client: str
    instance: str
    request: int | None = None
    ticket: int | None = None


@dataclass(slots=True)
class PutMessages:
    """Accept messages; ``number`` is that of the first one. ``stamp`` is where theirs begin."""

    client: str
    instance: str
    number: int | None
    formats: Sequence[int] | int
    bodies: Sequence[bytes]
    size: int
    crc: int
    stamp: int = 0


@dataclass(slots=True)
class Confirm:
    """A client has everything up to ``received``."""

    client: str
    instance: str
    ticket: int | None
    received: int


@dataclass(slots=True)
class TakeOver:
    """Let a client id belong to another state directory."""

    client: str
    instance: str


TopicCommand = Union[Subscribe, Unsubscribe, PutMessages, Confirm, TakeOver]


@dataclass(slots=True)
class TopicDecision:
    """What follows: records to be written and applied, and the reply once they are durable."""

    records: list[TopicRecord]
    reply: dict[str, Any] = field(default_factory=dict)
