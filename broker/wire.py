"""What crosses the wire, and the checks at the edge. Pure: builtin types in, commands out.

Two forms:

- *columns*, between Fairlead's own parts: parallel lists, one item per run or per message, so that
  decoding and checking cost a few C calls per batch.
- *plain*, for any Pyro5 script: one dict per message, bodies as str, bytes or JSON values.

Everything that comes from outside is checked here once: types, ids, sizes. The core may rely on it.
"""

from __future__ import annotations

import base64
import json
import math
import re
from itertools import chain
from operator import add
from typing import Any, Sequence
from zlib import crc32

from broker.core.commands import Publish, Send
from broker.core.message import (
    BODY,
    FORMAT_BYTES,
    FORMAT_JSON,
    FORMAT_TEXT,
    Columns,
    Entry,
    columns_of,
    make_entries,
)
from broker.core.policy import Policy
from broker.errors import BadRequest, MessageTooLarge

ID_LENGTH_MAX = 200
TIMESTAMP_MAX = 1 << 62
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_ints = frozenset({int})
_strs = frozenset({str})
_bytes = frozenset({bytes})


# Ids.


def check_id(value: Any, what: str) -> str:
    """An id as it may appear anywhere: 1 to 200 printable characters, kept exactly as given."""
    if type(value) is not str:
        raise BadRequest(f"{what} {value!r:.80} is refused: an id must be a str")
    if not 0 < len(value) <= ID_LENGTH_MAX:
        raise BadRequest(
            f"{what} {value!r:.80} is refused: an id has 1 to {ID_LENGTH_MAX} characters, "
            f"this one has {len(value)}"
        )
    if not value.isprintable():
        raise BadRequest(
            f"{what} {value!r:.80} is refused: an id may hold only printable characters"
        )
    return value


def check_ids(values: Sequence[Any], what: str) -> None:
    """:func:`check_id` for a whole column, in a few C calls when all is well."""
    if set(map(type, values)) <= _strs and all(map(str.isprintable, values)):
        lengths = set(map(len, values))
        if not lengths or (min(lengths) > 0 and max(lengths) <= ID_LENGTH_MAX):
            return
    for value in values:
        check_id(value, what)


def safe_text(value: Any, length_max: int) -> str:
    """A text for people, as a reason: cut to a length, and made of valid Unicode."""
    return str(value)[:length_max].encode("utf-8", "replace").decode()


def check_channel_name(value: Any) -> str:
    """A channel name; see :func:`check_name`."""
    return check_name(value, "channel name")


def check_name(value: Any, what: str) -> str:
    """A name: it becomes part of a name server entry, a file row and a command line."""
    if type(value) is not str or not _NAME.fullmatch(value):
        raise BadRequest(
            f"{what} {value!r:.120} is refused: use 1 to 100 of the characters A-Z a-z 0-9 "
            ". _ - and start with a letter or a digit"
        )
    return value


def check_ints(values: Any, what: str, low: int, high: int) -> list[int]:
    """A column of whole numbers within bounds."""
    if not isinstance(values, (list, tuple)) or not set(map(type, values)) <= _ints:
        raise BadRequest(f"{what} must be a list of whole numbers")
    if values and not (low <= min(values) and max(values) <= high):
        raise BadRequest(f"{what} must lie between {low} and {high}")
    return values if isinstance(values, list) else list(values)


def check_int(value: Any, what: str, low: int, high: int) -> int:
    """One whole number within bounds."""
    if type(value) is not int or not low <= value <= high:
        raise BadRequest(f"{what}={value!r:.60} is refused: it must be {low} to {high}")
    return value


# Publishing in columns.


