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
from itertools import repeat
from typing import Any, Iterator, NamedTuple, Sequence

import msgpack  # type: ignore[import-untyped]

from broker.errors import JournalError, JournalGap
from broker.journal.codec import BODIES, CHECKSUM, CHECKSUM_START, COLUMNS, RUNS, SEQUENCE
from broker.journal.sqlite_schema import connect_readonly, format_of, translate

#: Rows fetched at a time, and about how many bytes of blobs; at first, how large they are is not
#: known. A chunk is fetched in one go, so that no reader keeps the write-ahead log from starting
#: over while Spark is busy with something else.
CHUNK_RECORDS = 500
CHUNK_RECORDS_FIRST = 50
CHUNK_BYTES = 16 * 1024 * 1024

# What SQLite says when it cannot make the files beside a store that coordinate with its writer.
_FAULTS_OF_MEDIUM = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
_NO_BODIES = [name if name != "bodies" else "NULL" for name in COLUMNS]

Row = Sequence[Any]


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
    # The store first: what a trim takes out of it afterwards is in the archive by then.
    found = _stored(place.store, channel)
    for name, (first, last) in _archived(place.archive, channel).items():
        other = found.get(name)
        if other:
            _refuse_another_life(place, name, last)
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


def read(place: Place, stretch: Stretch, bodies: bool) -> Iterator[Row]:
    """The rows of a stretch in order, in the columns of the codec; missing ones are left out."""
    expected = stretch.first
    for row in _store_rows(place.store, stretch, bodies):
        if row[SEQUENCE] > expected:
            missing = Stretch(stretch.channel, expected, row[SEQUENCE] - 1)
            yield from _archive_rows(place.archive, missing, bodies)
        yield row
        expected = row[SEQUENCE] + 1
    if expected <= stretch.last:
        missing = Stretch(stretch.channel, expected, stretch.last)
        yield from _archive_rows(place.archive, missing, bodies)


def read_whole(place: Place, stretch: Stretch, needed: int, bodies: bool) -> Iterator[Row]:
    """As :func:`read`; raises JournalGap when a record from ``needed`` on is missing."""
    expected = needed
    for row in read(place, stretch, bodies):
        if row[SEQUENCE] > expected:
            raise _missing(place, stretch.channel, expected, row[SEQUENCE] - 1)
        expected = max(expected, row[SEQUENCE] + 1)
        yield row
    if expected <= stretch.last:
        raise _missing(place, stretch.channel, expected, stretch.last)


def _refuse_another_life(place: Place, channel: str, archived: int) -> None:
    """A channel that was deleted and made anew does not continue what was archived of the old one.

    Their records would be spliced into one journal that never was.
    """
    assert place.store is not None
    end = Stretch(channel, archived, archived)
    stored = known_checksums(place, channel).get(archived)
    for row in _store_rows(place.store, end, False):
        stored = row[CHECKSUM]
    ends = {row[CHECKSUM] for row in _archive_rows(place.archive, end, False)}
    head = _stored(place.store, channel).get(channel, (0, 0))[1]
    if head < archived or (stored is not None and ends and stored not in ends):
        raise JournalError(
            f"archive {place.archive} does not belong to channel {channel!r} of store "
            f"{place.store}: its record {archived} is another one, or the store ends before it "
            f"(at {head}). A channel that was deleted and made anew needs an archive of its own; "
            "give the one that was made from this store, or only one of the two",
            channel=channel, sequence=archived,
        )  # fmt: skip


def known_checksums(place: Place, channel: str) -> dict[int, int]:
    """Checksums of a channel that need no record: before the first one, and at the store's base."""
    known = {0: CHECKSUM_START}
    if place.store is None:
        return known
    try:
        with closing(connect(place.store)) as connection:
            if format_of(connection) >= 2:
                select = "SELECT sequence, checksum FROM bases WHERE channel = ?"
                known.update(connection.execute(select, (channel,)).fetchall())
    except sqlite3.Error as error:
        raise translate(error, place.store, f"base of channel {channel!r}") from error
    return known


