"""The embedded default: a journal in one SQLite file, with one writer thread and group commit.

What lives here: the queue, the writer and those who wait for it. What the file looks like is in
:mod:`broker.journal.sqlite_schema`, how it is written in :mod:`broker.journal.sqlite_store`, how
it is read in :mod:`broker.journal.sqlite_reader`.

``append`` puts records on a list and returns. The writer takes all that has gathered, encodes it,
writes it in one transaction and wakes those, and only those, whose records are in it. While it
writes, the next group gathers: the slower the disk, the larger the groups. On a fast disk a group
would hold a single record, and every record would cost a commit and several changes of thread; so
the writer leaves GATHER_S between two commits unless somebody waits who cannot do anything else
(``urgent``). A record that comes alone is written at once.

The first failure is the last: a journal that could not write, commit or sync is failed for good,
whoever waits and whoever appends later is told so, and nothing is tried again, because after a
failed sync nobody knows what the disk holds. Opening the store anew reads it and finds out.
"""

from __future__ import annotations

import logging
import os
import threading
from time import monotonic
from typing import Any, Callable, Iterator, Literal, Sequence

from broker.core.topics.records import AnyRecord
from broker.errors import JournalError
from broker.journal.bases import Base
from broker.journal.codec import BODIES, CHECKSUM, CHECKSUM_START, RUNS, Row, encode
from broker.journal.faults import gap, mismatch
from broker.journal.sqlite_reader import read_base, read_channel, read_checksum
from broker.journal.sqlite_schema import BUSY_TIMEOUT_S, translate
from broker.journal.sqlite_store import Store
from broker.journal.sqlite_trim import delete_rows, sync_log, write_base

log = logging.getLogger(__name__)

#: How long ``durability="flush"`` may leave a write unsynced.
SYNC_INTERVAL_S = 1.0
#: How long records may gather after a commit while nobody urgent waits.
GATHER_S = 0.002
#: How much is written before the write-ahead log is folded into the main file.
CHECKPOINT_BYTES = 16 * 1024 * 1024
#: What a row costs in the write-ahead log beside its blobs, roughly.
_ROW_OVERHEAD_BYTES = 2048

# channel, first sequence, records; None instead of records: drop the channel.
_Item = tuple[str, int, tuple[AnyRecord, ...] | None]


