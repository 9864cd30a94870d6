"""Trimming a SQLite store, from any process, whether or not a broker is writing to it.

What lives here: the base is written, then the rows that it replaces are deleted. What may not: the
decision how far, and the proof that the archive has those rows; see :mod:`broker.journal.archive`.

The base comes first, in a transaction of its own. From then on readers start after it, so whether
the rows below it still exist makes no difference to anybody, and a trim that was interrupted is
finished by the next one. The rows go in small chunks, and between two of them the write lock is
let go for longer than it was held: a broker waits for moments, never for the whole trim.

No row is ever deleted that is not at or below the base which stands in the store at that moment.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Callable

from broker.errors import JournalError
from broker.journal.bases import Base, state_checksum
from broker.journal.sqlite_reader import select_base
from broker.journal.sqlite_schema import BUSY_TIMEOUT_S, migrate, roll_back, translate

#: How much is deleted under one hold of the write lock: rows, and bytes of blobs.
CHUNK_ROWS = 200
CHUNK_BYTES = 4 * 1024 * 1024
#: The lock is free between two chunks for so many times as long as it was held, at least PAUSE_S.
PAUSE_FACTOR = 2.0
PAUSE_S = 0.01
#: After so many chunks the write-ahead log is folded into the main file.
CHECKPOINT_CHUNKS = 50

_SIZES = """
SELECT sequence, length(runs) + ifnull(length(bodies), 0) FROM records
WHERE channel = ? AND sequence <= (SELECT sequence FROM bases WHERE channel = ?)
ORDER BY sequence LIMIT ?
"""
_DELETE = """
DELETE FROM records WHERE channel = ? AND sequence <= ?
AND sequence <= (SELECT sequence FROM bases WHERE channel = ?)
"""
_WRITE_BASE = """
INSERT INTO bases VALUES (?, ?, ?, ?, ?) ON CONFLICT (channel) DO UPDATE SET
sequence = excluded.sequence, checksum = excluded.checksum, state = excluded.state,
state_checksum = excluded.state_checksum
"""


def write_base(path: str, channel: str, base: Base) -> bool:
    """Let the channel start after ``base``; False when it does already, or starts even later.

    Raises JournalError when the store's record there is not the one that ``base`` was made from.
    """
    try:
        with closing(_connect(path)) as connection:
            migrate(connection)
            connection.execute("BEGIN IMMEDIATE")
            try:
                written = _write_base(connection, channel, base)
                connection.execute("COMMIT")
            except BaseException:
                roll_back(connection)
                raise
            return written
    except sqlite3.Error as error:
        raise translate(error, path, f"cannot trim channel {channel!r}") from error


def _write_base(connection: sqlite3.Connection, channel: str, base: Base) -> bool:
    if select_base(connection, channel).sequence >= base.sequence:
        return False
    where = "SELECT checksum FROM records WHERE channel = ? AND sequence = ?"
    found = connection.execute(where, (channel, base.sequence)).fetchone()
    if found != (base.checksum,):
        raise JournalError(
            f"channel {channel!r} is not trimmed: its journal record {base.sequence} is another "
            "one than was archived; it was deleted and made anew meanwhile. Export it again",
            channel=channel, sequence=base.sequence,
        )  # fmt: skip
    connection.execute(_WRITE_BASE, (channel, *base, state_checksum(channel, base)))
    return True


def delete_rows(
    path: str, channel: str, on_deleted: Callable[[int], None] = lambda count: None
) -> int:
    """Delete what is still there at or below the channel's base; returns how many rows."""
    total = chunks = 0
    try:
        with closing(_connect(path)) as connection:
            migrate(connection)
            while (upto := _next_chunk(connection, channel)) is not None:
                started = monotonic()
                count = connection.execute(_DELETE, (channel, upto, channel)).rowcount
                held_s = monotonic() - started
                total += count
                chunks += 1
                on_deleted(count)
                if chunks % CHECKPOINT_CHUNKS == 0:
                    _fold_log(connection)
                _pause(held_s)
            if chunks:
                _fold_log(connection)
    except sqlite3.Error as error:
        raise translate(error, path, f"cannot trim channel {channel!r}") from error
    return total


def sync_log(path: str) -> None:
    """Sync what was written without a sync (``durability="flush"``): only that may be archived.

    What the machine could still forget after a power cut must not be in an archive, which would
    then tell another story than the store.
    """
    try:
        log_fd = os.open(path + "-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(log_fd)
        finally:
            os.close(log_fd)
    except FileNotFoundError:
        return  # all of it is in the main file, which SQLite has synced before it dropped the log
    except OSError as error:
        raise translate(error, path, "cannot sync its log") from error


def _connect(path: str) -> sqlite3.Connection:
    """A connection that may write, to a store that exists."""
    uri = Path(path).absolute().as_uri() + "?mode=rw"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    # As in the broker: an automatic checkpoint would ignore a failed sync.
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def _next_chunk(connection: sqlite3.Connection, channel: str) -> int | None:
    """The last sequence of the next rows to delete; None when there are none. Takes no lock."""
    size = 0
    upto: int | None = None
    for sequence, length in connection.execute(_SIZES, (channel, channel, CHUNK_ROWS)).fetchall():
        size += length
        if upto is not None and size > CHUNK_BYTES:
            break
        upto = sequence
    return upto


def _fold_log(connection: sqlite3.Connection) -> None:
    """So that the log does not grow with the trim. Raises when a sync fails, never when busy."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _pause(held_s: float) -> None:
    """Let others write. SQLite's waiting is a poll, so a lock let go too briefly is not noticed."""
    sleep(max(PAUSE_S, PAUSE_FACTOR * held_s))
