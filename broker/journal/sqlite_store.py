"""The SQLite file in the hands of its one writer: locked, checked, written, synced, marked.

No thread and no queue lives here: :mod:`broker.journal.sqlite` has them. Readers open connections
of their own.

A group is written by one INSERT with many rows, in autocommit: the statement is the transaction.
Every call into SQLite gives up Python's global lock, and a busy process lets up to 5 ms pass
before it is given back. One statement pays that once; BEGIN, one INSERT per row and COMMIT would
pay it for each. That is why the store's bookkeeping is done by triggers.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from contextlib import closing
from itertools import chain
from time import monotonic
from typing import Any, Sequence

from broker.errors import Deposed, JournalError
from broker.journal.codec import CHANNEL, COLUMNS, SEQUENCE, Row
from broker.journal.mark import Mark, Synced
from broker.journal.sqlite_schema import (
    BUSY_TIMEOUT_S,
    Head,
    check,
    connect_readonly,
    create,
    is_new,
    migrate,
    translate,
)

log = logging.getLogger(__name__)

# Prepared statements are kept per number of rows: each size up to 128, then 256. All of them
# together take some 10 MB.
_ROWS_EXACT_MAX = 128
_ROWS_LARGE = 256
# The row exists, or it is not the one after the channel's head: the store's fence, see the trigger.
_DEPOSED = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_TRIGGER)
# How many busy timeouts a writer that is to end still waits for the lock.
_TIMEOUTS_WHEN_CLOSING = 2
_ROW_MARKS = "(" + ",".join("?" * len(COLUMNS)) + ")"


def _lock_file(path: str) -> int:
    """Hold the store for this process. flock ends with the process, however that ends."""
    fd = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise JournalError(
            f"store {path} is in use by another broker (process {holder}). "
            "Stop that one, or give this one a store of its own",
            path=path,
        ) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


class Store:
    """One open store, held by the writer.

    Opening it raises JournalError. What the later calls raise, save Deposed, comes as SQLite or the
    system says it; the journal translates it and never calls again.
    """

    def __init__(
        self, path: str, *, sync_each_write: bool, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        self.path = path
        #: Set, by whichever thread, when the store is to be closed: waiting for a lock then ends.
        self.closing = False
        self._busy_timeout_s = busy_timeout_s
        self.heads: dict[str, Head] = {}
        self.sync_seconds = 0.0
        self.checkpoint_seconds = 0.0
        self.checkpoint_aside_seconds = 0.0
        self._sync_each_write = sync_each_write
        self._id, self._writes, self._writes_synced = b"", 0, 0
        self._lock = -1
        self._mark: Mark | None = None
        self._connection: sqlite3.Connection | None = None
        self._wal_fd = -1
        try:
            self._lock = _lock_file(path)
            self._mark = Mark(path + ".mark")
            self._open(self._mark.read())
        except BaseException as error:
            self.abandon()
            if isinstance(error, JournalError) or not isinstance(error, Exception):
                raise
            raise translate(error, path, "cannot open") from error

    def insert(self, rows: list[Row]) -> None:
        """Write the rows, all or none. Returns when they are as durable as the store promises."""
        try:
            if len(rows) <= _ROWS_EXACT_MAX:
                self._insert(rows)
            else:
                self._insert_many(rows)
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode not in _DEPOSED:
                raise
            raise self._deposed(rows) from error
        self._written(len(rows))

    def drop(self, channel: str) -> None:
        """Remove a channel's records, its base and its head."""
        connection = self._open_connection()
        self._lock_for_writing("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM records WHERE channel = ?", (channel,))
        connection.execute("DELETE FROM bases WHERE channel = ?", (channel,))
        removed = connection.execute("DELETE FROM heads WHERE channel = ?", (channel,)).rowcount
        connection.execute("COMMIT")
        self._written(removed)

    @property
    def is_synced(self) -> bool:
        return self._writes_synced == self._writes

    def sync(self) -> None:
        """Sync what has been written without a sync, and say so in the mark."""
        started = monotonic()
        # The log alone has to be synced: what left it for the main file was synced by SQLite.
        getattr(os, "fdatasync", os.fsync)(self._wal_fd)
        self._set_mark()
        self.sync_seconds += monotonic() - started

    def checkpoint(self) -> None:
        """Copy the write-ahead log into the main file, so that the log starts over.

        Not left to SQLite's automatic checkpoint: that one ignores a failed sync and tries again,
        and a sync that succeeds after one that failed proves nothing.
        """
        started = monotonic()
        self._open_connection().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self.checkpoint_seconds += monotonic() - started

    def checkpoint_aside(self) -> None:
        """The bulk of a checkpoint, from another thread, beside the writer.

        It cannot let the log start over while the writer goes on; a ``checkpoint`` by the writer
        afterwards finds little left to copy and does that.
        """
        started = monotonic()
        # A trim in another process does not disturb it: passive, it takes no write lock, and it
        # reports a checkpoint that is under way elsewhere as a row, not as an error.
        with closing(
            sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
        ) as connection:
            connection.execute("PRAGMA fullfsync = ON")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self.checkpoint_aside_seconds += monotonic() - started

    def close(self) -> None:
        """Sync, fold the write-ahead log into the main file and let go of the store."""
        try:
            if not self.is_synced:
                self.sync()
            # Passive: it does not wait for those who read. What it leaves stays in the log.
            self.checkpoint()
            self._open_connection().close()
            self._connection = None
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the store without writing to it: what is there is left for recovery."""
        if self._connection is not None:
            # The last connection to close would checkpoint; one that cannot write must be the last.
            try:
                last = connect_readonly(self.path)
                last.execute("SELECT 1 FROM store").fetchall()
            except sqlite3.Error:
                last = None
            self._connection.close()
            self._connection = None
            if last is not None:
                last.close()
        if self._mark is not None:
            self._mark.close()
            self._mark = None
        for name in ("_wal_fd", "_lock"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)

    # --- opening

    def _open(self, synced: Synced | None) -> None:
        if is_new(self.path, synced):
            create(self.path)
        self._id, self._writes, self.heads = check(self.path, synced)
        connection = sqlite3.connect(
            self.path,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_ROWS_EXACT_MAX + 16,
            timeout=self._busy_timeout_s,
        )
        self._connection = connection
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._sync_each_write else 'NORMAL'}")
        connection.execute("PRAGMA fullfsync = ON")  # without it a sync on macOS is none
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        migrate(connection)
        # An empty write makes SQLite create the log, so that its name can be synced below.
        connection.execute("UPDATE store SET writes = writes")
        self._wal_fd = os.open(self.path + "-wal", os.O_RDWR | os.O_CLOEXEC)
        directory = os.open(os.path.dirname(os.path.abspath(self.path)), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self.sync()

    # --- writing

    def _insert(self, rows: list[Row]) -> None:
        sql = "INSERT INTO records VALUES" + ",".join([_ROW_MARKS] * len(rows))
        self._lock_for_writing(sql, list(chain.from_iterable(rows)))

    def _insert_many(self, rows: list[Row]) -> None:
        connection = self._open_connection()
        self._lock_for_writing("BEGIN IMMEDIATE")
        start = 0
        while start < len(rows):
            left = len(rows) - start
            size = _ROWS_LARGE if left >= _ROWS_LARGE else _ROWS_EXACT_MAX
            self._insert(rows[start : start + size])
            start += size
        connection.execute("COMMIT")

    def _lock_for_writing(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Run a statement that takes the write lock, however long somebody else holds it.

        Busy is no failure: nothing was written and nothing is in doubt. A trim holds the lock for
        moments, but its process may be stopped in one of them, and that must not end the broker.
        Nor may it keep the broker from ending: once the store is closing, this gives up.
        """
        connection = self._open_connection()
        timeouts_closing = 0
        while True:
            try:
                connection.execute(sql, values)
                return
            except sqlite3.OperationalError as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                timeouts_closing += self.closing
                if timeouts_closing >= _TIMEOUTS_WHEN_CLOSING:
                    raise self._given_up() from error
                log.warning(
                    "store %s: another process has held its write lock for %g s; waiting on",
                    self.path, self._busy_timeout_s,
                )  # fmt: skip

    def _given_up(self) -> JournalError:
        return JournalError(
            f"store {self.path} is closed, but what was queued is not written: another process, "
            "perhaps an export, holds the store's write lock. Nothing of it was answered. End that "
            "process before the store is opened again",
            path=self.path,
        )

    def _written(self, writes: int) -> None:
        self._writes += writes
        if self._sync_each_write:
            self._set_mark()

    def _set_mark(self) -> None:
        assert self._mark is not None
        self._mark.write(self._id, self._writes)
        self._writes_synced = self._writes

    def _open_connection(self) -> sqlite3.Connection:
        assert self._connection is not None, "the store is closed"
        return self._connection

    def _deposed(self, rows: Sequence[Row]) -> Deposed:
        """Name the channel that somebody else has written to."""
        with closing(connect_readonly(self.path)) as connection:
            heads = dict(connection.execute("SELECT channel, sequence FROM heads").fetchall())
        channel, sequence = _first_refused(rows, heads)
        if sequence <= heads.get(channel, 0):
            done = f"journal record {sequence} has been written by another broker"
        else:
            done = (
                f"another broker has deleted it: its journal ends at {heads.get(channel, 0)}, and "
                f"record {sequence} does not follow"
            )
        return Deposed(
            f"channel {channel!r}: {done}; this one no longer owns the channel and must stop "
            "serving it",
            channel=channel, sequence=sequence,
        )  # fmt: skip


def _first_refused(rows: Sequence[Row], heads: dict[str, int]) -> tuple[str, int]:
    """Channel and sequence of the first row that does not follow from the heads of the store."""
    following = {channel: sequence + 1 for channel, sequence in heads.items()}
    for row in rows:
        channel, sequence = row[CHANNEL], row[SEQUENCE]
        if sequence != following.get(channel, 1):
            return channel, sequence
        following[channel] = sequence + 1
    return rows[0][CHANNEL], rows[0][SEQUENCE]
