"""The disk: the journal's twin in memory, with a writer that takes its time and may fail.

As in a real broker, an append only queues; a sync is started when something is queued, covers what
was written when it began, and then wakes everybody who waits for it. A crash keeps what was synced
and, as a disk may, some of what was not; the records of one append are one transaction. The disk
outlives the broker's processes.
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, Sequence

from broker.core.topics.records import AnyRecord
from broker.errors import JournalError
from broker.journal.bases import make_base
from broker.journal.codec import CHECKSUM, Row
from broker.journal.memory import MemoryJournal
from broker.journal.recovery import recover
from simulations.world.scheduler import MS_US, Pending, Process, World

#: Told of each record when it has become durable, in order.
OnDurable = Callable[[int, Any], None]


class Disk(MemoryJournal):
    """The journal of one channel on a simulated disk."""

    def __init__(self, world: World, random: Random, channel: str, on_durable: OnDurable) -> None:
        super().__init__("fsync", auto_sync=False)
        self.sync_us_max = 4 * MS_US
        self.changed = False  # something was appended since the world last looked
        self._world = world
        self._random = random
        self._channel = channel
        self._on_durable = on_durable
        self._told = 0  # the last sequence that on_durable has heard of
        self._recent: dict[int, Any] = {}  # written and not yet told
        self._ends: list[int] = []  # of the appends since the last crash: they are never torn
        self._owner = Process("nobody")
        self._on_failure: Callable[[JournalError], None] = _ignore
        self._waiting: list[tuple[int, Pending]] = []
        self._syncing = False
        self.archive: list[Row] = []  # what was trimmed

    def mount(self, owner: Process, on_failure: Callable[[JournalError], None]) -> None:
        """A broker process takes the disk up, and is told when a sync fails."""
        self._owner, self._on_failure = owner, on_failure
        self._waiting.clear()
        self._syncing = False

    def append(self, channel: str, expected: int, records: Sequence[AnyRecord]) -> int:
        """Queue records, and start a sync if none is under way."""
        last = super().append(channel, expected, records)
        self._recent.update(enumerate(records, expected))
        self._ends.append(last)
        self.changed = True
        self._start_sync()
        return last

    def when_durable(self, sequence: int) -> Pending:
        """To be yielded: done when the sequence is durable; fails as the journal does."""
        pending = Pending()
        if self.durable(self._channel) >= sequence:
            pending.complete(True)
        elif self._failure is not None:
            pending.complete(None, JournalError(self._failure.message))
        else:
            self._waiting.append((sequence, pending))
        return pending

    def _start_sync(self) -> None:
        if not self._syncing:
            self._syncing = True
            delay_us = 200 + self._random.randrange(self.sync_us_max)
            self._world.at(self._owner, delay_us, self._end_sync, self.written())

    def _end_sync(self, upto: dict[str, int]) -> None:
        self._syncing = False
        try:
            self.sync(upto)
        except JournalError as error:
            waiting, self._waiting = self._waiting, []
            for _, pending in waiting:
                pending.complete(None, error)
            self._on_failure(error)
            return
        self._tell()
        durable = self.durable(self._channel)
        if self.written()[self._channel] > durable:
            self._start_sync()
        ready = [pending for sequence, pending in self._waiting if sequence <= durable]
        self._waiting = [item for item in self._waiting if item[0] > durable]
        for pending in ready:
            pending.complete(True)

    def _tell(self) -> None:
        for sequence in range(self._told + 1, self.durable(self._channel) + 1):
            self._on_durable(sequence, self._recent.pop(sequence))
        self._told = self.durable(self._channel)

    def crash(self) -> int:
        """The broker's process is gone. Returns how many written records are lost with it."""
        synced = self.durable_on_disk()
        unsynced = self.written().get(self._channel, 0) - synced
        kept = self._random.choice([synced, *(end for end in self._ends if end > synced)]) - synced
        self._ends.clear()
        self.lose_unsynced(kept)
        self._tell()
        self._recent.clear()
        self.mount(Process("nobody"), _ignore)
        return unsynced - kept

    def trim_durable(self) -> int:
        """Archive and trim all that is durable, as ``fairlead export --trim`` does beside a broker.

        Returns how many records that were.
        """
        if self._failure is not None:
            return 0
        channel, sequence = recover(self, self._channel)
        before = self.base(self._channel).sequence
        rows = self._rows[self._channel][: sequence - before]
        if not rows:
            return 0
        self.archive += rows
        return self.trim(self._channel, make_base(channel, sequence, rows[-1][CHECKSUM]))

    def rows(self) -> list[Row]:
        """Every durable row of the channel, archived ones included."""
        count = self.durable_on_disk() - len(self.archive)
        return self.archive + self._rows[self._channel][:count]

    def durable_on_disk(self) -> int:
        """The last synced sequence, also of a journal that has failed."""
        return self._synced.get(self._channel, 0)


def _ignore(error: JournalError) -> None:
    """Nobody has the disk mounted."""
