"""TopicMessage and Receipt: what a topic client hands to its user. Plain values; nothing acts here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from broker import wire


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """A message of a topic, as it was got."""

    topic: str
    id: int  # its position in the topic: the first one is 1
    ticket: int  # of the subscription that it came by
    stamp: int  # its place among the messages of all topics of the broker
    publisher: str  # the client that put it
    number: int  # of the put, as that client counts
    at_ms: int  # when the broker accepted it
    format: int = field(repr=False)
    data: bytes = field(repr=False)  # the body as it travelled

    @property
    def body(self) -> Any:
        """What was put: bytes, str or a JSON value; bytes if they are not what they claim."""
        return wire.readable(self.format, self.data)


@dataclass(frozen=True, slots=True)
class Receipt:
    """A put that is durable; of several messages put at once it speaks of the last."""

    topic: str
    number: int  # as this client counts what it puts into the topic
    position: int  # the id that subscribers see
    again: bool  # the broker had it already, from an earlier try