class SqliteJournal:
    """The journals of many channels in one file. See :class:`broker.journal.Journal`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        durability: Literal["fsync", "flush"] = "fsync",
        *,
        sync_interval_s: float = SYNC_INTERVAL_S,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        on_failure: Callable[[JournalError], None] | None = None,
    ) -> None:
        if durability not in ("fsync", "flush"):
            raise ValueError(f"durability is 'fsync' or 'flush', not {durability!r}")
        # The lock and the log stand beside the file itself, not beside a link to it.
        self.path = os.path.realpath(path)
        self.durability = durability
        self._sync_interval_s = sync_interval_s
        self._checkpoint_bytes = checkpoint_bytes
        self._on_failure = on_failure
        self._store = Store(
            self.path, sync_each_write=durability == "fsync", busy_timeout_s=busy_timeout_s
        )
        heads = self._store.heads
        # Only the writer thread looks at these; the failure is set by the thread that it starts.
        self._folding: threading.Thread | None = None
        self._folding_failure: Exception | None = None
        self._checksums = {channel: head.checksum for channel, head in heads.items()}
        self._bytes_in_log = 0
        self._synced_at = monotonic()
        # What follows is guarded by the lock; _durable is also read without it, see wait_durable.
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._next = {channel: head.sequence + 1 for channel, head in heads.items()}
        self._durable = {channel: head.sequence for channel, head in heads.items()}
        self._queue: list[_Item] = []
        self._waiters: dict[str, list[tuple[int, threading.Lock]]] = {}
        self._drops: list[threading.Lock] = []
        self._failure: JournalError | None = None
        self._closing = False
        self._sleeping = False  # the writer waits for a first record
        self._urgent = False
        self._written_at = 0.0
        self._commits = self._rows = self._rows_per_commit_max = 0
        self._encode_seconds = self._write_seconds = 0.0
        self._writer = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._writer.start()

    def channels(self) -> list[str]:
        """The names of the channels in the store, in order of creation."""
        with self._lock:
            return list(self._durable)

    def append(self, channel: str, expected: int, records: Sequence[AnyRecord]) -> int:
        """Queue ``records`` as the sequences expected, expected+1 ...; return the last one."""
        for record in records:
            if not record.durable:
                raise JournalError(f"channel {channel!r}: {record.kind} is never journaled")
        with self._lock:
            self._raise_unless_open()
            following = self._next.get(channel, 1)
            if expected != following:
                raise mismatch(channel, expected, following)
            if not records:
                return expected - 1
            last = expected + len(records) - 1
            self._next[channel] = last + 1
            self._queue.append((channel, expected, tuple(records)))
            if self._sleeping:
                self._wake.notify()
        return last

    def durable(self, channel: str) -> int:
        """The last sequence of the channel that is durable in the sense of ``durability``."""
        return self._durable.get(channel, 0)

    def wait_durable(
        self, channel: str, sequence: int, timeout: float, urgent: bool = True
    ) -> bool:
        """Wait until ``sequence`` is durable; False when the time is over. Raises if it failed."""
        # Without the lock: the number only rises, and reading a dict is one step.
        if self._durable.get(channel, 0) >= sequence:
            return True
        with self._lock:
            if self._durable.get(channel, 0) >= sequence:
                return True
            self._raise_failure()
            # Each waiter has a lock of its own, so a commit wakes nobody whom it does not concern.
            signal = threading.Lock()
            signal.acquire()
            waiter = (sequence, signal)
            self._waiters.setdefault(channel, []).append(waiter)
            if urgent and not self._urgent:
                self._urgent = True
                self._wake.notify()
        signal.acquire(timeout=max(0.0, timeout))
        with self._lock:
            waiting = self._waiters.get(channel, [])
            if waiter in waiting:
                waiting.remove(waiter)
                if not waiting:
                    del self._waiters[channel]
            if self._durable.get(channel, 0) >= sequence:
                return True
            self._raise_failure()
            return False

    def base(self, channel: str) -> Base:
        """Where the channel's journal starts: ``NO_BASE`` unless it was trimmed."""
        return read_base(self.path, channel)

    def read(self, channel: str, first: int | None = None) -> Iterator[tuple[int, Any]]:
        """The channel's durable records from ``first`` on, checked: raises JournalCorrupt.

        Without ``first`` from the first one that was not trimmed.
        """
        return read_channel(self.path, channel, first, self.durable(channel))

    def checksum(self, channel: str, sequence: int) -> int:
        """The checksum of a durable record that is there; raises JournalGap if it is not."""
        base = self.base(channel)
        if sequence == base.sequence:
            return base.checksum
        found = read_checksum(self.path, channel, sequence)
        if found is None:
            raise gap(channel, sequence, "it was trimmed, or was never written")
        return found

    def trim(self, channel: str, base: Base) -> int:
        """Remove the durable records up to ``base``; returns how many. Never moves a base back."""
        if self.durability == "flush":
            sync_log(self.path)  # a base must not outlive, in a power cut, what it was made from
        write_base(self.path, channel, base)
        return delete_rows(self.path, channel)

    def drop(self, channel: str) -> None:
        """Remove a deleted channel's records; returns when they are gone.

        The caller appends nothing to the channel meanwhile; afterwards it may be made anew.
        """
        with self._lock:
            self._raise_unless_open()
            if channel not in self._next:
                return
            signal = threading.Lock()
            signal.acquire()
            self._drops.append(signal)
            self._queue.append((channel, 0, None))
            self._wake.notify()
        signal.acquire()
        with self._lock:
            self._raise_failure()

    def close(self) -> None:
        """Commit what is queued, sync and close. Raises JournalError if that fails.

        It fails too when another process holds the write lock for two busy timeouts.
        """
        with self._lock:
            failed_before = self._failure is not None
            self._closing = self._store.closing = True
            self._wake.notify()
        self._writer.join()
        if self._failure is not None and not failed_before:
            raise self._failure

    def size_bytes(self) -> int:
        """What the store takes on disk now, its write-ahead log included."""
        paths = (self.path, self.path + "-wal")
        return sum(os.path.getsize(path) for path in paths if os.path.exists(path))

    def statistics(self) -> dict[str, int | float]:
        """Counts and times since opening, for operators.

        ``write_seconds`` includes the sync of each commit with ``durability="fsync"``;
        ``sync_seconds`` are the separate syncs of ``durability="flush"``.
        """
        with self._lock:
            return {
                "commits": self._commits,
                "rows": self._rows,
                "rows_per_commit": self._rows / self._commits if self._commits else 0.0,
                "rows_per_commit_max": self._rows_per_commit_max,
                "rows_queued": sum(len(item[2] or ()) for item in self._queue),
                "encode_seconds": self._encode_seconds,
                "write_seconds": self._write_seconds,
                "sync_seconds": self._store.sync_seconds,
                "checkpoint_seconds": self._store.checkpoint_seconds,
                "checkpoint_aside_seconds": self._store.checkpoint_aside_seconds,
            }

    def _raise_failure(self) -> None:
        """With the lock held. A fresh exception each time: many threads raise it."""
        if self._failure is not None:
            raise type(self._failure)(self._failure.message, **self._failure.details)

    def _raise_unless_open(self) -> None:
        self._raise_failure()
        if self._closing:
            raise JournalError(f"store {self.path} is closed", path=self.path)

    # --- the writer thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            if self._folding is not None:
                self._folding.join()
                if self._folding_failure is not None:
                    raise self._folding_failure
            self._store.close()
        except Exception as error:
            failure = translate(error, self.path, "cannot write")
            log.error("the journal failed, it takes nothing more: %s", failure, exc_info=error)
            self._fail(failure)

    def _turn(self) -> bool:
        """Write one group, if there is one, then do what is due. False when all is done."""
        items, closing = self._take()
        start = 0
        for index, (channel, _, records) in enumerate(items):
            if records is None:
                self._write(items[start:index])
                self._drop(channel)
                start = index + 1
        self._write(items[start:])
        if not self._store.is_synced and monotonic() >= self._synced_at + self._sync_interval_s:
            self._store.sync()
            self._synced_at = monotonic()
        if self._bytes_in_log >= self._checkpoint_bytes:
            self._fold_log()
        return not closing

    def _fold_log(self) -> None:
        """Fold the log into the main file, the bulk of it aside, so that commits go on."""
        if self._folding is None:
            self._folding = threading.Thread(
                target=self._fold_aside, name="journal-checkpoint", daemon=True
            )
            self._folding.start()
        elif not self._folding.is_alive():
            self._folding = None
            if self._folding_failure is not None:
                raise self._folding_failure
            self._store.checkpoint()
            self._bytes_in_log = 0

    def _fold_aside(self) -> None:
        try:
            self._store.checkpoint_aside()
        except Exception as error:
            self._folding_failure = error

    def _take(self) -> tuple[list[_Item], bool]:
        """All that is queued; nothing when a sync is due first. And whether it was the last."""
        with self._wake:
            self._sleeping = True
            while not self._queue and not self._closing:
                due_s = None
                if not self._store.is_synced:
                    due_s = self._synced_at + self._sync_interval_s - monotonic()
                    if due_s <= 0:
                        break
                self._wake.wait(due_s)
            self._sleeping = False
            while self._queue and not self._urgent and not self._closing:
                left_s = self._written_at + GATHER_S - monotonic()
                if left_s <= 0:
                    break
                self._wake.wait(left_s)
            self._urgent = False
            items, self._queue = self._queue, []
            return items, self._closing

    def _write(self, items: list[_Item]) -> None:
        if not items:
            return
        started = monotonic()
        rows, lasts = self._encode(items)
        encoded = monotonic()
        self._store.insert(rows)
        written = monotonic()
        self._bytes_in_log += sum(_row_bytes(row) for row in rows)
        with self._lock:
            self._commits += 1
            self._rows += len(rows)
            self._rows_per_commit_max = max(self._rows_per_commit_max, len(rows))
            self._encode_seconds += encoded - started
            self._write_seconds += written - encoded
            self._written_at = written
            self._durable.update(lasts)
            for channel, last in lasts.items():
                self._wake_waiters(channel, last)

    def _encode(self, items: list[_Item]) -> tuple[list[Row], dict[str, int]]:
        rows: list[Row] = []
        lasts: dict[str, int] = {}
        for channel, sequence, records in items:
            previous = self._checksums.get(channel, CHECKSUM_START)
            for record in records or ():
                row = encode(channel, sequence, record, previous)
                rows.append(row)
                previous = row[CHECKSUM]
                sequence += 1
            self._checksums[channel] = previous
            lasts[channel] = sequence - 1
        return rows, lasts

    def _wake_waiters(self, channel: str, last: int) -> None:
        waiting = self._waiters.get(channel)
        if not waiting:
            return
        for sequence, signal in waiting:
            if sequence <= last:
                signal.release()
        still = [waiter for waiter in waiting if waiter[0] > last]
        if still:
            self._waiters[channel] = still
        else:
            del self._waiters[channel]

    def _drop(self, channel: str) -> None:
        self._store.drop(channel)
        self._checksums.pop(channel, None)
        with self._lock:
            self._next.pop(channel, None)
            self._durable.pop(channel, None)
            self._drops.pop(0).release()

    def _fail(self, failure: JournalError) -> None:
        with self._lock:
            self._failure = failure
            self._queue.clear()
            for waiting in self._waiters.values():
                for _, signal in waiting:
                    signal.release()
            self._waiters.clear()
            for signal in self._drops:
                signal.release()
            self._drops.clear()
        self._store.abandon()
        if self._on_failure is not None:
            self._on_failure(failure)


def _row_bytes(row: Row) -> int:
    return _ROW_OVERHEAD_BYTES + len(row[RUNS]) + len(row[BODIES] or b"")
