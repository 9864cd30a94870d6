"""What a SQLite store looks like: its tables, how one is made, and the checks before one is used.

Everything here works on a path and read-only connections, except :func:`create` and
:func:`migrate`. A store that is refused must be left exactly as it is, and a connection that may
write would tidy up after itself: on closing it folds the write-ahead log, without its damaged
part, into the main file.

``heads`` has the end of each channel, ``store`` counts every write; triggers keep both, inside
the statement that writes. ``writes = dropped + the sum of all heads`` at all times. ``bases`` has
the beginning of each channel that was trimmed; trimming is no write, and a head stays.

The trigger is also the fence against a broker that was deposed and does not know it: a row that is
not the one after its channel's head is refused. The primary key alone would not do, because the
rows that it would collide with may have been trimmed.

Format 1 had no ``bases`` and no fence in the trigger. It is read as it is, and migrated when it is
opened for writing.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from broker.errors import JournalCorrupt, JournalError, JournalGap, JournalVersion
from broker.journal.mark import Synced

FORMAT = 2
#: What can be read; a store of an older format is migrated before it is written.
FORMATS = (1, FORMAT)
APPLICATION_ID = 0x4661724C  # "FarL": tells `file` and other tools whose database this is

# 4 KiB pages measured best: larger ones rewrite more per small commit and gain nothing for bodies.
_PAGE_BYTES = 4096

#: How long a connection waits for another one's write lock before SQLite says that it is busy.
BUSY_TIMEOUT_S = 30.0

_BASES = """
CREATE TABLE bases (
    channel TEXT PRIMARY KEY NOT NULL, sequence INTEGER NOT NULL, checksum INTEGER NOT NULL,
    state BLOB NOT NULL, state_checksum INTEGER NOT NULL);
"""
# The fence comes first: what it refuses changes nothing.
_RECORD_WRITTEN = """
CREATE TRIGGER record_written AFTER INSERT ON records BEGIN
    SELECT RAISE(ABORT, 'deposed') WHERE new.sequence <>
        coalesce((SELECT sequence FROM heads WHERE channel = new.channel), 0) + 1;
    INSERT INTO heads VALUES (new.channel, new.sequence, new.checksum)
        ON CONFLICT (channel) DO UPDATE SET sequence = new.sequence, checksum = new.checksum;
    UPDATE store SET writes = writes + 1;
END;
"""
_TABLES = f"""
CREATE TABLE records (
    channel TEXT NOT NULL, sequence INTEGER NOT NULL, kind TEXT NOT NULL, at_ms INTEGER NOT NULL,
    publisher TEXT, subscriber TEXT, subscription TEXT, count INTEGER NOT NULL,
    checksum INTEGER NOT NULL, runs BLOB NOT NULL, bodies BLOB,
    PRIMARY KEY (channel, sequence));
CREATE TABLE heads (
    channel TEXT PRIMARY KEY NOT NULL, sequence INTEGER NOT NULL, checksum INTEGER NOT NULL);
{_BASES}
CREATE TABLE store (id BLOB NOT NULL, writes INTEGER NOT NULL, dropped INTEGER NOT NULL);
INSERT INTO store VALUES (randomblob(16), 0, 0);
{_RECORD_WRITTEN}
CREATE TRIGGER channel_dropped AFTER DELETE ON heads BEGIN
    UPDATE store SET writes = writes + 1, dropped = dropped + old.sequence + 1;
END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""

# One index look-up per channel, instead of a scan of the whole index. UNION, not UNION ALL:
# a damaged index can lead in a circle.
_CHANNELS_OF_RECORDS = """
WITH RECURSIVE found (channel) AS (
    SELECT min(channel) FROM records UNION
    SELECT (SELECT min(channel) FROM records WHERE channel > found.channel)
    FROM found WHERE found.channel IS NOT NULL)
SELECT channel FROM found
"""

# What SQLite says when the machine, not the file, is at fault.
_FAULTS_OF_MACHINE = {
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_AUTH, sqlite3.SQLITE_INTERRUPT,
}  # fmt: skip
# Ours: a value that a column does not take.
_FAULTS_OF_CALLER = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError)
# All else that SQLite raises, and values of a type that nobody has ever written.
_FAULTS_OF_FILE = (sqlite3.DatabaseError, TypeError, ValueError)


class Head(NamedTuple):
    """Where a channel's journal ends."""

    sequence: int
    checksum: int


def connect_readonly(path: str) -> sqlite3.Connection:
    """A connection for one reader. It cannot write, and so leaves a damaged store as it is."""
    uri = Path(path).absolute().as_uri() + "?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def translate(error: Exception, path: str, context: str, **details: Any) -> JournalError:
    """Our error for one of SQLite's or the system's: whose fault it is, and what to do."""
    if isinstance(error, JournalError):
        return error
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) == errno.ENOSPC:
        text = "the disk is full. Nothing of this write is visible; free space and restart"
        return JournalError(f"store {path}: {context}: {text}", path=path, **details)
    if code == sqlite3.SQLITE_BUSY:
        text = (
            "another process, perhaps an export, holds the store's write lock and does not let go. "
            "Wait until that process is done, or end it, and try again"
        )
        return JournalError(f"store {path}: {context}: {text}", path=path, **details)
    is_of_file = isinstance(error, _FAULTS_OF_FILE) and not isinstance(error, _FAULTS_OF_CALLER)
    if code in _FAULTS_OF_MACHINE or not is_of_file:
        return JournalError(f"store {path}: {context}: {error!r}", path=path, **details)
    return JournalCorrupt(
        f"store {path}: {context}: the file is damaged: {error}. Restore it from a copy",
        path=path, **details,
    )  # fmt: skip


