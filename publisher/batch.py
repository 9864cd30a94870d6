"""Batch and Call: the messages of a publisher, column by column, and the calls that carry them.

What lives here: data of the outbox, and where a message is found in it. What may not: a decision
about what is sent when; that is ``outbox``. Pure like it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from broker.errors import BrokerError


class Batch:
    """Messages that gathered together, column by column, and what became of them."""

    __slots__ = (
        "partitions", "bodies", "formats", "timestamps", "priorities", "extras", "size",
        "formed_upto", "resolved_upto", "calls", "errors",
    )  # fmt: skip

    def __init__(self) -> None:
        self.partitions: list[str] = []
        self.bodies: list[bytes] = []
        self.formats: list[int] = []
        self.timestamps: list[int] = []
        self.priorities: dict[int, int] = {}
        self.extras: dict[int, dict[str, Any]] = {}
        self.size = 0
        self.formed_upto = 0
        self.resolved_upto = 0
        self.calls: list[Call] = []
        self.errors: dict[int, BrokerError] = {}

    def outcome(self, index: int) -> tuple[int, bool] | BrokerError | None:
        """(sequence, duplicate), the error, or None while it is open."""
        if index >= self.resolved_upto:
            return None
        error = self.errors.get(index)
        if error is not None:
            return error
        for call in self.calls:
            if call.start <= index < call.stop:
                return call.sequence_of(index)
        raise AssertionError(f"message {index} was resolved by no call")


@dataclass(slots=True)
class Call:
    """One publish call: the messages start..stop of a batch, gathered into runs."""

    batch: Batch
    start: int
    stop: int
    partitions: list[str]
    firsts: list[int]
    counts: list[int]
    order: Sequence[int] | None  # index of each message in the batch, run after run; None: as is
    resent: bool = False
    number: int = 0  # of the calls that the outbox has formed
    record: int = 0
    duplicates: frozenset[int] = frozenset()  # indexes in the batch
    duplicate_count: int = 0  # as the broker counts: also what it knew from an earlier sending

    def column(self, values: Sequence[Any]) -> list[Any]:
        """A column of the batch in the order of the runs."""
        if self.order is None:
            return list(values[self.start : self.stop])
        return [values[index] for index in self.order]

    def arguments(
        self, publisher: str, epoch: int, wait: bool, place: list[int]
    ) -> tuple[Any, ...]:
        """The arguments of ``publish_runs``: the messages in columns.

        ``place``: [connection, number], which rises from call to call.
        """
        batch = self.batch
        priorities = extras = None
        if batch.priorities:
            priorities = self.column([batch.priorities.get(i, 0) for i in range(self.stop)])
        if batch.extras:
            extras = self.column([batch.extras.get(i) for i in range(self.stop)])
        return (
            publisher, epoch, self.partitions, self.firsts, self.counts,
            _folded(self.column(batch.timestamps)), self.column(batch.bodies), priorities,
            _folded(self.column(batch.formats)), extras, wait, place,
        )  # fmt: skip

    def sequence_of(self, index: int) -> tuple[int, bool]:
        """The sequence that a message of the batch was given."""
        place = index - self.start if self.order is None else list(self.order).index(index)
        for first, count in zip(self.firsts, self.counts):
            if place < count:
                return first + place, index in self.duplicates
            place -= count
        raise AssertionError(f"message {index} is in no run")


@dataclass(slots=True)
class Learn:
    """The next sequences of these partitions must be asked for before a call can be formed."""

    partitions: list[str]


class Moved(BrokerError):
    """Not an error: the message travels in another batch now."""

    def __init__(self, batch: Batch, index: int) -> None:
        super().__init__("moved")
        self.batch = batch
        self.index = index


def follow(batch: Batch, index: int) -> tuple[Batch, int]:
    """Where a message is now."""
    while isinstance(moved := batch.errors.get(index), Moved):
        batch, index = moved.batch, moved.index
    return batch, index


def _folded(values: list[int]) -> list[int] | int:
    """A column that is all the same, given once."""
    return values[0] if values.count(values[0]) == len(values) else values
