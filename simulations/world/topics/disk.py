"""The disk of a broker with topics: one journal for each, one writer, one sync for all of them.

As in a real store the appends of all topics are one line: a sync covers what was written when it
began, and a crash keeps a beginning of the line. What was synced stays; of the rest a disk may have
some. The disk outlives the broker's processes.
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, NamedTuple, Sequence

from broker.core.topics.records import AnyRecord
from broker.errors import JournalError
from broker.journal.codec import Row
from broker.journal.memory import MemoryJournal
from simulations.world.scheduler import MS_US, Pending, Process, World

#: Told of each record when it has become durable, in the order of the appends: journal, sequence.
OnDurable = Callable[[str, int, Any], None]


class Append(NamedTuple):
    """One append that is not durable yet."""

    journal: str
    first: int
    last: int
    records: list[AnyRecord]


class TopicsDisk(MemoryJournal):
    """The journals of all topics on a simulated disk."""

    def __init__(
        self,
        world: World,
        random: Random,
        on_durable: OnDurable,
        on_dropped: Callable[[str], None],
    ) -> None:
        super().__init__("fsync", auto_sync=False)
        self.sync_us_max = 4 * MS_US
        self.changed = False  # something was appended since the world last looked
        self.rows: list[Row] = []  # everything that was ever durable
        self._world = world
        self._random = random
        self._on_durable, self._on_dropped = on_durable, on_dropped
        self._queue: list[Append] = []
        self._owner = Process("nobody")
        self._on_failure: Callable[[JournalError], None] = _ignore
        self._waiting: list[tuple[str, int, Pending]] = []
        self._syncing = False

    def mount(self, owner: Process, on_failure: Callable[[JournalError], None]) -> None:
        """A broker process takes the disk up, and is told when a sync fails."""
        self._owner, self._on_failure = owner, on_failure
        self._waiting.clear()
        self._syncing = False

    def append(self, channel: str, expected: int, records: Sequence[AnyRecord]) -> int:
        """Queue records, and start a sync if none is under way."""
        last = super().append(channel, expected, records)
        self._queue.append(Append(channel, expected, last, list(records)))
        self.changed = True
        self._start_sync()
        return last

    def drop(self, channel: str) -> None:
        """Remove a topic's journal, after all that was written before; it waits for the sync."""
        self.sync()
        self._tell(len(self._queue))
        self._world.at(self._owner, 0, self._wake)
        super().drop(channel)
        self._on_dropped(channel)

    def when_durable(self, journal: str, sequence: int) -> Pending:
        """To be yielded: done when the record is durable; fails as the journal does."""
        pending = Pending()
        if self.durable(journal) >= sequence:
            pending.complete(True)
        elif self._failure is not None:
            pending.complete(None, JournalError(self._failure.message))
        else:
            self._waiting.append((journal, sequence, pending))
        return pending

    def _start_sync(self) -> None:
        if not self._syncing and self._queue:
            self._syncing = True
            delay_us = 200 + self._random.randrange(self.sync_us_max)
            self._world.at(self._owner, delay_us, self._end_sync, self._queue[-1])

    def _end_sync(self, newest: Append) -> None:
        self._syncing = False
        # What a removal has waited for is synced already.
        count = self._queue.index(newest) + 1 if newest in self._queue else 0
        try:
            self.sync({item.journal: item.last for item in self._queue[:count]})
        except JournalError as error:
            waiting, self._waiting = self._waiting, []
            for _, _, pending in waiting:
                pending.complete(None, error)
            self._on_failure(error)
            return
        self._tell(count)
        self._start_sync()
        self._wake()

    def _wake(self) -> None:
        ready = [item for item in self._waiting if item[1] <= self.durable(item[0])]
        self._waiting = [item for item in self._waiting if item not in ready]
        for _, _, pending in ready:
            pending.complete(True)

    def _tell(self, count: int) -> None:
        told, self._queue = self._queue[:count], self._queue[count:]
        for item in told:
            base = self.base(item.journal).sequence
            for sequence, record in enumerate(item.records, item.first):
                self.rows.append(self._rows[item.journal][sequence - base - 1])
                self._on_durable(item.journal, sequence, record)

    def crash(self) -> int:
        """The broker's process is gone. Returns how many of its appends are lost with it."""
        kept = self._random.randint(0, len(self._queue))
        lost = len(self._queue) - kept
        self.reopen()
        for item in self._queue[:kept]:
            self._synced[item.journal] = item.last
        self._tell(kept)
        self._queue.clear()
        self.lose_unsynced()
        self.mount(Process("nobody"), _ignore)
        return lost

    @property
    def settled(self) -> bool:
        """Whether everything that was written is durable."""
        return not self._queue


def _ignore(error: JournalError) -> None:
    """Nobody has the disk mounted."""