def publish_command(
    policy: Policy,
    publisher: str,
    epoch: int | None,
    partitions: Any,
    firsts: Any,
    counts: Any,
    timestamps: Any,
    bodies: Any,
    priorities: Any = None,
    formats: Any = FORMAT_BYTES,
    extras: Any = None,
) -> Publish:
    """The command for one batch in columns. Raises BadRequest or MessageTooLarge."""
    check_id(publisher, "publisher id")
    if not isinstance(bodies, (list, tuple)) or not isinstance(partitions, (list, tuple)):
        raise BadRequest("partitions and bodies must be lists")
    count = len(bodies)
    if not 0 < count <= policy.batch_count_max:
        raise BadRequest(
            f"a batch of {count} messages is refused: it must have 1 to {policy.batch_count_max}"
        )
    check_ids(partitions, "partition id")
    if len(set(partitions)) != len(partitions):
        raise BadRequest("a batch names each partition once; gather its messages into one run")
    firsts = check_ints(firsts, "firsts", 1, TIMESTAMP_MAX)
    counts = check_ints(counts, "counts", 1, policy.batch_count_max)
    if not len(firsts) == len(counts) == len(partitions) or sum(counts) != count:
        raise BadRequest(
            "partitions, firsts and counts must be equally long, and the counts must add up to "
            f"the number of bodies; got {len(partitions)}, {len(firsts)}, {len(counts)} runs with "
            f"{sum(counts)} messages for {count} bodies"
        )
    size = _check_bodies(policy, bodies)
    if type(timestamps) is int:
        check_int(timestamps, "timestamp", 0, TIMESTAMP_MAX)
    elif len(check_ints(timestamps, "timestamps", 0, TIMESTAMP_MAX)) != count:
        raise BadRequest(f"{len(timestamps)} timestamps for {count} bodies")
    if priorities is not None and count != len(
        check_ints(priorities, "priorities", 0, policy.priority_max)
    ):
        raise BadRequest(f"{len(priorities)} priorities for {count} bodies")
    if type(formats) is int:
        check_int(formats, "format", 0, FORMAT_JSON)
    elif len(check_ints(formats, "formats", 0, FORMAT_JSON)) != count:
        raise BadRequest(f"{len(formats)} formats for {count} bodies")
    ids = extras is not None and _check_extras(policy, extras, count)
    sequences = expand(firsts, counts)
    entries = make_entries(sequences, bodies, timestamps, priorities, formats, extras)
    columns = Columns(timestamps, sequences, priorities, formats, bodies, extras)
    return Publish(
        publisher, epoch, list(partitions), firsts, counts, entries, size,
        max(priorities) if priorities else 0, ids, columns,
    )  # fmt: skip


def expand(firsts: Sequence[int], counts: Sequence[int]) -> Sequence[int]:
    """The numbers of all runs, one after the other."""
    if len(set(counts)) == 1 and counts[0] == 1:
        return firsts
    return list(chain.from_iterable(map(range, firsts, map(add, firsts, counts))))


def _check_bodies(policy: Policy, bodies: Sequence[Any]) -> int:
    if not set(map(type, bodies)) <= _bytes:
        raise BadRequest("bodies in columns must be bytes; their format says how to read them")
    lengths = list(map(len, bodies))
    longest, size = max(lengths), sum(lengths)
    if longest > policy.message_bytes_max:
        raise MessageTooLarge(
            f"a body of {longest} bytes is refused: the channel's limit is "
            f"{policy.message_bytes_max} (message_bytes_max)",
            limit=policy.message_bytes_max,
        )
    if size > policy.batch_bytes_max:
        raise MessageTooLarge(
            f"a batch of {size} bytes is refused: the channel's limit is "
            f"{policy.batch_bytes_max} (batch_bytes_max); send fewer messages at once",
            limit=policy.batch_bytes_max,
        )
    return size


