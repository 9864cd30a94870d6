"""The inside of ``fairlead topic put``: input, calls, the tally, and how far it is.

What lives here: what becomes of each message, and what is said about it. Cutting input into
messages is in ``fairlead.topic_input``, options and exit codes are in ``fairlead.topic``.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from broker.errors import BadRequest, BrokerError
from fairlead.output import complain, note, stderr_console
from fairlead.problems import UsageProblem
from fairlead.pub import COMPLAINTS_MAX, Interrupt
from fairlead.topic_input import Piece, Shape, pieces, read_lines, read_whole, size_of
from topics import Receipt, Topics

PROGRESS_AFTER_S = 1.0


@dataclass(slots=True)
class Tally:
    """What became of the messages so far."""

    topic: str
    client: str
    shape: Shape
    by_message: bool  # numbers are of messages, not of lines
    resumed: list[Receipt] = field(default_factory=list)
    accepted: int = 0
    refused: int = 0
    unknown: int = 0
    last: Receipt | None = None
    go_on_from: int | None = None  # where the user has to go on, when it ended before its time
    _started: float = field(default_factory=time.monotonic)

    @property
    def failed(self) -> bool:
        """Whether any message was not accepted."""
        return bool(self.refused or self.unknown)

    def put(self, known: Topics, piece: Piece) -> None:
        """Put a piece; what is refused for what it is does not keep the others from being put."""
        readable: list[Any] = []
        for number, raw in enumerate(piece.bodies, piece.first):
            try:
                readable.append((number, self.shape.read(raw)))
            except ValueError as error:
                self.refused += 1
                self._complain(number, 1, error)
        if readable:
            self._put(known, readable)

    def _put(self, known: Topics, numbered: list[tuple[int, Any]]) -> None:
        first, count = numbered[0][0], len(numbered)
        try:
            self.last = known.put_many(self.topic, [body for _, body in numbered])
            self.accepted += count
        except BadRequest as error:
            if count == 1:
                self.refused += 1
                self._complain(first, 1, error)
                return
            for one in numbered:
                if self.go_on_from is None:
                    self._put(known, [one])
        except BrokerError as error:
            if _surely_not_done(error):
                self.refused += count
                self.go_on_from = first
            else:
                self.unknown += count
                self.go_on_from = numbered[-1][0] + 1
            self._complain(first, count, error)

    def _complain(self, first: int, count: int, error: Exception) -> None:
        failures = self.refused + self.unknown
        if count > 1 or failures <= COMPLAINTS_MAX:
            complain(f"{self._where(first, count)}: {error}")
        elif failures == COMPLAINTS_MAX + 1:
            complain("more messages were refused; the tally at the end counts them")

    def _where(self, first: int, count: int = 1) -> str:
        what = "message" if self.by_message else "line"
        return f"{what} {first}" if count == 1 else f"{what}s {first} to {first + count - 1}"

    def text(self) -> str:
        """The tally in one line."""
        elapsed = time.monotonic() - self._started
        words = f"accepted {self.accepted}, refused {self.refused}"
        words += f", unknown {self.unknown}" if self.unknown else ""
        words += f" in {elapsed:.2f} s"
        words += f", {self.accepted / elapsed:,.0f}/s" if self.accepted >= 1000 else ""
        if self.go_on_from is not None:
            words += f"; nothing from {self._where(self.go_on_from)} on was put"
        return words

    def to_dict(self) -> dict[str, Any]:
        """The tally for programs."""
        return {
            "topic": self.topic, "client": self.client, "accepted": self.accepted,
            "refused": self.refused, "unknown": self.unknown, "go_on_from": self.go_on_from,
            "number": self.last and self.last.number,
            "position": self.last and self.last.position,
            "resumed": [
                {"topic": receipt.topic, "number": receipt.number, "again": receipt.again}
                for receipt in self.resumed
            ],
        }  # fmt: skip


def _surely_not_done(error: BrokerError) -> bool:
    """Silence leaves doubt only if something was sent, and an earlier put is another matter."""
    sent = error.details.get("sent", True) and not error.details.get("earlier")
    return error.definite or not sent


def put_all(
    known: Topics, tally: Tally, found: Iterator[list[bytes]], interrupt: Interrupt
) -> None:
    """Put what is found, until its end, a failure that concerns all of it, or a signal."""
    for piece in pieces(found):
        tally.put(known, piece)
        if tally.go_on_from is not None:
            return
        if interrupt.signum is not None:
            tally.go_on_from = piece.first + len(piece.bodies)
            return


def resume(known: Topics) -> list[Receipt]:
    """Settle what an earlier life has left without an answer, and say so."""
    settled = known.resume()
    for receipt in settled:
        outcome = "had arrived" if receipt.again else "is accepted now"
        note(
            f"a put of an earlier run to topic {receipt.topic}, up to number {receipt.number}, was "
            f"sent again: it {outcome}"
        )
    return settled


def refuse_mixture(
    messages: list[str] | None, file: Path | None, whole: bool, binary: bool, json_bodies: bool
) -> None:
    """Refuse options that exclude each other."""
    if messages and (file is not None or whole):
        raise UsageProblem(
            "messages are given, and --file or --whole too", "leave one of them out"
        )
    if binary and json_bodies:
        raise UsageProblem("a body is bytes or JSON", "leave --binary or --json-bodies out")


@contextmanager
def open_input(
    messages: list[str] | None, file: Path | None, whole: bool, interrupt: Interrupt
) -> Iterator[Iterator[list[bytes]]]:
    """Where the messages come from, as batches of any size."""
    if messages:
        yield iter([[os.fsencode(message) for message in messages]])
        return
    if file is None or str(file) == "-":
        fd, close = sys.stdin.fileno(), False
        if sys.stdin.isatty():
            note("Ctrl-D ends" if whole else "one message per line; Ctrl-D ends")
    else:
        fd, close = os.open(file, os.O_RDONLY), True
    try:
        with _progress(size_of(fd)) as advance:
            yield (read_whole if whole else read_lines)(fd, interrupt, advance)
    finally:
        if close:
            os.close(fd)


@contextmanager
def _progress(size: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr when it takes long and a person watches; else nothing."""
    if not size or not sys.stderr.isatty():
        yield lambda count: None
        return
    columns = (TextColumn("putting"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=stderr_console(), transient=True)
    task = progress.add_task("putting", total=size)
    shown_from = time.monotonic() + PROGRESS_AFTER_S

    def advance(count: int) -> None:
        progress.advance(task, count)
        if not progress.live.is_started and time.monotonic() > shown_from:
            progress.start()

    try:
        yield advance
    finally:
        progress.stop()
