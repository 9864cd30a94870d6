"""The rows of the journal in Parquet files: writing one, reading one. pyarrow is used here only.

The columns are those of the row, bytes for bytes, so the checksum chain of an archive can be
verified, and one codec decodes store and archive. pyarrow is imported when it is needed: a broker
runs without it.

A file appears under its name when it is whole and synced, never before.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Iterable, Iterator

from broker.errors import JournalCorrupt, JournalError
from broker.journal.archive_files import (
    UNFINISHED_PREFIX,
    UNFINISHED_SUFFIX,
    ArchiveFile,
    day_of,
    file_path,
)
from broker.journal.codec import AT_MS, BODIES, COLUMNS, RUNS, SEQUENCE, Row

#: A file ends when it has so many rows, or so many bytes of blobs.
FILE_ROWS_MAX = 50_000
FILE_BYTES_MAX = 128 * 1024 * 1024
#: A row group: what a writer holds in memory, and the least that a reader has to read.
GROUP_ROWS_MAX = 4_000
GROUP_BYTES_MAX = 16 * 1024 * 1024
#: How many rows a reader holds as Python objects.
BATCH_ROWS = 512

_TEXTS = ("channel", "kind", "publisher", "subscriber", "subscription")
_BLOBS = ("runs", "bodies")
_NULLABLE = ("publisher", "subscriber", "subscription", "bodies")


def _arrow() -> Any:
    """pyarrow, with its Parquet part."""
    try:
        arrow = import_module("pyarrow")
        import_module("pyarrow.parquet")
    except ImportError as error:
        raise JournalError(
            "an archive cannot be written or read: pyarrow is not installed. "
            "Install it with: pip install 'fairlead[spark]'"
        ) from error
    return arrow


def require_pyarrow() -> None:
    """Raise JournalError, which says what to install, when pyarrow is missing."""
    _arrow()


def archive_errors() -> tuple[type[Exception], ...]:
    """What writing and reading an archive raises when the machine is at fault."""
    return (OSError, _arrow().ArrowException)


def _schema(arrow: Any) -> Any:
    def kind(name: str) -> Any:
        if name in _TEXTS:
            return arrow.string()
        return arrow.binary() if name in _BLOBS else arrow.int64()

    return arrow.schema(
        [arrow.field(name, kind(name), nullable=name in _NULLABLE) for name in COLUMNS]
    )


class _FileWriter:
    """One file on its way: under a hidden name, a row group in memory at a time."""

    def __init__(self, folder: Path, channel: str, first: Row) -> None:
        self._arrow = _arrow()
        self._schema = _schema(self._arrow)
        self._folder, self._channel = folder, channel
        self.day = day_of(first[AT_MS])
        self._first = self._next = first[SEQUENCE]
        self.bytes = 0
        self._group: list[Row] = []
        self._group_bytes = 0
        self._hidden = folder / f"{UNFINISHED_PREFIX}{self._first:012}{UNFINISHED_SUFFIX}"
        self._file: BinaryIO = open(self._hidden, "wb")  # noqa: SIM115 - closed by finish or abandon
        self._writer = self._arrow.parquet.ParquetWriter(
            self._file, self._schema, compression="zstd", use_dictionary=list(_TEXTS),
            write_statistics=[name for name in COLUMNS if name not in _BLOBS],
        )  # fmt: skip

    @property
    def rows(self) -> int:
        return self._next - self._first

    def add(self, row: Row) -> None:
        size = len(row[RUNS]) + len(row[BODIES] or b"")
        if self._group and self._group_bytes + size > GROUP_BYTES_MAX:
            self._flush()
        self._group.append(row)
        self._group_bytes += size
        self.bytes += size
        self._next += 1
        if len(self._group) >= GROUP_ROWS_MAX:
            self._flush()

    def _flush(self) -> None:
        arrays = [
            self._arrow.array(values, type=field.type)
            for values, field in zip(zip(*self._group), self._schema)
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._group, self._group_bytes = [], 0

    def finish(self) -> ArchiveFile:
        """Sync the file, then give it its name, then sync that."""
        if self._group:
            self._flush()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        last = self._next - 1
        path = file_path(self._folder, self.day, self._first, last)
        make_directory(path.parent)
        os.rename(self._hidden, path)
        sync_directory(path.parent)
        sync_directory(self._folder)
        return ArchiveFile(self._channel, self._first, last, path)

    def abandon(self) -> None:
        """Leave nothing behind."""
        try:
            self._writer.close()  # or it would complain, when it is collected, of a closed file
        except (self._arrow.ArrowException, OSError, ValueError):
            pass  # the disk may be full; the file goes anyway
        try:
            self._file.close()  # writes what is buffered, and so fails on a full disk once more
        except OSError:
            pass
        finally:
            self._hidden.unlink(missing_ok=True)


def write_files(folder: Path, channel: str, rows: Iterable[Row]) -> Iterator[ArchiveFile]:
    """Write consecutive rows into as many files as it takes; each is safe when it is yielded."""
    writer: _FileWriter | None = None
    try:
        for row in rows:
            if writer is not None and _ends(writer, row):
                done, writer = writer, None
                yield _finished(done)
            if writer is None:
                writer = _FileWriter(folder, channel, row)
            writer.add(row)
        if writer is not None:
            done, writer = writer, None
            yield _finished(done)
    finally:
        if writer is not None:
            writer.abandon()


def _ends(writer: _FileWriter, row: Row) -> bool:
    size = len(row[RUNS]) + len(row[BODIES] or b"")
    full = writer.rows >= FILE_ROWS_MAX or writer.bytes + size > FILE_BYTES_MAX
    return full or day_of(row[AT_MS]) != writer.day


def _finished(writer: _FileWriter) -> ArchiveFile:
    try:
        return writer.finish()
    except BaseException:
        writer.abandon()
        raise


def make_directory(path: Path) -> None:
    """Make a folder, and those above it, that a power cut does not take away again."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_files(files: Iterable[ArchiveFile], channel_folder: Path) -> None:
    """Make files durable under their names, whoever wrote them and however far that one came."""
    folders: dict[Path, None] = {}
    for file in files:
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        folders[file.path.parent] = None
    for folder in (*folders, channel_folder, channel_folder.parent):
        sync_directory(folder)


