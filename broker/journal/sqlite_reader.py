"""Reading a channel from a SQLite store, in order and with every check. Nothing is written here.

A reader has its own connection, which cannot write. It holds a chunk of records at a time and no
transaction between two chunks, so a slow reader does not keep the write-ahead log from starting
over. A trim may come in between; who loses records to it is told so, and can go on from the base.
Rows up to the base that are still there, because a trim was interrupted, are never looked at.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, Iterator

from broker.errors import JournalError
from broker.journal.bases import NO_BASE, Base, archived, checked_base
from broker.journal.codec import (
    CHECKSUM,
    CHECKSUM_START,
    COLUMNS,
    SEQUENCE,
    Row,
    check_link,
    decode,
)
from broker.journal.faults import corrupt, gap
from broker.journal.sqlite_schema import Head, connect_readonly, format_of, translate

#: How many records a reader holds at a time.
CHUNK_RECORDS = 64

_SELECT_CHUNK = (
    f"SELECT {', '.join(COLUMNS)} FROM records "
    "WHERE channel = ? AND sequence >= ? AND sequence <= ? ORDER BY sequence LIMIT ?"
)
_SELECT_HEAD = """
SELECT sequence, checksum, (SELECT max(sequence) FROM records WHERE channel = heads.channel)
FROM heads WHERE channel = ?
"""
_SELECT_PUBLISHED = """
SELECT sequence, publisher, runs FROM records
WHERE channel = ? AND sequence >= ? AND sequence <= ? AND kind = 'Published'
ORDER BY sequence LIMIT ?
"""
_SELECT_CHECKSUM = "SELECT checksum FROM records WHERE channel = ? AND sequence = ?"
_SELECT_BASE = "SELECT sequence, checksum, state, state_checksum FROM bases WHERE channel = ?"


def read_channel(
    path: str, channel: str, first: int | None, known_end: int
) -> Iterator[tuple[int, Any]]:
    """The records from ``first`` to the channel's end as it is now; raises JournalCorrupt.

    ``known_end`` is a sequence that is known to exist: an index that lost its pages would otherwise
    show an empty channel. A record is handed out after its own check; whether the journal is whole
    is known at its end.
    """
    sequence = first or 0
    try:
        with closing(connect_readonly(path)) as connection:
            base, head = _limits(connection, channel, known_end)
            sequence, previous = _start(connection, channel, first, base)
            for row in _rows(connection, channel, sequence, head.sequence):
                record = _checked(row, channel, sequence, previous, head)
                yield sequence, record
                previous = row[CHECKSUM]
                sequence += 1
    except (sqlite3.Error, TypeError, ValueError) as error:
        context = f"channel {channel!r}, journal record {sequence}"
        raise translate(error, path, context, channel=channel, sequence=sequence) from error


def read_base(path: str, channel: str) -> Base:
    """Where the channel's journal starts; raises JournalCorrupt."""
    try:
        with closing(connect_readonly(path)) as connection:
            return select_base(connection, channel)
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise translate(error, path, f"base of channel {channel!r}", channel=channel) from error


def read_limits(path: str, channel: str) -> tuple[Base, Head]:
    """Where the channel's journal starts and where it ends, as of one moment."""
    try:
        with closing(connect_readonly(path)) as connection:
            return _limits(connection, channel, 0)
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise translate(error, path, f"ends of channel {channel!r}", channel=channel) from error


def read_checksum(path: str, channel: str, sequence: int) -> int | None:
    """The checksum that the store has at a record; None when the record is not there."""
    try:
        with closing(connect_readonly(path)) as connection:
            found = connection.execute(_SELECT_CHECKSUM, (channel, sequence)).fetchone()
            return None if found is None else int(found[0])
    except (sqlite3.Error, TypeError, ValueError) as error:
        context = f"channel {channel!r}, journal record {sequence}"
        raise translate(error, path, context, channel=channel, sequence=sequence) from error


def read_published(
    path: str, channel: str, first: int, last: int
) -> Iterator[tuple[int, str, bytes]]:
    """Sequence, publisher and packed runs of the Published rows in first .. last, no bodies."""
    try:
        with closing(connect_readonly(path)) as connection:
            while True:
                limits = (channel, first, last, CHUNK_RECORDS * 8)
                rows = connection.execute(_SELECT_PUBLISHED, limits).fetchall()
                if not rows:
                    return
                yield from rows
                first = rows[-1][0] + 1
    except (sqlite3.Error, TypeError, ValueError) as error:
        context = f"channel {channel!r}, journal record {first}"
        raise translate(error, path, context, channel=channel, sequence=first) from error


