"""The inside of ``fairlead topic get``: receive, write, confirm, and the form of a line.

What lives here: the order of writing and confirming, the end by count, silence, signal or closed
pipe. Options and exit codes are in ``fairlead.topic``.
"""

from __future__ import annotations

import json
import string
import sys
import time
from typing import Any, Callable

from fairlead.outlet import Outlet
from fairlead.output import to_json
from fairlead.problems import UsageProblem
from fairlead.pub import Interrupt
from fairlead.sub import ESCAPES
from topics import TopicMessage, Topics

FIELDS = ("topic", "id", "publisher", "number", "at_ms", "stamp", "ticket", "body")
#: How many messages are here that are not confirmed, and for how long at most.
COUNT_MAX = 100
CONFIRM_S = 0.2
#: A long wait is made of short ones, to notice signals and the end of the reader.
WAIT_SLICE_S = 0.5


class Getting:
    """Receive, write, confirm; in this order, so that nothing is lost on the way out."""

    def __init__(
        self, known: Topics, topic: str | None, to_text: Callable[[TopicMessage], bytes]
    ) -> None:
        self.taken = 0
        self.interrupt = Interrupt()
        self.outlet = Outlet(sys.stdout.fileno(), self._is_over)
        self._known = known
        self._topic = topic
        self._to_text = to_text
        self._unconfirmed: dict[str, TopicMessage] = {}  # the last one taken of each topic

    def run(self, limit: int, wait_s: float) -> None:
        """Hand out up to ``limit`` messages; ``taken`` counts them."""
        while self.taken < limit and self._may_go_on():
            found = self._next(min(limit - self.taken, COUNT_MAX), wait_s)
            if not found:
                return
            self._hand_out(found)
            self.confirm()

    def confirm(self) -> None:
        """Confirm what was taken."""
        while self._unconfirmed:
            self._known.confirm(self._unconfirmed.popitem()[1])

    def _hand_out(self, found: list[TopicMessage]) -> None:
        deadline = time.monotonic() + CONFIRM_S
        for message in found:
            if self._is_over() or not self.outlet.write(self._to_text(message)):
                return
            self.taken += 1
            self._unconfirmed[message.topic] = message
            if time.monotonic() > deadline:
                self.confirm()  # a slow reader
                deadline = time.monotonic() + CONFIRM_S

    def _next(self, count: int, wait_s: float) -> list[TopicMessage]:
        deadline = time.monotonic() + wait_s
        while True:
            left = deadline - time.monotonic()
            found = self._receive(count, max(0.0, min(left, WAIT_SLICE_S)))
            if found or left <= 0 or not self._may_go_on():
                return found

    def _receive(self, count: int, wait_s: float) -> list[TopicMessage]:
        if self._topic is None:
            return self._known.receive_any(count, wait_s)
        return self._known.receive(self._topic, count, wait_s)

    def _may_go_on(self) -> bool:
        return not self._is_over() and self.outlet.look()

    def _is_over(self) -> bool:
        return self.interrupt.signum is not None


def to_raw(message: TopicMessage) -> bytes:
    """The body as it is."""
    return message.data


def to_json_line(message: TopicMessage) -> bytes:
    """A line of JSON with every field."""
    return to_json({name: getattr(message, name) for name in FIELDS}).encode() + b"\n"


def formatter(form: str) -> Callable[[TopicMessage], bytes]:
    """What makes a line of a message. Raises UsageProblem for a form that names no field."""
    for escape, character in ESCAPES.items():
        form = form.replace(escape, character)
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(form) if name is not None]
        unknown = [name for name in names if name not in FIELDS]
        form.format(**dict.fromkeys(FIELDS, ""))
    except (ValueError, IndexError, KeyError, AttributeError) as error:
        if not (isinstance(error, KeyError) and unknown):
            raise UsageProblem(
                f"--format {form!r} cannot be used ({error})", "write '{id} {body}', for example"
            ) from None
    if unknown:
        raise UsageProblem(
            f"--format names the field {unknown[0]!r}, which messages do not have",
            f"they have {', '.join(FIELDS)}",
        )

    def to_line(message: TopicMessage) -> bytes:
        values = {name: _text(getattr(message, name)) for name in names}
        return form.format(**values).encode("utf-8", "surrogateescape") + b"\n"

    return to_line


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
