"""Reading a channel from a SQLite store, in order and with every check. Nothing is written here.

A reader has its own connection, which cannot write. It holds a chunk of records at a time and no
transaction between two chunks, so a slow reader does not keep the write-ahead log from starting
over.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any, Iterator

from broker.core.records import Record
from broker.errors import JournalError
from broker.journal.codec import CHECKSUM, CHECKSUM_START, COLUMNS, SEQUENCE, decode
from broker.journal.faults import corrupt, gap
from broker.journal.sqlite_schema import Head, connect_readonly, translate

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


def read_channel(
    path: str, channel: str, first: int, known_end: int
) -> Iterator[tuple[int, Record]]:
    """The records from ``first`` to the channel's end as it is now; raises JournalCorrupt.

    ``known_end`` is a sequence that is known to exist: an index that lost its pages would otherwise
    show an empty channel. A record is handed out after its own check; whether the journal is whole
    is known at its end.
    """
    sequence = first
    try:
        with closing(connect_readonly(path)) as connection:
            head = _head(connection, channel, known_end)
            previous = _checksum_before(connection, channel, first)
            while sequence <= head.sequence:
                limits = (channel, sequence, head.sequence, CHUNK_RECORDS)
                rows = connection.execute(_SELECT_CHUNK, limits).fetchall()
                if not rows:
                    raise gap(channel, sequence, f"the journal ends at {head.sequence}")
                for row in rows:
                    record = _checked(row, channel, sequence, previous, head)
                    yield sequence, record
                    previous = row[CHECKSUM]
                    sequence += 1
    except (sqlite3.Error, TypeError, ValueError) as error:
        context = f"channel {channel!r}, journal record {sequence}"
        raise translate(error, path, context, channel=channel, sequence=sequence) from error


def _checked(row: Any, channel: str, sequence: int, previous: int, head: Head) -> Record:
    if row[SEQUENCE] != sequence:
        raise gap(channel, sequence, f"the next one that exists is {row[SEQUENCE]}")
    record = decode(row, previous)
    if sequence == head.sequence and row[CHECKSUM] != head.checksum:
        reason = f"the journal ended with checksum {head.checksum}, not {row[CHECKSUM]}"
        raise corrupt(channel, sequence, reason)
    return record


def _head(connection: sqlite3.Connection, channel: str, known_end: int) -> Head:
    found = connection.execute(_SELECT_HEAD, (channel,)).fetchone()
    sequence, checksum, last = found or (0, CHECKSUM_START, 0)
    if sequence < known_end:
        raise gap(channel, sequence + 1, f"the journal ended at {known_end}, now at {sequence}")
    if last is None or last < sequence:
        raise gap(channel, (last or 0) + 1, f"the journal ends at {sequence}")
    if last > sequence:
        raise corrupt(channel, last, f"the journal ends at {sequence}")
    return Head(sequence, checksum)


def _checksum_before(connection: sqlite3.Connection, channel: str, first: int) -> int:
    if first < 1:
        raise JournalError(f"channel {channel!r}: journal sequences start at 1, not {first}")
    if first == 1:
        return CHECKSUM_START
    where = "SELECT checksum FROM records WHERE channel = ? AND sequence = ?"
    found = connection.execute(where, (channel, first - 1)).fetchone()
    return CHECKSUM_START if found is None else int(found[0])
