"""The archive: settled records of a store as Parquet files, after which they can be trimmed.

What lives here: one export of one channel, from the question how far it is settled to the last row
deleted, and the verification of an archive. The steps are in the modules named below; each may be
interrupted at any point, and the next export goes on from what it finds:

1. fold the journal, find how far it is settled         :mod:`broker.journal.settled`
2. write what the archive does not have yet             :mod:`broker.journal.archive_parquet`
3. read the archive back, check the chain, fold it, sync it once more
4. write the base, delete the rows                      :mod:`broker.journal.sqlite_trim`

Step 3 reads what will be all that is left of those rows, and makes the base's state out of it. It
starts at the store's present base, up to which an earlier export has verified the archive.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

from broker.errors import JournalCorrupt, JournalError, JournalGap
from broker.journal import codec
from broker.journal.archive_files import (
    ArchiveFile,
    channel_directory,
    list_files,
    unfinished_files,
)
from broker.journal.archive_parquet import (
    archive_errors,
    make_directory,
    read_batches,
    read_rows,
    require_pyarrow,
    sync_files,
    write_files,
)
from broker.journal.bases import NO_BASE, STATE_BYTES_MAX, Base, machine_of, make_base, sizes_of
from broker.journal.codec import CHECKSUM, SEQUENCE, Row
from broker.journal.faults import gap
from broker.journal.mark import look
from broker.journal.recovery import fold
from broker.journal.settled import Settled, Unsettled, find_settled
from broker.journal.sqlite_reader import read_checksum, read_limits, read_raw
from broker.journal.sqlite_schema import Head, check, translate
from broker.journal.sqlite_trim import delete_rows, sync_log, write_base

__all__ = [
    "ArchiveFile", "Exported", "Link", "Progress", "channels_of", "export_channel", "list_files",
    "read_batches", "read_rows", "verify",
]  # fmt: skip

# What the system says when there is no room: on the disk, in a quota, in a file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: Called with the name of a step, and how many more records it has done out of how many.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Link:
    """A place in the chain: a sequence, and the checksum there."""

    sequence: int
    checksum: int


@dataclass(slots=True)
class Exported:
    """What one export of a channel has done, and what stays in the store and why.

    Files are written from ``first`` to ``last`` (both 0 when there was nothing new). ``settled`` is
    the last record that may be trimmed, ``base`` the last one that is, ``head`` the journal's end
    as of the start of the export.
    """

    channel: str
    head: int
    settled: int
    base: int
    first: int = 0
    last: int = 0
    files: int = 0
    bytes: int = 0
    archived: int = 0
    trimmed: int = 0
    oldest: Unsettled | None = None
    reason: str = ""


def _silent(step: str, count: int, total: int) -> None:
    """No progress is shown."""


def channels_of(store: str | os.PathLike[str]) -> list[str]:
    """The channels of a store, in order of creation; raises JournalError for a damaged one."""
    path = os.path.realpath(store)
    try:
        # The mark is read before the store, so that a broker that writes cannot put it ahead.
        synced = look(path + ".mark")
        return list(check(path, synced).heads)
    except (sqlite3.Error, OSError, TypeError, ValueError) as error:
        raise translate(error, path, "cannot read") from error


def export_channel(
    store: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    channel: str,
    *,
    everything: bool = False,
    trim: bool = False,
    keep_records: int = 0,
    progress: Progress = _silent,
) -> Exported:
    """Add what is settled to the archive; then, if asked, trim it from the store.

    ``everything`` archives up to the journal's end, settled or not; it trims no more for that.
    ``keep_records`` is how many of the last records are not trimmed. Raises JournalError: whatever
    was done by then is whole, and the next export goes on from there.
    """
    require_pyarrow()
    path = os.path.realpath(store)
    if channel not in channels_of(path):
        raise JournalError(f"store {path} has no channel {channel!r}", channel=channel)
    base, head = read_limits(path, channel)
    first = read_checksum(path, channel, base.sequence + 1)
    try:
        return _export(
            path, directory, channel, base, head, everything, trim, keep_records, progress
        )
    except JournalCorrupt as error:
        if not _is_another(path, channel, base, head, first):
            raise
        raise JournalError(
            f"channel {channel!r} was deleted or made anew meanwhile; export again", channel=channel
        ) from error
    except archive_errors() as error:
        raise _cannot_archive(directory, channel, error) from error


def _export(
    path: str,
    directory: str | os.PathLike[str],
    channel: str,
    base: Base,
    head: Head,
    everything: bool,
    trim: bool,
    keep_records: int,
    progress: Progress,
) -> Exported:
    """The steps of an export, for the channel as it was between ``base`` and ``head``."""
    total = head.sequence - base.sequence
    settled = find_settled(
        path, channel, base, head, lambda count: progress("reading", count, total)
    )
    done = Exported(channel, head.sequence, settled.upto, base.sequence, oldest=settled.oldest)
    folder = channel_directory(directory, channel)
    with _held(folder):
        sync_log(path)
        files = list_files(directory, channel)
        end = _checked_end(path, channel, base, head, files)
        _add(path, folder, end, head.sequence if everything else settled.upto, done, progress)
        if trim:
            _trim(path, directory, base, settled, keep_records, done, progress)
        elif settled.oldest is not None:
            done.reason = _unsettled_text(settled.oldest)
    return done


def _is_another(path: str, channel: str, base: Base, head: Head, first: int | None) -> bool:
    """Whether the channel is no longer the one that had these ends and this first checksum."""
    try:
        base_now, head_now = read_limits(path, channel)
        if head_now.sequence < head.sequence or base_now.sequence < base.sequence:
            return True
        if first is None or base_now.sequence > base.sequence:
            return False  # there is no first record to compare, or another trim has taken it
        return read_checksum(path, channel, base.sequence + 1) != first
    except JournalError:
        return False  # damaged, then, whatever else has happened


def _cannot_archive(
    directory: str | os.PathLike[str], channel: str, error: Exception
) -> JournalError:
    remedy = "Correct that and run the export again"
    if getattr(error, "errno", None) in _FULL:
        remedy = "The disk is full: free space and run the export again"
    return JournalError(
        f"archive {os.fspath(directory)}: cannot archive channel {channel!r}: {error}. {remedy}; "
        "the files that have their names are whole",
        channel=channel, path=os.fspath(directory),
    )  # fmt: skip


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a channel's folder for this process; remove what an interrupted export left in it."""
    make_directory(folder)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JournalError(
                f"archive {folder} is being written by another export. Wait until it is done"
            ) from error
        for path in unfinished_files(folder):
            path.unlink()
        yield
    finally:
        os.close(fd)


