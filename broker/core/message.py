"""What is carried: the key of a partition and the entry of a message. No delivery state lives here.

A message inside the broker is a plain tuple, an ``Entry``. Tuples are built for a whole batch in C
(by ``zip``), need no object of a class each and compare by (timestamp, sequence), which is
exactly the order of a partition; the sequence is unique in it, so a comparison never gets further.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any, Final, Iterable, NamedTuple, Sequence, TypeAlias


class PartitionKey(NamedTuple):
    """The pair that orders: messages with equal keys are handled in order, one at a time."""

    publisher: str
    partition: str

    def __str__(self) -> str:
        return f"{self.publisher}/{self.partition}"


#: (timestamp in microseconds, sequence, priority, format, body, extras); extras is None or a dict
#: with "id" (chosen by the user) and "headers".
Entry: TypeAlias = tuple[int, int, int, int, bytes, dict[str, Any] | None]

TIMESTAMP: Final = 0
SEQUENCE: Final = 1
PRIORITY: Final = 2
FORMAT: Final = 3
BODY: Final = 4
EXTRAS: Final = 5

#: How the body's bytes are to be read by the one who handles the message.
FORMAT_BYTES: Final = 0
FORMAT_TEXT: Final = 1
FORMAT_JSON: Final = 2
FORMAT_NAMES = ("bytes", "text", "json")


def make_entries(
    sequences: Iterable[int],
    bodies: Sequence[bytes],
    timestamps: Sequence[int] | int,
    priorities: Sequence[int] | None = None,
    formats: Sequence[int] | int = FORMAT_BYTES,
    extras: Sequence[dict[str, Any] | None] | None = None,
) -> list[Entry]:
    """The entries of one batch from its columns; a column that is all the same is given once."""
    return list(
        zip(
            repeat(timestamps) if isinstance(timestamps, int) else timestamps,
            sequences,
            repeat(0) if priorities is None else priorities,
            repeat(formats) if isinstance(formats, int) else formats,
            bodies,
            repeat(None) if extras is None else extras,
        )
    )


class Columns(NamedTuple):
    """The entries of one batch, column by column: the form of the wire and of the journal."""

    timestamps: Sequence[int] | int
    sequences: Sequence[int]
    priorities: Sequence[int] | None
    formats: Sequence[int] | int
    bodies: Sequence[bytes]
    extras: Sequence[dict[str, Any] | None] | None


def columns_of(entries: Sequence[Entry]) -> Columns:
    """The inverse of :func:`make_entries`; columns without information are folded."""
    if not entries:
        return Columns((), (), None, FORMAT_BYTES, (), None)
    timestamps, sequences, priorities, formats, bodies, extras = zip(*entries)
    first_format, first_timestamp = formats[0], timestamps[0]
    return Columns(
        first_timestamp if timestamps.count(first_timestamp) == len(timestamps) else timestamps,
        sequences,
        priorities if any(priorities) else None,
        first_format if formats.count(first_format) == len(formats) else formats,
        bodies,
        extras if any(extras) else None,
    )
