"""Outlet: stdout for messages that must not get lost in a pipe.

What is written into a pipe is not yet read: a reader such as ``head`` may end with messages left
in it. So an outlet writes one message at a time and says whether the reader has taken it; only
then may it be confirmed. What lives here is the writing and that question, nothing about topics.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import struct
import termios
import time
from typing import Callable

SPIN_S = 0.0005  # most readers are waiting, and take it at once
LOOK_MS = (1, 2, 5, 10, 20)  # how long until the next look, for one that takes its time


class Outlet:
    """One message after the other to a file descriptor, without a buffer of its own."""

    def __init__(self, fd: int, is_over: Callable[[], bool]) -> None:
        self.reader_gone = False
        self._fd = fd
        self._is_over = is_over
        self._watched = select.poll()
        # Errors are always reported; with nothing else asked for, a reader who is there is silent.
        self._watched.register(fd, 0)
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)
        self._is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)

    def write(self, text: bytes) -> bool:
        """Whether it is written and, in a pipe, taken out of it.

        Returns early with False when the reader has gone or ``is_over`` says so.
        """
        rest = memoryview(text)
        try:
            while rest:
                if not self._wait_for_room():
                    return False
                part = rest[: select.PIPE_BUF] if self._is_pipe else rest
                rest = rest[os.write(self._fd, part) :]
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise  # a full disk, for example: the command fails and says so
            self.reader_gone = True
            return False
        return self._wait_until_taken()

    def look(self) -> bool:
        """Whether the reader is still there."""
        if self._is_pipe and self._watched.poll(0):
            self.reader_gone = True
        return not self.reader_gone

    def _wait_for_room(self) -> bool:
        """Wait until a pipe takes PIPE_BUF bytes, so that the write itself never waits."""
        while self._is_pipe and not self._room.poll(LOOK_MS[-1]):
            if self._is_over():
                return False
        return True

    def _wait_until_taken(self) -> bool:
        spin_until = time.monotonic() + SPIN_S
        looks = 0
        while self._unread():
            if time.monotonic() < spin_until:
                time.sleep(0)  # let the reader run
                continue
            # What was left when the reader went is looked for once more: it may have taken it.
            if self._watched.poll(LOOK_MS[min(looks, len(LOOK_MS) - 1)]) or self._is_over():
                self.look()
                return not self._unread()
            looks += 1
        return True

    def _unread(self) -> int:
        """How many bytes are still in the pipe; 0 where that cannot be known."""
        if not self._is_pipe:
            return 0
        try:
            answer = fcntl.ioctl(self._fd, termios.FIONREAD, b"\0" * 4)
        except OSError:
            self._is_pipe = False  # a system that does not tell: written is all there is to know
            return 0
        return int(struct.unpack("i", answer)[0])