def _checked_end(
    path: str, channel: str, base: Base, head: Head, files: list[ArchiveFile]
) -> Link:
    """Where the archive ends, after a check that it is one of this very journal."""
    last = files[-1].last if files else 0
    if last < base.sequence:
        raise JournalGap(
            f"channel {channel!r}: the archive ends at record {last}, but records up to "
            f"{base.sequence} were trimmed from the store: they are in another archive. Give the "
            "directory of that one",
            channel=channel, sequence=last + 1,
        )  # fmt: skip
    for sequence in sorted({base.sequence, last} - {0}):
        if sequence == base.sequence:
            expected: int | None = base.checksum
        else:
            expected = read_checksum(path, channel, sequence)
        if _checksum_in(files, sequence) != expected:
            raise JournalCorrupt(
                f"channel {channel!r}: record {sequence} of the archive is not that of the store, "
                f"which ends at {head.sequence}: the archive belongs to another store, or to a "
                "deleted channel of the same name. Give another directory",
                channel=channel, sequence=sequence,
            )  # fmt: skip
    return Link(last, _checksum_in(files, last) if last else NO_BASE.checksum)


def _checksum_in(files: list[ArchiveFile], sequence: int) -> int:
    file = next(file for file in files if file.first <= sequence <= file.last)
    batch = next(read_batches(file, sequence, sequence, ["checksum"]))
    return int(batch.column(0)[0].as_py())


def _add(
    path: str, folder: Path, end: Link, upto: int, done: Exported, progress: Progress
) -> None:
    """Write the rows after the archive's end up to ``upto``."""

    def rows() -> Iterator[Row]:
        for row in read_raw(path, done.channel, end.sequence + 1, upto, end.checksum):
            progress("archiving", 1, upto - end.sequence)
            yield row

    for file in write_files(folder, done.channel, rows()):
        done.first = done.first or file.first
        done.last = file.last
        done.files += 1
        done.bytes += file.path.stat().st_size
        done.archived += file.last - file.first + 1


