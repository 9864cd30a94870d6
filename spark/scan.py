"""Where the records are: one journal out of a live store and its Parquet archive. No Spark here.

A channel's journal is the archive's files up to some sequence, and the store from there on; the
two may overlap, since records are trimmed from the store after they were archived. :func:`extents`
says what there is, :func:`ranges` cuts it into stretches that can be read in parallel, and
:func:`read` reads one of them. Each sequence is in one stretch, and each stretch asks the store
first and fills from the archive what has been trimmed meanwhile: so nothing comes twice and
nothing is missing at the seam, also while a trim is under way.

Records never change, so a stretch needs no transaction over the whole of it.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import Any, Iterator, NamedTuple, Sequence

from broker.errors import JournalError
from broker.journal.codec import CHECKSUM_START, COLUMNS, SEQUENCE
from broker.journal.sqlite_schema import connect_readonly, translate

#: Rows fetched at a time.
CHUNK_RECORDS = 500

_NO_BODIES = [name if name != "bodies" else "NULL" for name in COLUMNS]


class Place(NamedTuple):
    """Where a journal is kept: the store's file, the archive's folder, or both."""

    store: str | None
    archive: str | None


class Extent(NamedTuple):
    """What there is of one channel's journal."""

    channel: str
    first: int
    """The first record that exists; above 1 the ones before it were trimmed, or are lost."""
    last: int
    """The last record that is durable."""


class Stretch(NamedTuple):
    """A stretch of one channel's journal, both ends included; the unit of parallel reading."""

    channel: str
    first: int
    last: int


def extents(place: Place, channel: str | None = None) -> list[Extent]:
    """What there is, by channel. Raises JournalError when there is no such store or archive."""
    found: dict[str, tuple[int, int]] = {}
    for name, (first, last) in _archived(place.archive, channel).items():
        found[name] = (first, last)
    for name, (first, last) in _stored(place.store, channel).items():
        other = found.get(name)
        # Where both have the channel, a hole between them shows as missing records.
        found[name] = (min(first, other[0]), max(last, other[1])) if other else (first, last)
    return [Extent(name, first, last) for name, (first, last) in sorted(found.items())]


def ranges(
    found: Sequence[Extent], after: dict[str, int], upto: dict[str, int], records_max: int
) -> list[Stretch]:
    """Stretches of at most ``records_max`` records, of what lies in ``after < sequence <= upto``.

    >>> ranges([Extent("orders", 1, 5)], {"orders": 1}, {}, 3)
    [Stretch(channel='orders', first=2, last=4), Stretch(channel='orders', first=5, last=5)]
    """
    stretches: list[Stretch] = []
    for extent in found:
        first = max(extent.first, after.get(extent.channel, 0) + 1)
        last = min(extent.last, upto.get(extent.channel, extent.last))
        stretches += [
            Stretch(extent.channel, start, min(start + records_max - 1, last))
            for start in range(first, last + 1, records_max)
        ]
    return stretches


def read(place: Place, stretch: Stretch, bodies: bool) -> Iterator[Sequence[Any]]:
    """The rows of a stretch in order, in the columns of the codec; missing ones are left out."""
    expected = stretch.first
    for row in _store_rows(place.store, stretch, bodies):
        if row[SEQUENCE] > expected:
            yield from _archive_rows(place.archive, stretch.channel, expected, row[SEQUENCE] - 1)
        yield row
        expected = row[SEQUENCE] + 1
    if expected <= stretch.last:
        yield from _archive_rows(place.archive, stretch.channel, expected, stretch.last)


def checksum_before(place: Place, stretch: Stretch) -> int | None:
    """The checksum that the stretch's first record continues; None when it cannot be told."""
    if stretch.first == 1:
        return CHECKSUM_START
    before = stretch.first - 1
    if place.store is not None:
        with closing(connect(place.store)) as connection:
            for table in ("records", "bases"):
                found = _checksum_in(connection, table, stretch.channel, before)
                if found is not None:
                    return found
    for row in _archive_rows(place.archive, stretch.channel, before, before):
        return int(row[COLUMNS.index("checksum")])
    return None


def connect(path: str) -> sqlite3.Connection:
    """A read-only connection, also to a store on a medium that cannot be written at all."""
    if not os.path.isfile(path):
        raise JournalError(f"there is no store {path}", path=path)
    connection = connect_readonly(path)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        return connection
    except sqlite3.OperationalError:
        connection.close()
        if os.path.exists(path + "-wal") and os.path.getsize(path + "-wal"):
            raise
        # Without a write-ahead log nobody writes: SQLite need not coordinate with anybody.
        uri = "file:" + os.path.abspath(path).replace("?", "%3f").replace("#", "%23")
        return sqlite3.connect(uri + "?mode=ro&immutable=1", uri=True, isolation_level=None)


def _stored(store: str | None, channel: str | None) -> dict[str, tuple[int, int]]:
    if store is None:
        return {}
    try:
        with closing(connect(store)) as connection:
            heads = connection.execute("SELECT channel, sequence FROM heads").fetchall()
            return {
                name: (_first_stored(connection, name, last), last)
                for name, last in heads
                if channel in (None, name)
            }
    except sqlite3.Error as error:
        raise translate(error, store, "the list of channels") from error


def _first_stored(connection: sqlite3.Connection, channel: str, last: int) -> int:
    lowest = "SELECT min(sequence) FROM records WHERE channel = ?"
    found = connection.execute(lowest, (channel,)).fetchone()[0]
    return last + 1 if found is None else int(found)


def _archived(archive: str | None, channel: str | None) -> dict[str, tuple[int, int]]:
    if archive is None:
        return {}
    if not os.path.isdir(archive):
        raise JournalError(f"there is no archive {archive}", path=archive)
    from broker.journal import archive as archives

    found: dict[str, tuple[int, int]] = {}
    for file in archives.list_files(archive, channel):
        first, last = found.get(file.channel, (file.first, file.last))
        found[file.channel] = (min(first, file.first), max(last, file.last))
    return found


def _store_rows(store: str | None, stretch: Stretch, bodies: bool) -> Iterator[Sequence[Any]]:
    if store is None:
        return
    columns = ", ".join(COLUMNS if bodies else _NO_BODIES)
    select = (
        f"SELECT {columns} FROM records WHERE channel = ? AND sequence >= ? AND sequence <= ? "
        "ORDER BY sequence LIMIT ?"
    )
    first = stretch.first
    try:
        with closing(connect(store)) as connection:
            while first <= stretch.last:
                limits = (stretch.channel, first, stretch.last, CHUNK_RECORDS)
                rows = connection.execute(select, limits).fetchall()
                if not rows:
                    return
                yield from rows
                first = rows[-1][SEQUENCE] + 1
    except sqlite3.Error as error:
        context = f"channel {stretch.channel!r}, journal record {first}"
        raise translate(
            error, store, context, channel=stretch.channel, sequence=first
        ) from error


def _archive_rows(
    archive: str | None, channel: str, first: int, last: int
) -> Iterator[Sequence[Any]]:
    if archive is None:
        return
    from broker.journal import archive as archives

    for file in archives.list_files(archive, channel):
        if file.first <= last and file.last >= first:
            yield from archives.read_rows(file, max(first, file.first), min(last, file.last))


def _checksum_in(
    connection: sqlite3.Connection, table: str, channel: str, sequence: int
) -> int | None:
    try:
        found = connection.execute(
            f"SELECT checksum FROM {table} WHERE channel = ? AND sequence = ?", (channel, sequence)
        ).fetchone()
    except sqlite3.OperationalError:
        return None  # a store of an older format has no such table
    return None if found is None else int(found[0])