def _check_extras(policy: Policy, extras: Any, count: int) -> bool:
    if not isinstance(extras, (list, tuple)) or len(extras) != count:
        raise BadRequest(f"extras must be a list with one item for each of {count} bodies")
    has_ids = False
    for item in extras:
        if item is None:
            continue
        if type(item) is not dict or not set(item) <= {"id", "headers"}:
            raise BadRequest("extras of a message may hold 'id' and 'headers' only")
        if "id" in item:
            check_id(item["id"], "message id")
            has_ids = True
        if "headers" in item:
            check_headers(item["headers"], policy.headers_bytes_max)
    return has_ids


def check_headers(headers: Any, bytes_max: int) -> dict[str, str]:
    """Headers: a dict of str to str, bounded in size."""
    if type(headers) is not dict:
        raise BadRequest("headers must be a dict of str to str")
    if not set(map(type, headers)) | set(map(type, headers.values())) <= _strs:
        raise BadRequest("headers must be a dict of str to str")
    try:
        size = sum(len(text.encode()) for text in chain(headers, headers.values()))
    except UnicodeEncodeError as error:
        raise BadRequest(f"headers must be valid Unicode: {error}") from None
    if size > bytes_max:
        raise MessageTooLarge(
            f"headers of {size} bytes are refused: the channel's limit is {bytes_max} "
            "(headers_bytes_max)",
            limit=bytes_max,
        )
    return headers


# Bodies.


def encode_body(value: Any) -> tuple[int, bytes]:
    """(format, bytes) of a body: bytes as they are, str as text, everything else as JSON."""
    kind = type(value)
    if kind is bytes:
        return FORMAT_BYTES, value
    try:
        if kind is str:
            return FORMAT_TEXT, value.encode()
        if isinstance(value, (bytearray, memoryview)):
            return FORMAT_BYTES, bytes(value)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return FORMAT_JSON, text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(
            f"a body of type {kind.__name__} is refused: bytes, str, or what JSON can carry "
            f"({error})"
        ) from None


def decode_body(kind: int, body: bytes) -> Any:
    """The value that :func:`encode_body` was given."""
    if kind == FORMAT_TEXT:
        return body.decode()
    if kind == FORMAT_JSON:
        return json.loads(body)
    return body


def to_timestamp(value: Any) -> int:
    """Seconds since 1970 (int or float) as the whole microseconds that messages carry."""
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise BadRequest(
            f"timestamp {value!r:.60} is refused: it must be a finite number of seconds since 1970"
        )
    result: int = round(value * 1_000_000)
    if result > TIMESTAMP_MAX:
        raise BadRequest(f"timestamp {value!r:.60} is refused: it is too far in the future")
    return result


def call_checksum(formats: Any, bodies: Any) -> int:
    """By which the repetition of a put is told from another one under its number."""
    head = repr((formats, [len(body) for body in bodies])).encode()
    check = crc32(head)
    for body in bodies:
        check = crc32(body, check)
    return check


# The plain form.


def from_serpent(value: Any) -> Any:
    """Serpent carries bytes as a dict with base64 text; give the bytes back."""
    if type(value) is dict and value.get("encoding") == "base64" and len(value) == 2:
        try:
            return base64.b64decode(value["data"])
        except (KeyError, ValueError, TypeError):
            return value
    return value


def to_serpent(body: bytes) -> dict[str, str]:
    """The opposite of :func:`from_serpent`."""
    return {"data": base64.b64encode(body).decode(), "encoding": "base64"}