def born(place: Place, topic: str) -> int | None:
    """Which life of its name a trimmed topic is, by the store's base; None if that is not known."""
    if place.store is None:
        return None
    try:
        with closing(connect(place.store)) as connection:
            select = "SELECT state FROM bases WHERE channel = ?"
            found = connection.execute(select, (topic,)).fetchone()
    except sqlite3.Error as error:
        raise translate(error, place.store, f"base of topic {topic!r}") from error
    try:
        return int(msgpack.unpackb(found[0], strict_map_key=False)["born"])
    except Exception:  # no base, or a damaged one: msgpack may fail in any way it knows
        return None


def connect(path: str) -> sqlite3.Connection:
    """A read-only connection, also to a store on a medium that cannot be written at all."""
    if not os.path.isfile(path):
        raise JournalError(f"there is no store {path}", path=path)
    connection = connect_readonly(path)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        return connection
    except sqlite3.OperationalError as error:
        connection.close()
        # Busy, for one, is no reason: then somebody is there, and may write.
        is_medium = error.sqlite_errorcode & 0xFF in _FAULTS_OF_MEDIUM
        if not is_medium or (os.path.exists(path + "-wal") and os.path.getsize(path + "-wal")):
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


def _store_rows(store: str | None, stretch: Stretch, bodies: bool) -> Iterator[Row]:
    if store is None:
        return
    columns = ", ".join(COLUMNS if bodies else _NO_BODIES)
    select = (
        f"SELECT {columns} FROM records WHERE channel = ? AND sequence >= ? AND sequence <= ? "
        "ORDER BY sequence LIMIT ?"
    )
    first, count = stretch.first, CHUNK_RECORDS_FIRST
    try:
        with closing(connect(store)) as connection:
            while first <= stretch.last:
                limits = (stretch.channel, first, stretch.last, count)
                rows = connection.execute(select, limits).fetchall()
                if not rows:
                    return
                yield from rows
                first = rows[-1][SEQUENCE] + 1
                count = _chunk_after(rows)
    except sqlite3.Error as error:
        context = f"channel {stretch.channel!r}, journal record {first}"
        raise translate(
            error, store, context, channel=stretch.channel, sequence=first
        ) from error


def _chunk_after(rows: Sequence[Row]) -> int:
    """How many rows to fetch next, if they are as large as these."""
    size = sum(len(row[RUNS] or b"") + len(row[BODIES] or b"") for row in rows)
    return max(1, min(CHUNK_RECORDS, CHUNK_BYTES * len(rows) // max(1, size)))


def _archive_rows(archive: str | None, stretch: Stretch, bodies: bool) -> Iterator[Row]:
    if archive is None:
        return
    from broker.journal import archive as archives

    for file in archives.list_files(archive, stretch.channel):
        if file.first <= stretch.last and file.last >= stretch.first:
            if bodies:
                yield from archives.read_rows(file, stretch.first, stretch.last)
            else:
                names = COLUMNS[:BODIES]
                for batch in archives.read_batches(file, stretch.first, stretch.last, names):
                    columns = [column.to_pylist() for column in batch.columns]
                    yield from zip(*columns, repeat(None))


def _missing(place: Place, channel: str, first: int, last: int) -> JournalGap:
    records = f"journal record {first} is" if first == last else f"records {first} to {last} are"
    if place.archive is None:
        found = f"not in the store {place.store}, and no archive is given"
        advice = "If they were trimmed, give the option archive: the folder they were exported to"
    else:
        places = [f"the store {place.store}"] * (place.store is not None)
        found = "in none of " + " and ".join([*places, f"the archive {place.archive}"])
        advice = "Give the archive that has them"
    return JournalGap(
        f"channel {channel!r}: {records} {found}. A stream does not skip records. {advice}; to go "
        "on without them, start with a new checkpoint and starting=latest",
        channel=channel, sequence=first,
    )  # fmt: skip
