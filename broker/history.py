"""Histories: what a client itself saw, as lines of JSON in a file of its own.

Here lives the file, its twin in memory for a simulator, and the reader. What a line means is said
in ``publisher/history.py`` and ``subscriber/history.py``; nothing here knows an event by name but
``cut``. The file is mapped into memory and grown in steps, and lines are copied into it: what is in
the page cache outlives the process, also one that is killed. It need not outlive the machine:
nothing is synced.

A line costs no system call and does not give up Python's global lock. That is cheap, not free of
waiting:

- The first touch of a page, and the first after the system has written it back, is a page fault.
  Under heavy writeback the system may let it wait for the disk, and it waits with Python's global
  lock held: the whole process stands still for so long.
- About one line in a MiB makes the file grow: a call to allocate and one to map, under the lock of
  the file and whatever lock its writer holds. Some lines of a publisher are written under the lock
  that ``publish`` takes, so ``publish`` may wait for it.
- Blocks that are allocated keep a full disk from being a SIGBUS only where a write goes to the
  block that was allocated. A file system that copies on write (btrfs, ZFS, a snapshot below) may
  need a new block for it, and if it has none, the process dies of SIGBUS. There, keep histories on
  a disk that does not fill up.
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
RESERVED_BYTES = 80  # in each window, beside the head of a line: for the line ``cut``
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

    A client that does not know its session yet leaves it empty in the identity. The file, with room
    for the first lines, is then made under a name that ends in ``.new``, which no reader looks
    for; ``begin`` gives it its name, or ``discard`` removes it.

    Every byte of the window is allocated before it is mapped, so that a full disk is an error of
    the allocation and not a SIGBUS in the middle of a line, except where the file system copies on
    write. Nobody else may truncate the file. Raises BadRequest if the file cannot be made.
    """

    def __init__(
        self, directory: str | os.PathLike[str], identity: Mapping[str, str]
    ) -> None:
        self.failed = False
        self._identity = dict(identity)
        self._head = head(identity)
        self._reserved = len(self._head) + RESERVED_BYTES
        self._lock = threading.Lock()
        self._count = 0
        self._window: mmap.mmap | None = None
        self._start = 0  # of the window in the file
        self._at = 0  # in the window: where the next line goes
        self._limit = 0  # in the window: where lines must end
        self._directory, self._token = os.fspath(directory), secrets.token_hex(4)
        self.path = self._path()
        try:
            os.makedirs(directory, exist_ok=True)
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

    def begin(self, session: str) -> None:
        """The session is known: take the name after it. To be called before the first line.

        Raises nothing: by now the client has begun. If the name cannot be taken, ``failed`` becomes
        True and the client goes on without a history.
        """
        before = self.path
        with self._lock:
            self._identity["session"] = session
            self._head = head(self._identity)
            self._limit += self._reserved
            self._reserved = len(self._head) + RESERVED_BYTES
            self._limit -= self._reserved
        try:
            os.rename(before, self._path())
        except OSError as error:
            self.failed = True
            log.warning(
                "history %s cannot be named after its session %s (%s); its client goes on without",
                before, session, error.strerror or error,
            )  # fmt: skip
            self.discard()
        else:
            self.path = self._path()

    def discard(self) -> None:
        """End it and remove the file: nothing worth keeping has happened."""
        self.close()
        try:
            os.unlink(self.path)
        except OSError as error:
            log.warning("history %s is of no use and cannot be removed: %s", self.path, error)

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

    def _path(self) -> str:
        identity = self._identity
        start = f"{identity['client']}-{quote(identity['name'], safe='')[:NAME_CHARS_MAX]}"
        session = identity["session"]
        end = f"{session}-{self._token}.jsonl" if session else f"{self._token}.new"
        return os.path.join(self._directory, f"{start}-{end}")

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
