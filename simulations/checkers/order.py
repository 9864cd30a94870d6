"""The order of the messages of a line: which message a position stands for, and which are late.

What is compared here are the messages since the line was empty last. As long as timestamps do not
fall and positions and sequences run in parallel, nothing has to be looked at message by message:
the runs are only noted down. The first thing that breaks this (an older timestamp, a dropped id, a
late or redriven message, a position that stands for another message than expected) makes
:class:`_Messages` of them, and from then on each message is followed.
"""

from __future__ import annotations

from typing import NamedTuple

#: (record, first sequence, count, timestamps of those that are kept, sequences that are not)
AcceptedRun = tuple[int, int, int, list[int], "tuple[int, ...]"]
#: (name of the anomaly, record, text)
Found = tuple[str, int, str]

_NEVER = -(1 << 63)


class Order:
    """The order of one line."""

    __slots__ = ("_newest", "_newest_before", "_message", "_position", "_runs", "_handed",
                 "_messages")  # fmt: skip

    def __init__(self) -> None:
        self._newest = self._newest_before = _NEVER
        self._message: int | None = None  # the first sequence since the line was empty
        self._position = 0  # the position before it
        self._runs: list[AcceptedRun] = []
        self._handed: list[tuple[int, int, int]] = []  # (record, first position, last position)
        self._messages: _Messages | None = None

    def begin(self, message: int | None, position: int) -> list[Found]:
        """The line was empty, and starts anew with this sequence after this position.

        None: with no message that it knows of.
        """
        found = self.close()
        self._message, self._position = message, position
        self._runs, self._handed, self._messages = [], [], None
        self._newest_before = self._newest
        return found

    def accept(self, run: AcceptedRun) -> list[Found]:
        """These messages wait from now on; what a closer look at those before them shows."""
        found: list[Found] = []
        stamps = run[3]
        if len(stamps) == 1:
            oldest = newest = stamps[0]
            rises = not run[4]
        else:
            oldest, newest = (min(stamps), max(stamps)) if stamps else (self._newest, self._newest)
            rises = not run[4] and sorted(stamps) == stamps
        if self._messages is None and rises and oldest >= self._newest:
            self._runs.append(run)
        else:
            self._one_by_one(found).accept(run)
        if newest > self._newest:
            self._newest = newest
        return found

    def deliver(
        self, sequence: int, first: int, count: int, message: int, late: set[int], handed: int
    ) -> list[Found]:
        """A run was handed out; ``late`` are indexes in it, ``handed`` how far it had come."""
        start = self._message
        if (
            self._messages is None
            and not late
            and start is not None
            and message - start == first - self._position - 1
        ):
            last = first + count - 1
            if last > handed:
                self._handed.append((sequence, max(first, handed + 1), last))
            return []
        found: list[Found] = []
        messages = self._one_by_one(found)
        for index in range(count):
            messages.hand_out(found, sequence, first + index, message + index, index in late)
        return found

    def redrive(self, sequence: int, positions: list[int]) -> list[Found]:
        """Parked messages wait again; they will have other positions."""
        found: list[Found] = []
        if positions:
            self._one_by_one(found).redrive(sequence, positions)
        return found

    def close(self) -> list[Found]:
        """What was left out although its turn had come."""
        return [] if self._messages is None else self._messages.left_out()

    def _one_by_one(self, found: list[Found]) -> _Messages:
        messages = self._messages
        if messages is None:
            messages = self._messages = _Messages(self._newest_before)
            for run in self._runs:
                messages.accept(run)
            shift = (self._message or 0) - self._position - 1
            for sequence, first, last in self._handed:
                for position in range(first, last + 1):
                    messages.hand_out(found, sequence, position, position + shift, False)
            self._runs, self._handed = [], []
        return messages


class _Place(NamedTuple):
    """A message that was handed out: compares as the order of a partition does."""

    timestamp: int
    message: int
    at: int

    def passed(self, timestamp: int, message: int, since: int) -> bool:
        """Whether this one was handed out before an older one that waited since that record."""
        return (timestamp, message) < (self.timestamp, self.message) and self.at > since


class _Messages:
    """The messages of one line since it was empty, each by itself."""

    __slots__ = ("accepted", "waiting", "places", "placed", "newest", "previous", "newest_handed")

    def __init__(self, newest_before: int) -> None:
        self.accepted: dict[int, tuple[int, int]] = {}  # message -> timestamp, record
        self.waiting: dict[int, int] = {}  # message -> the record since which it waits
        self.places: dict[int, int] = {}  # position -> message
        self.placed: dict[int, _Place] = {}  # message -> where it was handed out last
        self.newest: _Place | None = None
        self.previous: _Place | None = None
        self.newest_handed = newest_before

    def accept(self, run: AcceptedRun) -> None:
        sequence, first, count, stamps, gone = run
        kept = [item for item in range(first, first + count) if item not in gone]
        for message, timestamp in zip(kept, stamps):
            self.accepted[message] = timestamp, sequence
            self.waiting[message] = sequence

    def redrive(self, sequence: int, positions: list[int]) -> None:
        for position in positions:
            message = self.places.get(position)
            if message in self.accepted:
                self.waiting[message] = sequence

    def hand_out(
        self, found: list[Found], sequence: int, position: int, message: int, late: bool
    ) -> None:
        known = self.places.get(position)
        if known is None:
            self.places[position] = message
            self._place(found, sequence, position, message, late)
        elif known != message:
            text = f"position {position} was message {known}, and is now {message}"
            found.append(("inconsistent-offsets", sequence, text))

    def _place(
        self, found: list[Found], sequence: int, position: int, message: int, late: bool
    ) -> None:
        if message not in self.accepted:
            text = f"position {position} was given to message {message}, which was not kept"
            found.append(("unexpected", sequence, text))
            return
        timestamp, accepted_at = self.accepted[message]
        since = self.waiting.pop(message, None)
        if since is None:
            text = f"message {message} has position {position} and another one"
            found.append(("duplicate", sequence, text))
            since = accepted_at
        is_older = timestamp < self.newest_handed
        if is_older != late:
            text = (
                f"message {message} of time {timestamp}, after one of {self.newest_handed}: "
                f"recorded as late: {late}, expected: {is_older}"
            )
            found.append(("late-unrecorded", sequence, text))
        for other in (self.newest, self.previous):
            if other is not None and other.passed(timestamp, message, since):
                text = (
                    f"message {message} waited since record {since}, but {other.message}, which "
                    f"comes after it, was handed out first, by record {other.at}"
                )
                found.append(("nonmonotonic-send", sequence, text))
                break
        self._note(_Place(timestamp, message, sequence))

    def _note(self, place: _Place) -> None:
        self.placed[place.message] = self.previous = place
        if self.newest is None or place > self.newest:
            self.newest = place
        if place.timestamp > self.newest_handed:
            self.newest_handed = place.timestamp

    def left_out(self) -> list[Found]:
        """Messages that still wait, though one after them was handed out while they did."""
        found: list[Found] = []
        if not self.waiting or not self.placed:
            return found
        placed = sorted(self.placed.values(), reverse=True)
        for message, since in self.waiting.items():
            timestamp = self.accepted[message][0]
            for place in placed:
                if (place.timestamp, place.message) <= (timestamp, message):
                    break
                if place.at > since:
                    text = (
                        f"message {message}, waiting since record {since}, was left out; record "
                        f"{place.at} handed out message {place.message}, which comes after it"
                    )
                    found.append(("lost-write", since, text))
                    break
        return found
