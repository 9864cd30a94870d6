"""MessageLog: the messages of a topic that somebody is still owed. One copy, read by position."""

from __future__ import annotations

from itertools import repeat
from typing import Final, Sequence, TypeAlias

from broker.core.topics.records import Put

#: (stamp, accepted at in ms, publisher, number, format, body)
Entry: TypeAlias = tuple[int, int, str, int, int, bytes]

STAMP: Final = 0
BODY: Final = 5
#: Released places are taken out of the list when there are so many, and as many as are kept.
COMPACT_COUNT_MIN = 1_000


class MessageLog:
    """Messages from position ``first`` to ``last``; those before ``first`` are released."""

    def __init__(self) -> None:
        self.first = 1
        self.last = 0
        self.size = 0  # bytes of the bodies that are kept
        self._entries: list[Entry | None] = []
        self._start = 1  # the position of the list's first place

    def __len__(self) -> int:
        return self.last - self.first + 1

    def add(self, record: Put) -> None:
        """Append the messages of a record. A place in a log without a gap: checked by the topic."""
        count = len(record.bodies)
        formats = record.formats
        self._entries += zip(
            range(record.stamp, record.stamp + count),
            repeat(record.at_ms),
            repeat(record.publisher),
            range(record.number, record.number + count),
            repeat(formats) if isinstance(formats, int) else formats,
            record.bodies,
        )
        self.last += count
        self.size += sum(map(len, record.bodies))

    def release(self, upto: int) -> int:
        """Let go of everything up to a position; how many that were."""
        upto = min(upto, self.last)
        count = upto - self.first + 1
        if count <= 0:
            return 0
        begin = self.first - self._start
        gone = self._entries[begin : begin + count]
        self.size -= sum([len(entry[BODY]) for entry in gone if entry is not None])
        self.first = upto + 1
        dead = self.first - self._start
        if dead >= COMPACT_COUNT_MIN and dead >= len(self):
            del self._entries[:dead]
            self._start = self.first
        else:
            self._entries[begin : begin + count] = [None] * count
        return count

    def start(self, first: int, entries: list[Entry]) -> None:
        """An empty log starts at another position, as after what was trimmed."""
        assert not self._entries
        self._start = self.first = first
        self._entries += entries
        self.last = first - 1 + len(entries)
        self.size = sum([len(entry[BODY]) for entry in entries])

    def after(self, position: int, count_max: int, bytes_max: int) -> list[Entry]:
        """The next messages after a position: at least one if there is one, else within limits."""
        begin = max(position + 1, self.first) - self._start
        found: list[Entry] = []
        size = 0
        for entry in self._entries[begin : begin + count_max]:
            assert entry is not None
            size += len(entry[BODY])
            if found and size > bytes_max:
                break
            found.append(entry)
        return found

    def stamps_after(self, position: int, count_max: int) -> Sequence[int]:
        """The stamps of the next messages after a position."""
        begin = max(position + 1, self.first) - self._start
        return [entry[STAMP] for entry in self._entries[begin : begin + count_max] if entry]
