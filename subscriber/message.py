"""Message: what a handler is given. Immutable; the verdict that a handler may leave is not part of
it."""

from __future__ import annotations

from typing import Any

from broker.errors import BadRequest
from broker.wire import decode_body
from subscriber.once import record_once
from subscriber.session import Assignment, Item


class Message:
    """One message, with where it stands and how often it was tried.

    Attributes are read on demand, so that a handler pays only for what it looks at.
    """

    __slots__ = ("_assignment", "_item", "_origin", "verdict")

    def __init__(self, assignment: Assignment, item: Item, origin: tuple[str, str, int]) -> None:
        self._assignment = assignment
        self._item = item
        self._origin = origin
        self.verdict: tuple[float | None, bool, str] | None = None

    def __repr__(self) -> str:
        return (
            f"<Message {self.publisher}/{self.partition} sequence={self.sequence} "
            f"epoch={self.epoch} attempt={self.attempt}>"
        )

    @property
    def channel(self) -> str:
        """The channel it came through."""
        return self._origin[0]

    @property
    def subscription(self) -> str:
        """The subscription it was owed to."""
        return self._origin[1]

    @property
    def generation(self) -> int:
        """Tells a subscription from an earlier one of the same name, whose positions are others."""
        return self._origin[2]

    @property
    def publisher(self) -> str:
        """Who published it."""
        return self._assignment.publisher

    @property
    def partition(self) -> str:
        """The line it stands in; messages of one (publisher, partition) come in order."""
        return self._assignment.partition

    @property
    def epoch(self) -> int:
        """The fencing token: it only rises for a partition. Hand it to what you write to."""
        return self._assignment.epoch

    @property
    def position(self) -> int:
        """Its place in what this subscription is handed of the partition: 1, 2, 3 ..."""
        return self._item[0]

    @property
    def attempt(self) -> int:
        """1 the first time, 2 when it is tried again, and so on."""
        return self._item[1]

    @property
    def timestamp(self) -> float:
        """Seconds since 1970, as its publisher stamped it."""
        return self._item[2] / 1_000_000

    @property
    def sequence(self) -> int:
        """Its place in what the publisher sent to the partition: 1, 2, 3 ..."""
        return self._item[3]

    @property
    def priority(self) -> int:
        """Larger is more urgent."""
        return self._item[4]

    @property
    def body(self) -> Any:
        """What was published: bytes, str, or the JSON value."""
        return decode_body(self._item[5], self._item[6])

    @property
    def id(self) -> str | None:
        """The id that its publisher chose, if any."""
        extras = self._item[7]
        return extras.get("id") if extras else None

    @property
    def headers(self) -> dict[str, str]:
        """The publisher's headers."""
        extras = self._item[7]
        return dict(extras.get("headers") or {}) if extras else {}

    def nack(self, delay: float | None = None, reason: str = "nack") -> None:
        """Not now: when the handler returns, the message is tried again in its place.

        ``delay`` in seconds; by default the channel's back-off.
        """
        if delay is not None and not 0 <= delay <= 86_400:
            raise BadRequest(f"nack(delay={delay!r}) is refused: it must be 0 to 86400 seconds")
        self.verdict = (delay, False, reason)

    def reject(self, reason: str = "rejected") -> None:
        """Never: when the handler returns, the message is parked without a further attempt."""
        self.verdict = (None, True, reason)

    def once(self, connection: Any) -> bool:
        """True if this message has no effect in ``connection``'s database yet; records that it has.

        The record is written beside your own rows, in your own transaction: commit them together,
        and a message that comes twice has its effect once. Raises StaleAssignment if the partition
        has been handed on meanwhile.
        """
        return record_once(connection, self)
