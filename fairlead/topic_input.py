"""What ``fairlead topic put`` reads: arguments, a file or stdin, in batches with their numbers.

What lives here: cutting input into messages, without waiting for more than has come. What becomes
of them is ``fairlead.topic_put``'s business.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from typing import Any, Callable, Iterator, NamedTuple

from fairlead.problems import Problem
from fairlead.pub import Interrupt

CHUNK_BYTES = 1 << 16
BATCH_COUNT_MAX = 1_000
LINE_BYTES_MAX = 16 << 20  # far above what a topic takes; whatever is longer has no lines


class Piece(NamedTuple):
    """Messages that are put by one call; ``first`` is the number of the first one, from 1 on."""

    first: int
    bodies: list[bytes]


@dataclass(frozen=True, slots=True)
class Shape:
    """How bytes become a message."""

    binary: bool
    json_bodies: bool

    def read(self, raw: bytes) -> Any:
        """The message. Raises ValueError for what is no JSON.

        >>> Shape(False, False).read(b"text"), Shape(True, False).read(b"text")
        ('text', b'text')
        """
        if self.json_bodies:
            return json.loads(raw)
        if self.binary:
            return raw
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw  # no text: it travels as bytes


def pieces(batches: Iterator[list[bytes]]) -> Iterator[Piece]:
    """Batches of any size, cut to what one call carries and numbered.

    >>> [piece.first for piece in pieces(iter([[b"a", b"b"], [b"c"]]))]
    [1, 3]
    """
    number = 1
    for batch in batches:
        for start in range(0, len(batch), BATCH_COUNT_MAX):
            bodies = batch[start : start + BATCH_COUNT_MAX]
            yield Piece(number, bodies)
            number += len(bodies)


def read_lines(
    fd: int, interrupt: Interrupt, advance: Callable[[int], None]
) -> Iterator[list[bytes]]:
    """The lines that are there, as often as some have come."""
    rest: list[bytes] = []
    length = 0
    while chunk := _read(fd, interrupt):
        advance(len(chunk))
        first, *others = chunk.split(b"\n")
        rest.append(first)
        length += len(first)
        if length > LINE_BYTES_MAX:
            raise Problem(
                f"a line of the input is longer than {LINE_BYTES_MAX} bytes",
                "use --whole for one message, and smaller ones",
            )
        if others:
            lines = [b"".join(rest), *others[:-1]]
            rest, length = [others[-1]], len(others[-1])
            yield [line.removesuffix(b"\r") for line in lines]
    last = b"".join(rest)
    if last:
        yield [last.removesuffix(b"\r")]


def read_whole(
    fd: int, interrupt: Interrupt, advance: Callable[[int], None]
) -> Iterator[list[bytes]]:
    """All of it as one message."""
    chunks: list[bytes] = []
    length = 0
    while chunk := _read(fd, interrupt):
        advance(len(chunk))
        chunks.append(chunk)
        length += len(chunk)
        if length > LINE_BYTES_MAX:
            raise Problem(
                f"the input is longer than {LINE_BYTES_MAX} bytes, too long for one message",
                "leave --whole out to put its lines",
            )
    yield [b"".join(chunks)]


def _read(fd: int, interrupt: Interrupt) -> bytes:
    with interrupt.may_raise():
        return os.read(fd, CHUNK_BYTES)


def size_of(fd: int) -> int:
    """How many bytes a file has; 0 for what is none."""
    found = os.fstat(fd)
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