def _trim(
    path: str,
    directory: str | os.PathLike[str],
    base: Base,
    settled: Settled,
    keep_records: int,
    done: Exported,
    progress: Progress,
) -> None:
    channel = done.channel
    if settled.oldest is not None:
        done.reason = _unsettled_text(settled.oldest)
    wanted = min(settled.upto, done.head - keep_records)
    if wanted < settled.upto:
        done.reason = f"the last {keep_records} records are kept, as asked"
    cut = settled.cut_at(wanted)
    if cut < wanted:
        done.reason = f"from record {cut + 1} to {wanted} the channel held more than a base takes"
    if cut > base.sequence:
        new = _fold_archive(directory, channel, base, cut, progress)
        if len(new.state) > STATE_BYTES_MAX:
            done.reason = (
                f"the channel's state at record {cut} takes {len(new.state)} bytes, a base holds "
                f"{STATE_BYTES_MAX}: {sizes_of(new)}"
            )
        else:
            _sync_archive(directory, channel, base.sequence, cut)
            if write_base(path, channel, new):
                done.base = new.sequence
            else:
                done.reason = "another export has trimmed the channel further meanwhile"
    # Also without a new base: an interrupted trim may have left rows.
    done.trimmed = delete_rows(
        path, channel, lambda count: progress("trimming", count, done.base - base.sequence)
    )


def _sync_archive(
    directory: str | os.PathLike[str], channel: str, after: int, upto: int
) -> None:
    """Make durable what the trim relies on: an earlier export may have died before it did."""
    files = [
        file for file in list_files(directory, channel) if file.last > after and file.first <= upto
    ]
    sync_files(files, channel_directory(directory, channel))


def _fold_archive(
    directory: str | os.PathLike[str], name: str, base: Base, upto: int, progress: Progress
) -> Base:
    """The base at ``upto``, made from the archive as it stands on disk, every link checked."""
    channel, checksum = machine_of(name, base), base.checksum
    for row in _verified(directory, name, Link(base.sequence, base.checksum), upto):
        fold(channel, row[SEQUENCE], codec.restore(row))
        checksum = row[CHECKSUM]
        progress("verifying", 1, upto - base.sequence)
    return make_base(channel, upto, checksum)


def verify(
    directory: str | os.PathLike[str],
    channel: str,
    after: Link = Link(0, codec.CHECKSUM_START),
    upto: int | None = None,
) -> Link:
    """Check the archive's chain behind ``after``, to ``upto`` or its end; returns where it ends.

    Raises JournalCorrupt or JournalGap, which name the record or the file.
    """
    end = after
    for row in _verified(directory, channel, after, upto):
        end = Link(row[SEQUENCE], row[CHECKSUM])
    return end


def _verified(
    directory: str | os.PathLike[str], channel: str, after: Link, upto: int | None
) -> Iterator[Row]:
    """The archive's rows behind ``after``, each one checked to be the next link of the chain."""
    files = list_files(directory, channel)
    sequence, previous = after.sequence, after.checksum
    for file in files:
        if file.last <= after.sequence or (upto is not None and file.first > upto):
            continue
        for row in read_rows(file, after.sequence + 1, upto):
            sequence += 1
            if row[SEQUENCE] != sequence or row[codec.CHANNEL] != channel:
                found = f"{file.path} has record {row[SEQUENCE]} of channel {row[0]!r} there"
                raise gap(channel, sequence, found)
            codec.check_link(row, previous)
            previous = row[CHECKSUM]
            yield row
    if upto is not None and sequence < upto:
        raise gap(channel, sequence + 1, f"the archive ends there, {upto} was expected")


def _unsettled_text(oldest: Unsettled) -> str:
    """Why a journal cannot be trimmed further, for people."""
    record = f"record {oldest.record}" if oldest.record else "an archived record"
    return (
        f"{record} holds the oldest unsettled message: publisher {oldest.key.publisher} partition "
        f"{oldest.key.partition} sequence {oldest.sequence}, subscription {oldest.subscription}"
    )