def read_raw(
    path: str, channel: str, first: int, last: int, checksum_before: int
) -> Iterator[Row]:
    """The rows first .. last as they are stored, each checked against the chain, not decoded."""
    sequence, previous = first, checksum_before
    try:
        with closing(connect_readonly(path)) as connection:
            for row in _rows(connection, channel, first, last):
                if row[SEQUENCE] != sequence:
                    raise gap(channel, sequence, f"the next one that exists is {row[SEQUENCE]}")
                check_link(row, previous)
                yield row
                sequence, previous = sequence + 1, row[CHECKSUM]
    except (sqlite3.Error, TypeError, ValueError) as error:
        context = f"channel {channel!r}, journal record {sequence}"
        raise translate(error, path, context, channel=channel, sequence=sequence) from error


def select_base(connection: sqlite3.Connection, channel: str) -> Base:
    """The base of a channel as a connection sees it; a store of format 1 has none."""
    if format_of(connection) < 2:
        return NO_BASE
    return checked_base(channel, connection.execute(_SELECT_BASE, (channel,)).fetchone())


def _limits(connection: sqlite3.Connection, channel: str, known_end: int) -> tuple[Base, Head]:
    """Both ends of the channel, as of one moment."""
    connection.execute("BEGIN")
    try:
        base = select_base(connection, channel)
        return base, _head(connection, channel, known_end, base)
    finally:
        if connection.in_transaction:
            connection.execute("COMMIT")


def _rows(connection: sqlite3.Connection, channel: str, first: int, last: int) -> Iterator[Row]:
    """The rows first .. last, all there, a chunk in memory at a time."""
    while first <= last:
        limits = (channel, first, last, CHUNK_RECORDS)
        rows: list[Row] = connection.execute(_SELECT_CHUNK, limits).fetchall()
        if not rows or rows[0][SEQUENCE] != first:
            base = select_base(connection, channel)
            if first <= base.sequence:
                raise archived(channel, first, base)
            found = f"the next one that exists is {rows[0][SEQUENCE]}" if rows else ""
            raise gap(channel, first, found or f"the journal ends at {last}")
        yield from rows
        first = rows[-1][SEQUENCE] + 1


def _checked(row: Any, channel: str, sequence: int, previous: int, head: Head) -> Any:
    if row[SEQUENCE] != sequence:
        raise gap(channel, sequence, f"the next one that exists is {row[SEQUENCE]}")
    record = decode(row, previous)
    if sequence == head.sequence and row[CHECKSUM] != head.checksum:
        reason = f"the journal ended with checksum {head.checksum}, not {row[CHECKSUM]}"
        raise corrupt(channel, sequence, reason)
    return record


def _head(connection: sqlite3.Connection, channel: str, known_end: int, base: Base) -> Head:
    found = connection.execute(_SELECT_HEAD, (channel,)).fetchone()
    sequence, checksum, last = found or (0, CHECKSUM_START, 0)
    if sequence < known_end:
        raise gap(channel, sequence + 1, f"the journal ended at {known_end}, now at {sequence}")
    last = max(last or 0, base.sequence)
    if last < sequence:
        raise gap(channel, last + 1, f"the journal ends at {sequence}")
    if last > sequence:
        raise corrupt(channel, last, f"the journal ends at {sequence}")
    if sequence == base.sequence and checksum != base.checksum:
        reason = f"the journal ended with checksum {checksum}, its base has {base.checksum}"
        raise corrupt(channel, sequence, reason)
    return Head(sequence, checksum)


def _start(
    connection: sqlite3.Connection, channel: str, first: int | None, base: Base
) -> tuple[int, int]:
    """Where to start reading, and the checksum before that."""
    if first is None or first == base.sequence + 1:
        return base.sequence + 1, base.checksum
    if first < 1:
        raise JournalError(f"channel {channel!r}: journal sequences start at 1, not {first}")
    if first <= base.sequence:
        raise archived(channel, first, base)
    found = connection.execute(_SELECT_CHECKSUM, (channel, first - 1)).fetchone()
    return first, CHECKSUM_START if found is None else int(found[0])
