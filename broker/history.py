"""Histories: what a client itself saw, as lines of JSON in a file of its own.

Here lives the file, its twin in memory for a simulator, and the reader. What a line means is said
in ``publisher/history.py`` and ``subscriber/history.py``; nothing here knows an event by name but
``cut``. No line costs a system call or gives up Python's global lock: the file is mapped into
memory and grown in steps, lines are copied into it, and what is in the page cache outlives the
process, also one that is killed. It need not outlive the machine: nothing is synced.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import mmap
import os
import secrets
import threading
import time
import weakref
from typing import Any, Callable, Iterator, Mapping
from urllib.parse import quote

from broker.errors import BadRequest

log = logging.getLogger("fairlead.history")

FIRST_STEP_BYTES = 64 << 10  # a short life needs no more
STEP_BYTES = 1 << 20
NAME_CHARS_MAX = 120  # of a file's name; longer ids are cut there, the lines have them whole

#: ``append(event, fields)``: what the pure halves write through. ``fields`` are further members of
#: the JSON object, each with a comma before it, already encoded and free of NUL and line breaks.
Append = Callable[[str, str], None]


def head(identity: Mapping[str, str]) -> str:
    """What every line of one history begins with."""
    members = ",".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in identity.items())
    return "{" + members + ',"n":'


def read(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The lines of a history, also while it is written and after its client was killed.

    Such a file has NUL bytes after its last line, and the last line may be torn: reading stops at
    the first NUL byte, and at a line without an end, which is left out. A whole line that is no
    JSON object is damage and raises ValueError.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file):
            if b"\0" in line or not line.endswith(b"\n"):
                return
            try:
                found = json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} of history {path} is damaged: {error}") from None
            if not isinstance(found, dict):
                raise ValueError(f"line {number} of history {path} is no JSON object")
            yield found


class MemoryHistory:
    """The same lines in a list, stamped by the clock that is handed in (microseconds)."""

    def __init__(self, identity: Mapping[str, str], clock_us: Callable[[], int]) -> None:
        self.lines: list[str] = []
        self._head = head(identity)
        self._clock_us = clock_us

    def append(self, event: str, fields: str = "") -> None:
        """Add a line."""
        self.lines.append(
            f'{self._head}{len(self.lines)},"at_us":{self._clock_us()},"event":"{event}"{fields}}}'
        )


def prepare(directory: str | os.PathLike[str]) -> None:
    """Make the directory if it is missing. Raises BadRequest if no file can be made in it."""
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise _unusable(directory, error) from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise _unusable(directory, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _unusable(directory: str | os.PathLike[str], error: OSError) -> BadRequest:
    return BadRequest(
        f"history={os.fspath(directory)!r} cannot be used: {error.strerror or error}; name a "
        "directory in which this process may write, with room on its disk"
    )


class HistoryFile:
    """One client's file: ``append`` from any thread, then ``close``.

    It is named ``<client>-<quoted id>-<session>-<random>.jsonl`` after its identity. When the disk
    is full, ``failed`` becomes True, the last line is ``cut``, and what is appended after that goes
    nowhere: the client goes on. After a fork the child writes nothing.

    Every byte of the window is allocated before it is mapped, so that a full disk is an error of
    the allocation and not a SIGBUS in the middle of a line. Nobody else may truncate the file.
    """

    def __init__(
        self, directory: str | os.PathLike[str], identity: Mapping[str, str]
    ) -> None:
        self.failed = False
        self._head = head(identity)
        self._reserved = len(self._head) + 80  # for the line ``cut``
        self._lock = threading.Lock()
        self._count = 0
        self._window: mmap.mmap | None = None
        self._start = 0  # of the window in the file
        self._at = 0  # in the window: where the next line goes
        self._limit = 0  # in the window: where lines must end
        prepare(directory)
        name = quote(identity["name"], safe="")[:NAME_CHARS_MAX]
        self.path = os.path.join(
            os.fspath(directory),
            f"{identity['client']}-{name}-{identity['session']}-{secrets.token_hex(4)}.jsonl",
        )
        try:
            self._file = io.FileIO(self.path, "x+")  # with O_EXCL
        except OSError as error:
            raise _unusable(directory, error) from None
        try:
            self._open_window(FIRST_STEP_BYTES)
        except OSError as error:
            self._file.close()
            os.unlink(self.path)
            raise _unusable(directory, error) from None
        _live.add(self)

    def append(self, event: str, fields: str = "") -> None:
        """Add a line; it is in the file when this returns, unless the history has ended."""
        # One small lock: number, time and place of a line belong together.
        with self._lock:
            window = self._window
            if window is None:
                return
            line = self._line(event, fields)
            end = self._at + len(line)
            if end > self._limit:
                window = self._grown(len(line))
                if window is None:
                    return
                end = self._at + len(line)
            window[self._at : end] = line
            self._at = end
            self._count += 1

    def close(self) -> None:
        """Cut the file to its length and let it go. Closing twice is fine."""
        with self._lock:
            self._end()

    # Under the lock.

    def _line(self, event: str, fields: str = "") -> bytes:
        at_us = time.time_ns() // 1000
        return f'{self._head}{self._count},"at_us":{at_us},"event":"{event}"{fields}}}\n'.encode()

    def _grown(self, needed: int) -> mmap.mmap | None:
        """The next window, with room for a line of that length; None if the disk is full."""
        try:
            return self._open_window(needed + STEP_BYTES)
        except OSError as error:
            self._cut()
            log.warning(
                "history %s ends after %d lines: it cannot grow (%s); its client goes on without",
                self.path, self._count, error.strerror or error,
            )  # fmt: skip
            return None

    def _open_window(self, size: int) -> mmap.mmap:
        """Allocate so much behind what is written, and map it instead of what was mapped."""
        position = self._start + self._at
        skipped = position % mmap.ALLOCATIONGRANULARITY
        start = position - skipped
        size = size + skipped + self._reserved
        size += -size % mmap.ALLOCATIONGRANULARITY
        _allocate(self._file.fileno(), start + size)
        window = mmap.mmap(self._file.fileno(), size, offset=start)
        if self._window is not None:
            self._window.close()
        self._window, self._start = window, start
        self._at, self._limit = skipped, size - self._reserved
        return window

    def _cut(self) -> None:
        """Say in the room that is kept for it that the client goes on without a history."""
        assert self._window is not None
        self.failed = True
        line = self._line("cut")
        self._window[self._at : self._at + len(line)] = line
        self._at += len(line)
        self._count += 1
        self._end()

    def _end(self) -> None:
        if self._window is None:
            return
        self._window.close()
        self._window = None
        try:
            os.ftruncate(self._file.fileno(), self._start + self._at)
        except OSError as error:
            log.warning("history %s keeps its trailing NUL bytes: %s", self.path, error)
        self._file.close()

    def _forget_in_child(self) -> None:
        """In a forked child: the file is the parent's."""
        self._lock = threading.Lock()
        if self._window is not None:
            self._window.close()
            self._window = None
            self._file.close()


def _allocate(descriptor: int, size: int) -> None:
    """Make the file that long, with blocks on the disk behind every byte."""
    have = os.fstat(descriptor).st_size
    if size <= have:
        return
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, have, size - have)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    while have < size:
        have += os.pwrite(descriptor, bytes(size - have), have)


_live: weakref.WeakSet[HistoryFile] = weakref.WeakSet()


def _after_fork() -> None:
    for history in list(_live):
        history._forget_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
