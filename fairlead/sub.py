"""``fairlead sub``: each message a line on stdout, acknowledged once it is written.

What lives here: the form of a line, and the end by count, silence, signal or closed pipe. Leases,
acks and order are ``subscriber.Subscriber``'s business.
"""

from __future__ import annotations

import json
import os
import select
import socket
import string
import sys
import threading
from typing import Annotated, Any, Callable

from fairlead.connection import Connection
from fairlead.options import (
    DEFAULT_NAME_SERVER,
    DEFAULT_SUBSCRIPTION,
    ChannelArgument,
    JsonOption,
    LogLevel,
    LogLevelOption,
    NameServerOption,
    SubscriptionOption,
    option,
    start_logging,
)
from fairlead.output import forget_stdout, to_json
from fairlead.problems import UsageProblem
from subscriber import Message, Subscriber

FIELDS = (
    "publisher", "partition", "sequence", "position", "epoch", "attempt", "timestamp", "priority",
    "id", "headers", "body",
)  # fmt: skip
ESCAPES = {r"\t": "\t", r"\n": "\n", r"\0": "\0"}


def sub(
    channel: ChannelArgument,
    subscriber: Annotated[
        str | None,
        option(
            "--subscriber",
            metavar="ID",
            show_default=False,
            help="An id of its own; a second one with the same id replaces the first.  "
            "\\[default: made from host and process]",
        ),
    ] = None,
    subscription: SubscriptionOption = DEFAULT_SUBSCRIPTION,
    count: Annotated[
        int | None,
        option("--count", min=1, help="End after so many messages."),
    ] = None,
    idle: Annotated[
        float | None,
        option(
            "--idle",
            min=0.0,
            metavar="SECONDS",
            help="End when nothing has come for so long.",
        ),
    ] = None,
    prefetch: Annotated[
        int,
        option(
            "--prefetch",
            min=1,
            help="How many messages may be here unacknowledged.",
        ),
    ] = 1000,
    concurrency: Annotated[
        int,
        option(
            "--concurrency",
            min=1,
            help="How many partitions are handled at once.",
        ),
    ] = 1,
    form: Annotated[
        str,
        option(
            "--format",
            metavar="TEXT",
            help=f"The form of a line, with {{NAME}} for: {', '.join(FIELDS)}.",
        ),
    ] = "{body}",
    as_json: JsonOption = False,
    give_up: Annotated[
        float,
        option(
            "--give-up",
            min=0.1,
            metavar="SECONDS",
            help="How long a broker may be away before it fails.",
        ),
    ] = 60.0,
    history: Annotated[
        str | None,
        option(
            "--history",
            metavar="DIR",
            help="Write what this subscriber saw to a file of its own in this directory.",
        ),
    ] = None,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    log_level: LogLevelOption = LogLevel.error,
) -> None:
    """Print messages as they come, in order per partition.

    A message is acknowledged when its line is written. Ctrl-C, SIGTERM or the end of the reader end
    it cleanly: what was not printed goes to the next subscriber.
    """
    to_line = _as_json if as_json else _formatter(form)
    start_logging(log_level)
    connection = Connection(name_server)
    connection.channel_uri(channel)
    worker = Subscriber(
        subscriber or f"sub-{socket.gethostname()[:100]}-{os.getpid()}",
        channel,
        name_server=name_server,
        subscription=subscription,
        prefetch=prefetch,
        concurrency=concurrency,
        give_up_s=give_up,
        history=history,
    )
    printer = Printer(worker, to_line)
    worker.handler(printer.handle)
    printer.watch_reader()
    worker.run(count=count, idle_s=idle)
    if printer.reader_gone:
        forget_stdout()


class Printer:
    """The handler: one line per message, and the end when nobody reads them."""

    def __init__(self, worker: Subscriber, to_line: Callable[[Message], bytes]) -> None:
        self.reader_gone = False
        self._worker = worker
        self._to_line = to_line
        self._lock = threading.Lock()  # lines of several workers must not mix
        self._out = sys.stdout.buffer

    def handle(self, message: Message) -> None:
        """Write the message; one that cannot be written is handed back."""
        text = self._to_line(message) + b"\n"
        try:
            with self._lock:
                self._out.write(text)
                self._out.flush()
        except OSError:
            message.nack(delay=0, reason="fairlead sub: nobody reads its output any more")
            self._end()

    def watch_reader(self) -> None:
        """End also when the reader goes while no message comes."""
        if hasattr(select, "poll"):
            threading.Thread(target=self._watch, name="reader-watch", daemon=True).start()

    def _watch(self) -> None:
        watched = select.poll()
        # Errors are always reported; with nothing else asked for, a reader who is there is silent.
        watched.register(self._out.fileno(), 0)
        if any(event & (select.POLLERR | select.POLLNVAL) for _, event in watched.poll()):
            self._end()

    def _end(self) -> None:
        self.reader_gone = True
        self._worker.stop()


def _as_json(message: Message) -> bytes:
    return to_json({name: getattr(message, name) for name in FIELDS}).encode()


def _formatter(form: str) -> Callable[[Message], bytes]:
    """What makes a line of a message. Raises UsageProblem for a form that names no field."""
    for escape, character in ESCAPES.items():
        form = form.replace(escape, character)
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(form) if name is not None]
        unknown = [name for name in names if name not in FIELDS]
        form.format(**dict.fromkeys(FIELDS, ""))
    except (ValueError, IndexError, KeyError, AttributeError) as error:
        raise UsageProblem(
            f"--format {form!r} cannot be used ({error})", "write '{partition} {body}', for example"
        ) from None
    if unknown:
        raise UsageProblem(
            f"--format names the field {unknown[0]!r}, which messages do not have",
            f"they have {', '.join(FIELDS)}",
        )

    def to_line(message: Message) -> bytes:
        values = {name: _text(getattr(message, name)) for name in names}
        return form.format(**values).encode("utf-8", "surrogateescape")

    return to_line


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
