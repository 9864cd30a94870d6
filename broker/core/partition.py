"""Partition and Line: the ordered messages under one key, and one subscription's way through them.

What may live here: the order rule, and the arithmetic of positions. What may not: who owns a line,
when it is its turn (global_queue, assignment), and anything about time.

A ``Line`` is the part of the backup queue that belongs to one (subscription, partition): it owns
the references to the messages that the subscription has not settled. Positions p of a line:

    1 .. settled            done, forgotten
    settled+1 .. delivered  in the owner's sub-queue
    delivered+1 .. handed   were handed out once and came back; their order is fixed
    after both              waiting, sorted by (timestamp, sequence)

``messages[head]`` is position settled+1.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from broker.core.message import BODY, PRIORITY, Entry, PartitionKey

if TYPE_CHECKING:
    from broker.core.sub_queue import SubQueue
    from broker.core.subscription import Subscription


class Line:
    """One subscription's unsettled messages of one partition, and how far it has come."""

    __slots__ = (
        "key", "subscription", "messages", "head", "settled", "delivered", "handed",
        "owner", "epoch", "previous", "avoid", "recalled", "parked",
        "attempt", "later_attempt", "suspect_upto", "trial", "later_trial",
        "last_timestamp", "irregular",
        "urgent", "level", "queued_level", "since_ms", "not_before_ms",
    )  # fmt: skip

    def __init__(self, key: PartitionKey, subscription: Subscription) -> None:
        self.key = key
        self.subscription = subscription
        self.messages: list[Entry] = []
        self.head = 0
        self.settled = 0
        self.delivered = 0
        self.handed = 0
        # The assignment.
        self.owner: SubQueue | None = None
        self.epoch = 0
        self.previous: SubQueue | None = None
        self.avoid: SubQueue | None = None
        self.recalled = ""  # the reason, once its owner was asked to hand it back
        self.parked = False
        # ``attempt`` belongs to position settled+1; ``later_attempt`` to the others up to
        # suspect_upto: messages that were in flight when their subscriber died. Any of them may
        # have killed it, so they are handed out one at a time until all of them are settled.
        self.attempt = 1
        self.later_attempt = 1
        self.suspect_upto = 0
        # At its last attempt after a crash a message is tried with nothing else in the process, so
        # that another death proves that it, and not one of a thousand others, is the killer.
        self.trial = self.later_trial = False
        # The order rule.
        self.last_timestamp = 0
        self.irregular = False  # the waiting sequences are not one contiguous stretch
        # The rank in the global queue.
        self.urgent: dict[int, int] | None = None  # priority -> waiting messages, if any is > 0
        self.level = 0
        self.queued_level = -1  # the level under which the global queue holds it; -1: it does not
        self.since_ms = 0
        self.not_before_ms = 0

    def __repr__(self) -> str:
        owner = self.owner.subscriber if self.owner else None
        return (
            f"<Line {self.key} settled={self.settled} delivered={self.delivered} "
            f"handed={self.handed} unsettled={self.unsettled} owner={owner} epoch={self.epoch} "
            f"attempt={self.attempt}>"
        )

    @property
    def unsettled(self) -> int:
        """How many messages the subscription still owes an answer for."""
        return len(self.messages) - self.head

    @property
    def waiting(self) -> int:
        """How many of them are in nobody's sub-queue."""
        return len(self.messages) - self.head - self.delivered + self.settled

    @property
    def in_flight(self) -> int:
        """How many of them are in the owner's sub-queue."""
        return self.delivered - self.settled

    @property
    def first_unfixed(self) -> int:
        """The index in ``messages`` of the first one that was never handed out."""
        return self.head + max(self.handed, self.delivered) - self.settled

    def add(self, entries: list[Entry]) -> None:
        """Take accepted messages, in the order of their sequences, into the order of the line."""
        messages = self.messages
        if not messages or messages[-1] < entries[0]:
            if len(entries) == 1:
                messages.append(entries[0])
                return
            if sorted(entries) == entries:  # one pass in C when they are in order
                messages.extend(entries)
                return
        self.irregular = True
        # Only what was never handed out is sorted: an older message that comes too late is next.
        low = self.first_unfixed
        for entry in entries:
            insort(messages, entry, low)

    def add_urgent(self, entries: list[Entry]) -> None:
        """Count the priorities of waiting messages and set the level from them."""
        urgent = self.urgent
        for entry in entries:
            priority = entry[PRIORITY]
            if priority:
                if urgent is None:
                    urgent = self.urgent = {}
                urgent[priority] = urgent.get(priority, 0) + 1
        if urgent:
            self.level = max(urgent)

    def remove_urgent(self, entries: list[Entry]) -> None:
        """The opposite of :meth:`add_urgent`."""
        urgent = self.urgent
        assert urgent is not None
        for entry in entries:
            priority = entry[PRIORITY]
            if priority:
                urgent[priority] -= 1
                if not urgent[priority]:
                    del urgent[priority]
        self.level = max(urgent) if urgent else 0
        if not urgent:
            self.urgent = None

    def entries(self, first: int, count: int) -> list[Entry]:
        """The messages at positions first .. first+count-1."""
        start = self.head + first - self.settled - 1
        return self.messages[start : start + count]

    def settle(self, count: int) -> int:
        """Forget the first ``count`` messages; return the bytes of their bodies."""
        messages, head = self.messages, self.head
        if count == 1:
            size = len(messages[head][BODY])
        else:
            size = sum([len(entry[BODY]) for entry in messages[head : head + count]])
        head += count
        self.settled += count
        if self.suspect_upto:
            self._settle_attempts()
        if head == len(messages):
            messages.clear()
            head = 0
            self.irregular = False
        elif head >= 64 and head * 2 >= len(messages):
            del messages[:head]
            head = 0
        self.head = head
        return size

    def _settle_attempts(self) -> None:
        if self.settled >= self.suspect_upto:
            self.forget_attempts()
        else:
            self.attempt = self.later_attempt
            self.trial = self.later_trial

    def withdraw(self, first: int) -> None:
        """Take positions from ``first`` on out of the sub-queue; their order stays fixed."""
        assert self.settled < first <= self.delivered + 1, self
        if self.urgent is not None or any(
            entry[PRIORITY] for entry in self.entries(first, self.delivered - first + 1)
        ):
            self.add_urgent(self.entries(first, self.delivered - first + 1))
        self.handed = max(self.handed, self.delivered)
        self.delivered = first - 1

    def forget_attempts(self) -> None:
        """What comes next in the line was never tried."""
        self.attempt = self.later_attempt = 1
        self.suspect_upto = 0
        self.trial = self.later_trial = False

    def blame(self, attempts_max: int) -> None:
        """The owner died: everything in flight counts as tried, but no more than up to the last
        attempt, which is then a trial."""
        attempt = max(self.attempt, min(self.attempt + 1, attempts_max))
        if not self.suspect_upto and self.in_flight > 1:
            self.later_attempt = attempt
            self.later_trial = attempt >= attempts_max
        self.suspect_upto = max(self.suspect_upto, self.delivered)
        self.attempt = attempt
        self.trial = attempt >= attempts_max


class Partition:
    """What the channel keeps of a partition for ever: the next sequence; and a line per
    subscription."""

    __slots__ = ("key", "next_sequence", "lines")

    def __init__(self, key: PartitionKey, subscriptions: list[Subscription]) -> None:
        self.key = key
        self.next_sequence = 1
        self.lines = [Line(key, subscription) for subscription in subscriptions]
