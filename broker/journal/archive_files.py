"""Where the files of an archive are, and which there are. Names only: nothing here opens a file.

    DIR/channel=<percent-quoted name>/day=YYYY-MM-DD/<first>-<last>.parquet

A file holds the records first .. last of one channel, all of one UTC day by their ``at_ms``. When
the clock of a broker was set back, a day has several stretches, and so several files. A name that
starts with a dot is a file that was not finished.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from urllib.parse import quote, unquote

from broker.errors import JournalCorrupt
from broker.journal.faults import gap

UNFINISHED_PREFIX = "."
UNFINISHED_SUFFIX = ".unfinished"

_DAY_MS = 86_400_000
_CHANNEL = "channel="
_NAME = re.compile(r"(\d{12,})-(\d{12,})\.parquet")


@dataclass(frozen=True, slots=True, order=True)
class ArchiveFile:
    """One file of an archive: the records first .. last of a channel."""

    channel: str
    first: int
    last: int
    path: Path


def channel_directory(directory: str | os.PathLike[str], channel: str) -> Path:
    """The folder of a channel.

    >>> channel_directory("archive", "a/b").as_posix()
    'archive/channel=a%2Fb'
    """
    return Path(directory) / (_CHANNEL + quote(channel, safe=""))


def day_of(at_ms: int) -> str:
    """The UTC day of a time.

    >>> day_of(0), day_of(1_700_000_000_000), day_of(-1)
    ('1970-01-01', '2023-11-14', '1969-12-31')
    """
    return (date(1970, 1, 1) + timedelta(days=at_ms // _DAY_MS)).isoformat()


def file_path(channel_folder: Path, day: str, first: int, last: int) -> Path:
    """Where the records first .. last are kept."""
    return channel_folder / f"day={day}" / f"{first:012}-{last:012}.parquet"


def list_files(
    directory: str | os.PathLike[str], channel: str | None = None
) -> list[ArchiveFile]:
    """The files of an archive, of one channel or of all, by channel and sequence.

    What they hold is dense from 1: raises JournalGap for what is missing between two files or
    before the first, and JournalCorrupt for records that are in two files.
    """
    if channel is not None:
        folders = [channel_directory(directory, channel)]
    else:
        folders = sorted(Path(directory).glob(_CHANNEL + "*"))
    return [file for folder in folders for file in _files_of(folder)]


def _files_of(folder: Path) -> list[ArchiveFile]:
    channel = unquote(folder.name.removeprefix(_CHANNEL))
    found: list[ArchiveFile] = []
    for path in folder.glob("day=*/*.parquet"):
        name = _NAME.fullmatch(path.name)
        if name is not None:
            found.append(ArchiveFile(channel, int(name[1]), int(name[2]), path))
    found.sort(key=lambda file: (file.first, file.last))
    _check_dense(found)
    return found


def _check_dense(files: list[ArchiveFile]) -> None:
    following = 1
    for file in files:
        if file.first > following:
            raise gap(file.channel, following, f"the archive goes on with {file.path}")
        if file.first < following or file.last < file.first:
            raise JournalCorrupt(
                f"archive file {file.path} does not fit: it says that it starts at record "
                f"{file.first}, but the files before it end at {following - 1}. Move away what "
                "does not belong to this archive",
                channel=file.channel, path=str(file.path), sequence=file.first,
            )  # fmt: skip
        following = file.last + 1


def unfinished_files(folder: Path) -> list[Path]:
    """What an interrupted export has left behind in a channel's folder."""
    return sorted(folder.glob(f"{UNFINISHED_PREFIX}*{UNFINISHED_SUFFIX}"))
