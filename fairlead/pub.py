"""``fairlead pub``: messages from arguments or from the lines of stdin, with a tally at the end.

What lives here: reading lines, splitting keys, counting outcomes, and ending well on a signal.
Batching, resending and order are ``publisher.Publisher``'s business.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import FrameType
from typing import Annotated, Any, Iterator

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from broker.errors import BrokerError, PublisherFenced
from fairlead.connection import Connection
from fairlead.options import (
    DEFAULT_NAME_SERVER,
    ChannelArgument,
    LogLevel,
    LogLevelOption,
    NameServerOption,
    option,
    parse_headers,
    start_logging,
)
from fairlead.output import complain, note, stderr_console
from fairlead.problems import EXIT_FAILED, EXIT_SIGNAL, UsageProblem
from publisher import Publisher, Receipt

OPEN_COUNT_MAX = 20_000  # unconfirmed messages; stays below the publisher's own limit
OPEN_COUNT_LOOK = 1_000
FLUSH_S = 5.0
COMPLAINTS_MAX = 5
DEFAULT_PUBLISHER = "fairlead-pub"
DEFAULT_PARTITION = "default"


class OnFull(str, Enum):
    """What to do when the channel is full."""

    refuse = "refuse"
    block = "block"


def pub(
    channel: ChannelArgument,
    messages: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MESSAGE",
            show_default=False,
            help="The messages; without any, each line of stdin is one.",
        ),
    ] = None,
    partition: Annotated[
        str,
        option(
            "--partition",
            "-K",
            metavar="KEY",
            help="Messages with the same key are handled in order.",
        ),
    ] = DEFAULT_PARTITION,
    key_delimiter: Annotated[
        str | None,
        option(
            "--key-delimiter",
            metavar="TEXT",
            help="What stands between key and body in each message; where it does not, the key is "
            "--partition.",
        ),
    ] = None,
    priority: Annotated[
        int,
        option("--priority", "-p", min=0, help="Larger is more urgent."),
    ] = 0,
    header: Annotated[
        list[str] | None,
        option(
            "--header",
            "-H",
            metavar="NAME:VALUE",
            help="A header of every message; may be repeated.",
        ),
    ] = None,
    id: Annotated[
        str | None,
        option(
            "--id",
            metavar="ID",
            help="An id of your own for one message: a second one with it is dropped.",
        ),
    ] = None,
    publisher: Annotated[
        str,
        option(
            "--publisher",
            metavar="ID",
            help="Who publishes. Of two at a time with one id the older is stopped.",
        ),
    ] = DEFAULT_PUBLISHER,
    json_bodies: Annotated[
        bool,
        option("--json-bodies", help="Bodies are JSON, not text."),
    ] = False,
    on_full: Annotated[
        OnFull | None,
        option(
            "--on-full",
            show_default=False,
            help="When the channel is full; else its policy decides.",
        ),
    ] = None,
    create: Annotated[
        bool,
        option(
            "--create/--no-create",
            help="Make the channel if it is not there.",
        ),
    ] = True,
    give_up: Annotated[
        float,
        option(
            "--give-up",
            min=0.1,
            metavar="SECONDS",
            help="How long a broker may be away before the messages fail.",
        ),
    ] = 60.0,
    quiet: Annotated[bool, option("--quiet", "-q", help="No tally on stderr.")] = False,
    history: Annotated[
        str | None,
        option(
            "--history",
            metavar="DIR",
            help="Write what this publisher saw to a file of its own in this directory.",
        ),
    ] = None,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    log_level: LogLevelOption = LogLevel.critical,
) -> None:
    """Publish messages, from arguments or stdin.

    Exit 0 when all were accepted, 1 when not, 130 after Ctrl-C. A broker that restarts meanwhile is
    waited for, and nothing is published twice.
    """
    if id is not None and len(messages or ()) != 1:
        raise UsageProblem("--id names one message", "give exactly one MESSAGE with it")
    start_logging(log_level)
    shape = Shape(partition, key_delimiter, json_bodies)
    fixed = {"priority": priority, "headers": parse_headers(header) or None, "id": id}
    connection = Connection(name_server)
    if not create:
        connection.channel_uri(channel)
    interrupt = Interrupt()
    tally = Tally()
    client = Publisher(
        publisher, channel, name_server=name_server, create=create,
        on_full=None if on_full is None else on_full.value, give_up_s=give_up,
        history=history,
    )  # fmt: skip
    try:
        if messages:
            _publish(client, shape, fixed, enumerate_arguments(messages), tally, interrupt)
        else:
            with _progress() as advance:
                lines = enumerate_lines(interrupt, advance)
                _publish(client, shape, fixed, lines, tally, interrupt)
        tally.wait_all(interrupt)
    except KeyboardInterrupt:
        tally.wait_for(FLUSH_S)
    finally:
        client.close(timeout=FLUSH_S)
    tally.count_done()
    if not quiet:
        note(tally.text())
    if interrupt.signum is not None:
        raise typer.Exit(EXIT_SIGNAL + interrupt.signum)
    if tally.failed:
        raise typer.Exit(EXIT_FAILED)


def _publish(
    client: Publisher,
    shape: Shape,
    fixed: dict[str, Any],
    messages: Iterator[tuple[str, bytes]],
    tally: Tally,
    interrupt: Interrupt,
) -> None:
    for where, raw in messages:
        try:
            body, partition = shape.read(raw)
            receipt = client.publish(body, partition, **fixed)
        except (BrokerError, ValueError) as error:
            tally.refuse(where, error)
        else:
            tally.add(where, receipt, interrupt)
        if tally.hopeless:
            return


@dataclass(frozen=True, slots=True)
class Shape:
    """How a line becomes a message."""

    partition: str
    key_delimiter: str | None
    json_bodies: bool

    def read(self, raw: bytes) -> tuple[Any, str]:
        """Body and partition. Raises ValueError when the line does not fit."""
        partition = self.partition
        if self.key_delimiter:
            key, delimiter, rest = raw.partition(self.key_delimiter.encode())
            if delimiter:
                partition, raw = key.decode(), rest
        if self.json_bodies:
            return json.loads(raw), partition
        try:
            return raw.decode(), partition
        except UnicodeDecodeError:
            return raw, partition  # no text: it travels as bytes


@dataclass(slots=True)
class Tally:
    """What became of the messages so far, and the receipts that are still open."""

    accepted: int = 0
    duplicates: int = 0
    refused: int = 0
    unknown: int = 0
    hopeless: bool = False
    _open: deque[tuple[str, Receipt]] = field(default_factory=deque)
    _started: float = field(default_factory=time.monotonic)

    @property
    def failed(self) -> bool:
        """Whether any message was not accepted."""
        return bool(self.refused or self.unknown)

    def add(self, where: str, receipt: Receipt, interrupt: Interrupt) -> None:
        """Keep a receipt; wait when too many are open."""
        self._open.append((where, receipt))
        if len(self._open) % OPEN_COUNT_LOOK == 0:
            self.count_done()
            while len(self._open) >= OPEN_COUNT_MAX:
                self._wait_first(interrupt)

    def wait_all(self, interrupt: Interrupt) -> None:
        """Wait for the outcome of every message."""
        while self._open:
            self._wait_first(interrupt)

    def wait_for(self, seconds: float) -> None:
        """Wait so long at most; what is open then is unknown."""
        deadline = time.monotonic() + seconds
        for _, receipt in self._open:
            receipt.error(max(0.0, deadline - time.monotonic()))

    def count_done(self) -> None:
        """Count the outcomes that are known."""
        while self._open and self._open[0][1].done():
            self._count(*self._open.popleft())

    def refuse(self, where: str, error: Exception) -> None:
        """Count a message that could not be published, and say why."""
        if isinstance(error, BrokerError) and not error.definite:
            self.unknown += 1
        else:
            self.refused += 1
        self.hopeless |= isinstance(error, PublisherFenced) or (
            isinstance(error, BrokerError) and not error.definite
        )
        failures = self.refused + self.unknown
        if failures <= COMPLAINTS_MAX:
            complain(f"{where}: {error}")
        elif failures == COMPLAINTS_MAX + 1:
            complain("more messages were refused; the tally at the end counts them")

    def text(self) -> str:
        """The tally in one line."""
        elapsed = time.monotonic() - self._started
        unknown = self.unknown + len(self._open)
        words = f"accepted {self.accepted}, duplicates {self.duplicates}, refused {self.refused}"
        words += f", unknown {unknown}" if unknown else ""
        rate = f", {self.accepted / elapsed:,.0f}/s" if self.accepted >= 1000 else ""
        return f"{words} in {elapsed:.2f} s{rate}"

    def _wait_first(self, interrupt: Interrupt) -> None:
        with interrupt.may_raise():
            self._open[0][1].error(None)
        self.count_done()

    def _count(self, where: str, receipt: Receipt) -> None:
        try:
            outcome = receipt.result(0.0)
        except BrokerError as error:
            self.refuse(where, error)
            return
        if outcome.duplicate:
            self.duplicates += 1
        else:
            self.accepted += 1


class Interrupt:
    """Ctrl-C and SIGTERM, seen only where waiting for something may be broken off.

    Raising anywhere would tear the publisher's state. The second signal ends the process at once.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._may_raise = False
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._on_signal)

    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        self.signum = signum
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        if self._may_raise:
            raise KeyboardInterrupt

    @contextmanager
    def may_raise(self) -> Iterator[None]:
        """Inside, a signal raises KeyboardInterrupt; one that came before raises it now."""
        self._may_raise = True
        try:
            if self.signum is not None:
                raise KeyboardInterrupt
            yield
        finally:
            self._may_raise = False


def enumerate_arguments(messages: list[str]) -> Iterator[tuple[str, bytes]]:
    """The messages of the command line, each with a name for complaints."""
    for number, message in enumerate(messages, 1):
        yield f"message {number}", os.fsencode(message)


def enumerate_lines(interrupt: Interrupt, advance: Any) -> Iterator[tuple[str, bytes]]:
    """The lines of stdin as they come, each with a name for complaints."""
    if sys.stdin.isatty():
        note("one message per line; Ctrl-D ends")
    number = 0
    while True:
        with interrupt.may_raise():
            raw = sys.stdin.buffer.readline()
        if not raw:
            return
        number += 1
        advance(len(raw))
        yield f"line {number}", raw.removesuffix(b"\n").removesuffix(b"\r")


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar on stderr when a person watches a file being read; else nothing."""
    size = _input_size()
    if not size or not sys.stderr.isatty():
        yield lambda count: None
        return
    columns = (TextColumn("publishing"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr_console(), transient=True) as progress:
        task = progress.add_task("publishing", total=size)
        yield lambda count: progress.advance(task, count)


def _input_size() -> int:
    try:
        found = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