def read_batches(
    file: ArchiveFile,
    first: int | None = None,
    last: int | None = None,
    columns: Iterable[str] | None = None,
) -> Iterator[Any]:
    """The rows first .. last of a file as pyarrow RecordBatches, some or all of the columns.

    Only the row groups that hold them are read. Raises JournalCorrupt, which names the file, for
    what is no archive file or does not hold what its name says. The rows are not checked.
    """
    arrow = _arrow()
    wanted = list(COLUMNS if columns is None else columns)
    low = file.first if first is None else max(first, file.first)
    high = file.last if last is None else min(last, file.last)
    try:
        with arrow.parquet.ParquetFile(file.path) as parquet:
            _check_shape(file, parquet)
            start = file.first
            for group in range(parquet.num_row_groups):
                end = start + parquet.metadata.row_group(group).num_rows
                if start <= high and end > low:
                    sequence = start
                    for batch in parquet.iter_batches(BATCH_ROWS, [group], wanted):
                        part = _part(batch, sequence, low, high)
                        sequence += batch.num_rows
                        if part.num_rows:
                            yield part
                start = end
    except FileNotFoundError:
        raise
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise _damaged(file, str(error)) from error


def _part(batch: Any, sequence: int, low: int, high: int) -> Any:
    """The rows low .. high of a batch that starts at ``sequence``."""
    skipped = max(0, low - sequence)
    return batch.slice(skipped, max(0, min(batch.num_rows, high - sequence + 1) - skipped))


def read_rows(
    file: ArchiveFile, first: int | None = None, last: int | None = None
) -> Iterator[Row]:
    """The rows first .. last of a file, as tuples in the order of ``codec.COLUMNS``."""
    for batch in read_batches(file, first, last):
        columns = [batch.column(index).to_pylist() for index in range(len(COLUMNS))]
        yield from zip(*columns)


def _check_shape(file: ArchiveFile, parquet: Any) -> None:
    names = tuple(parquet.schema_arrow.names)
    if names != COLUMNS:
        raise _damaged(file, f"its columns are {', '.join(names)}")
    rows = parquet.metadata.num_rows
    if rows != file.last - file.first + 1:
        raise _damaged(file, f"it has {rows} rows, its name promises {file.last - file.first + 1}")


def _damaged(file: ArchiveFile, reason: str) -> JournalCorrupt:
    return JournalCorrupt(
        f"archive file {file.path} of channel {file.channel!r}, records {file.first} to "
        f"{file.last}, is damaged: {reason}. Restore it from a copy",
        channel=file.channel, path=str(file.path), reason=reason,
    )  # fmt: skip