class Contents(NamedTuple):
    """What a checked store says of itself."""

    store_id: bytes
    writes: int
    heads: dict[str, Head]


def is_new(path: str, synced: Synced | None) -> bool:
    """Whether a store is to be made here; refuses a path where one has been lost."""
    if _size(path) == 0:
        if synced is None and _size(path + "-wal") == 0:
            return True
        raise JournalGap(
            f"store {path} is missing or empty, but it has been written to: "
            f"{synced.writes if synced else 'an unknown number of'} writes were synced. "
            "Restore it from a copy, or remove its .mark and -wal files to start anew",
            path=path,
        )
    with closing(connect_readonly(path)) as connection:
        # A process that died while it made the store leaves a database without a table.
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return bool(synced is None and version == 0 and tables == 0)


def create(path: str) -> None:
    """Make an empty store; a crash on the way leaves one that :func:`is_new` makes again."""
    with closing(
        sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    ) as connection:
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a store of an older format, which has passed :func:`check`, to this one."""
    if format_of(connection) == FORMAT:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Somebody else may have done it while this one waited for the lock.
        if format_of(connection) != FORMAT:
            connection.execute(_BASES)
            connection.execute("DROP TRIGGER record_written")
            connection.execute(_RECORD_WRITTEN)
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction that failed. After a full disk SQLite has done so by itself."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def format_of(connection: sqlite3.Connection) -> int:
    """The format that a store says it has."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def check(path: str, synced: Synced | None) -> Contents:
    """Refuse a store that is not ours, is cut short, or does not agree with itself."""
    with closing(connect_readonly(path)) as connection:
        connection.execute("BEGIN")
        _check_format(connection, path)
        rows = connection.execute("SELECT id, writes, dropped FROM store").fetchall()
        heads = {
            channel: Head(sequence, checksum)
            for channel, sequence, checksum in connection.execute(
                "SELECT channel, sequence, checksum FROM heads ORDER BY rowid"
            )
        }
        channels = {channel for (channel,) in connection.execute(_CHANNELS_OF_RECORDS)} - {None}
        bases: dict[str, int] = {}
        if format_of(connection) >= 2:
            bases = dict(connection.execute("SELECT channel, sequence FROM bases").fetchall())
    if len(rows) != 1:
        raise _disagrees(path, f"its table 'store' has {len(rows)} rows, not 1")
    contents = Contents(rows[0][0], rows[0][1], heads)
    if contents.writes != rows[0][2] + sum(head.sequence for head in heads.values()):
        raise _disagrees(path, f"{contents.writes} writes were counted, but {_ends(heads)}")
    headless = (channels | bases.keys()) - heads.keys()
    if headless:
        names = ", ".join(map(repr, sorted(headless)))
        raise _disagrees(path, f"there is no head for channel {names}")
    for channel, sequence in bases.items():
        if sequence > heads[channel].sequence:
            reason = f"channel {channel!r} was trimmed up to {sequence}, but {_ends(heads)}"
            raise _disagrees(path, reason)
    if synced is not None:
        _check_mark(path, contents, synced)
    return contents


def _check_format(connection: sqlite3.Connection, path: str) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = format_of(connection)
    if application != APPLICATION_ID or version not in FORMATS:
        raise JournalVersion(
            f"store {path} is not a Fairlead journal of format {FORMAT}: its application id is "
            f"{application:#x}, its format {version}. Use the version of Fairlead that wrote it",
            path=path,
        )


def _check_mark(path: str, contents: Contents, synced: Synced) -> None:
    if synced.store_id != contents.store_id:
        raise JournalCorrupt(
            f"store {path} is not the one its .mark file belongs to: it was replaced, or its id is "
            "damaged. Restore it, or remove the .mark file if this is intended",
            path=path,
        )
    if synced.writes > contents.writes:
        raise JournalGap(
            f"store {path} ends at write {contents.writes} ({_ends(contents.heads)}), but write "
            f"{synced.writes} was synced: {synced.writes - contents.writes} writes are missing at "
            "its end. Restore the store and its -wal file from a copy; to go on without those "
            "writes, remove the .mark file",
            path=path, writes=contents.writes, writes_synced=synced.writes,
            ends={channel: head.sequence for channel, head in contents.heads.items()},
        )  # fmt: skip


def _disagrees(path: str, reason: str) -> JournalCorrupt:
    text = f"store {path} is damaged, it does not agree with itself: {reason}"
    return JournalCorrupt(text, path=path, reason=reason)


def _ends(heads: dict[str, Head]) -> str:
    ends = [f"{channel!r} at {head.sequence}" for channel, head in heads.items()]
    return "channels end: " + (", ".join(ends[:20]) or "none") + " ..." * (len(ends) > 20)


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0