def plain_columns(
    policy: Policy, messages: Any, now_us: int
) -> tuple[list[bytes], list[int], list[int], list[int], list[dict[str, Any] | None]]:
    """Bodies, timestamps, priorities, formats and extras of a list of plain messages.

    A plain message is a body, or a dict with "body" and any of "timestamp", "priority", "id",
    "headers". A JSON object that is meant as a body is given as {"body": {...}}.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise BadRequest("messages must be a list with at least one message in it")
    if len(messages) > policy.batch_count_max:
        raise BadRequest(
            f"a batch of {len(messages)} messages is refused: the limit is "
            f"{policy.batch_count_max} (batch_count_max)"
        )
    known = {"body", "timestamp", "priority", "id", "headers"}
    bodies, timestamps, priorities, formats, extras = [], [], [], [], []
    for message in messages:
        message = from_serpent(message)
        if type(message) is not dict:
            message = {"body": message}
        elif "body" not in message or not set(message) <= known:
            raise BadRequest(
                "a message given as a dict must have 'body' and may have 'timestamp', 'priority', "
                f"'id' and 'headers'; this one has {sorted(map(str, message))}"
            )
        kind, body = encode_body(from_serpent(message["body"]))
        formats.append(kind)
        bodies.append(body)
        stamp = message.get("timestamp")
        timestamps.append(now_us if stamp is None else to_timestamp(stamp))
        priorities.append(message.get("priority") or 0)
        extra = {name: message[name] for name in ("id", "headers") if message.get(name) is not None}
        extras.append(extra or None)
    return bodies, timestamps, priorities, formats, extras


def plain_messages(send: Send, takes_bytes: bool = True) -> list[dict[str, Any]]:
    """What a plain subscriber receives: one dict per message, in order.

    For a serializer that cannot carry bytes, they become what serpent makes of them.
    """
    record = send.delivered
    entries = iter(send.entries)
    messages = []
    for key, first, count, epoch, attempt in zip(
        record.keys, record.firsts, record.counts, record.epochs, record.attempts
    ):
        for position in range(first, first + count):
            entry = next(entries)
            messages.append(plain_message(key, position, epoch, attempt, entry))
            attempt = 1
    if not takes_bytes:
        without_bytes(messages)
    return messages


def without_bytes(messages: list[dict[str, Any]]) -> None:
    """Make the bodies fit for a serializer that cannot carry bytes."""
    for message in messages:
        if type(message["body"]) is bytes:
            message["body"] = to_serpent(message["body"])


def plain_message(
    key: tuple[str, str], position: int, epoch: int, attempt: int, entry: Entry
) -> dict[str, Any]:
    """One message as a dict of builtin types."""
    timestamp, sequence, priority, kind, body, extras = entry
    extras = extras or {}
    return {
        "publisher": key[0],
        "partition": key[1],
        "sequence": sequence,
        "position": position,
        "epoch": epoch,
        "attempt": attempt,
        "timestamp": timestamp / 1_000_000,
        "priority": priority,
        "id": extras.get("id"),
        "headers": extras.get("headers") or {},
        "body": readable(kind, body),
    }


def readable(kind: int, body: bytes) -> Any:
    """The body's value; its bytes if they are not what its format says. Nobody checked them."""
    try:
        return decode_body(kind, body)
    except (ValueError, RecursionError):
        return body


# Delivery in columns.


def delivery_columns(send: Send, fence: int = 0, generation: int = 0) -> dict[str, Any]:
    """What Fairlead's own subscriber receives: the runs and the messages as parallel lists.

    ``fence`` is the newest epoch when it joined, ``generation`` tells a subscription from an
    earlier one of the same name: the batch may come before the answer to ``subscribe``.
    """
    record = send.delivered
    columns = columns_of(send.entries)
    publishers, partitions = zip(*record.keys)
    publisher = publishers[0]
    return {
        "publishers": publisher if publishers.count(publisher) == len(publishers) else publishers,
        "partitions": partitions,
        "firsts": record.firsts,
        "counts": record.counts,
        "epochs": record.epochs,
        "attempts": record.attempts if any(map((1).__lt__, record.attempts)) else None,
        "timestamps": columns.timestamps,
        "sequences": record.sequences,
        "priorities": columns.priorities,
        "formats": columns.formats,
        "bodies": columns.bodies,
        "extras": columns.extras,
        "fence": fence,
        "generation": generation,
    }


def body_bytes(send: Send) -> int:
    """How many bytes of bodies a send carries."""
    return sum([len(entry[BODY]) for entry in send.entries])


