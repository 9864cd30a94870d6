"""Record <-> row, for every store alike. Pure: no file, no thread, no clock, no SQL lives here.

A row has real columns for what people and Spark ask for, and two packed ones: ``runs``, a msgpack
map of field name to value or parallel array, and ``bodies``, which an audit never has to read and
which therefore comes last. What goes where follows from the fields of the record's dataclass, so
a new kind of record needs no code here:

- ``at_ms``, ``publisher``, ``subscriber``, ``subscription`` and ``count`` are columns;
- ``keys`` and ``key`` become two parallel arrays, ``publishers`` and ``partitions``;
- ``entries`` is taken apart into columns: formats and bodies go into ``bodies``, timestamps,
  priorities and extras into ``runs``. The sequences are not stored: they follow from ``firsts``,
  ``counts`` and ``dropped``;
- ``formats`` and ``bodies`` of a record without entries (a topic's Put) go into ``bodies`` as well;
- ``lines`` is no part of the fact and is left out; everything else goes into ``runs`` by its name.

Costs are per batch: what is done per message is done by ``zip`` and msgpack, in C.

The checksum of a row continues that of the row before it, so a flipped bit, a row that was
swapped, replaced or removed, and a chain that was cut all show. It guards against damage, not
against malice.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import chain, compress, repeat
from operator import add
from typing import Any, Callable, Final, Iterable, Sequence, TypeAlias
from zlib import crc32

import msgpack  # type: ignore[import-untyped]

from broker.core.message import PartitionKey, columns_of, make_entries
from broker.core.records import RECORD_TYPES, message_count
from broker.core.topics.records import TOPIC_RECORD_TYPES, AnyRecord
from broker.errors import JournalError
from broker.journal.faults import corrupt

#: The order matters to a store: what is read most comes first, the bodies come last.
COLUMNS = (
    "channel", "sequence", "kind", "at_ms", "publisher", "subscriber", "subscription", "count",
    "checksum", "runs", "bodies",
)  # fmt: skip
CHANNEL: Final = 0
SEQUENCE: Final = 1
KIND: Final = 2
AT_MS: Final = 3
PUBLISHER: Final = 4
SUBSCRIBER: Final = 5
SUBSCRIPTION: Final = 6
COUNT: Final = 7
CHECKSUM: Final = 8
RUNS: Final = 9
BODIES: Final = 10

Row: TypeAlias = tuple[
    str, int, str, int, str | None, str | None, str | None, int, int, bytes, bytes | None
]

#: The checksum before the first row of a channel.
CHECKSUM_START = 0

_COLUMN_FIELDS = {
    "at_ms": AT_MS, "publisher": PUBLISHER, "subscriber": SUBSCRIBER,
    "subscription": SUBSCRIPTION, "count": COUNT,
}  # fmt: skip
_TRANSIENT = ("lines", "columns")  # no part of the fact; see broker.core.records
_ENTRY_COLUMNS = ("timestamps", "priorities", "extras")
_KEY_COLUMNS = ("publishers", "partitions")
_BODY_FIELDS = ("formats", "bodies")


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the fields of one kind of record are laid out in a row."""

    record_type: Callable[..., AnyRecord]
    columns: tuple[tuple[str, int], ...]
    absent: tuple[int, ...]
    packed: tuple[str, ...]
    stored: frozenset[str]
    has_entries: bool
    has_bodies: bool
    key_field: str | None


def _plan_of(record_type: type[Any]) -> _Plan:
    names = [field.name for field in fields(record_type) if field.name not in _TRANSIENT]
    has_entries, has_bodies = "entries" in names, "bodies" in names
    key_field = next((name for name in ("keys", "key") if name in names), None)
    elsewhere = {*_COLUMN_FIELDS, *_BODY_FIELDS, "entries", key_field}
    packed = tuple(name for name in names if name not in elsewhere)
    derived = (_ENTRY_COLUMNS if has_entries else ()) + (_KEY_COLUMNS if key_field else ())
    assert not set(packed) & set(derived), f"{record_type.kind}: a field hides a derived column"
    return _Plan(
        record_type,
        tuple((name, _COLUMN_FIELDS[name]) for name in names if name in _COLUMN_FIELDS),
        tuple(i for name, i in _COLUMN_FIELDS.items() if name not in names and i != COUNT),
        packed,
        frozenset(packed + derived),
        has_entries,
        has_bodies,
        key_field,
    )


_PLANS = {
    kind: _plan_of(cls)
    for kind, cls in (*RECORD_TYPES.items(), *TOPIC_RECORD_TYPES.items())
    if cls.durable
}


def checksum(previous: int, head: Sequence[Any], runs: bytes, bodies: bytes | None) -> int:
    """The chain's next link. The lengths are in it, so bytes cannot move between the blobs."""
    lengths = (len(runs), None if bodies is None else len(bodies))
    # Strict about text, unlike _pack: a store's own columns take no lone surrogates.
    check = crc32(runs, crc32(msgpack.packb((*head, *lengths)), previous))
    return check if bodies is None else crc32(bodies, check)


def encode(channel: str, sequence: int, record: AnyRecord, previous: int) -> Row:
    """The row of ``record``; ``previous`` is the checksum of the channel's row before it.

    Raises JournalError for what could not be read back: a record that is not durable, values that
    msgpack does not know, entries whose sequences are not those of ``firsts`` and ``counts``.
    """
    kind = record.kind
    try:
        plan = _PLANS[kind]
        runs = {name: getattr(record, name) for name in plan.packed}
        bodies = _split_entries(record, runs) if plan.has_entries else None
        if plan.has_bodies:
            bodies = {name: getattr(record, name) for name in _BODY_FIELDS}
        if plan.key_field is not None:
            _split_keys(getattr(record, plan.key_field), plan.key_field, runs)
        packed_runs = _pack(runs)
        packed_bodies = None if bodies is None else _pack(bodies)
        head = (
            channel, sequence, kind, record.at_ms,
            getattr(record, "publisher", None), getattr(record, "subscriber", None),
            getattr(record, "subscription", None), message_count(record),
        )  # fmt: skip
        check = checksum(previous, head, packed_runs, packed_bodies)
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise JournalError(
            f"channel {channel!r}: record {sequence} ({kind}) cannot be encoded: {error!r}",
            channel=channel, sequence=sequence,
        ) from error  # fmt: skip
    return (*head, check, packed_runs, packed_bodies)


def check_link(row: Sequence[Any], previous: int) -> None:
    """Whether ``row`` is the chain's next link after ``previous``; raises JournalCorrupt."""
    try:
        *head, check, runs, bodies = row
        found = checksum(previous, head, runs, bodies)
    except Exception as error:
        raise corrupt(
            row[CHANNEL], row[SEQUENCE], f"a column has a wrong type: {error!r}"
        ) from error
    if found != check:
        raise corrupt(
            row[CHANNEL], row[SEQUENCE],
            f"the checksum does not match: stored {check!r}, computed {found} after {previous}",
        )  # fmt: skip


def decode(row: Sequence[Any], previous: int) -> Any:
    """The record of ``row``, equal to the one that was encoded; raises JournalCorrupt."""
    check_link(row, previous)
    return restore(row)


def restore(row: Sequence[Any]) -> Any:
    """The record of a row that has passed :func:`check_link`; raises JournalCorrupt."""
    try:
        return _restore(row)
    # A damaged blob can make msgpack and the record's constructor fail in any way they know.
    except Exception as error:
        raise corrupt(
            row[CHANNEL], row[SEQUENCE], f"the record cannot be decoded: {error!r}"
        ) from error


def published_runs(runs: bytes) -> tuple[list[str], list[int], list[int]]:
    """The partitions, firsts and counts out of the packed runs of a Published row."""
    values = _unpack(runs)
    return values["partitions"], values["firsts"], values["counts"]


def _pack(value: Any) -> bytes:
    packed: bytes
    try:
        packed = msgpack.packb(value)
    except UnicodeEncodeError:
        # Headers come from anybody: a lone surrogate in one must not stop the journal. Rare, and
        # slower, since msgpack then encodes every text by way of a codec; so only then.
        packed = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def _unpack(blob: bytes) -> dict[str, Any]:
    value = msgpack.unpackb(blob, unicode_errors="surrogatepass", strict_map_key=False)
    if not isinstance(value, dict):
        raise ValueError(f"a map was expected, found {type(value).__name__}")
    return value


def _restore(row: Sequence[Any]) -> AnyRecord:
    plan = _PLANS.get(row[KIND])
    if plan is None:
        raise ValueError(f"unknown kind {row[KIND]!r}")
    values = _unpack(row[RUNS])
    if values.keys() != plan.stored:
        raise ValueError(f"wrong fields {sorted(values.keys() ^ plan.stored, key=str)}")
    if any(row[index] is not None for index in plan.absent):
        raise ValueError(f"a column is set that {row[KIND]} does not have")
    if (plan.has_entries or plan.has_bodies) != (row[BODIES] is not None):
        raise ValueError("bodies without entries, or entries without bodies")
    if plan.has_entries:
        values["entries"] = _join_entries(values, _unpack(row[BODIES]))
    elif plan.has_bodies:
        values |= _checked_bodies(_unpack(row[BODIES]))
    if plan.key_field is not None:
        values[plan.key_field] = _join_keys(values, plan.key_field)
    for name, index in plan.columns:
        values[name] = row[index]
    record = plan.record_type(**values)
    if message_count(record) != row[COUNT]:
        raise ValueError(f"count is {row[COUNT]}, the runs hold {message_count(record)}")
    return record


def _sequences(firsts: Sequence[int], counts: Sequence[int], dropped: Sequence[int]) -> list[int]:
    """The sequences of the messages kept, run after run; ``dropped`` are indexes into all."""
    used = list(chain.from_iterable(map(range, firsts, map(add, firsts, counts))))
    if not dropped:
        return used
    kept = bytearray(b"\1") * len(used)
    for index in dropped:
        kept[index] = 0
    return list(compress(used, kept))


def _split_entries(record: Any, runs: dict[str, Any]) -> dict[str, Any]:
    # The columns of the wire, if nothing was dropped from them, have been checked there.
    columns = record.columns or columns_of(record.entries)
    if record.columns is None and list(columns.sequences) != _sequences(
        record.firsts, record.counts, record.dropped
    ):
        raise ValueError("the entries are not those that firsts, counts and dropped describe")
    runs["timestamps"] = columns.timestamps
    runs["priorities"] = columns.priorities
    runs["extras"] = columns.extras
    return {"formats": columns.formats, "bodies": columns.bodies}


def _join_entries(values: dict[str, Any], packed: dict[str, Any]) -> list[Any]:
    timestamps, priorities, extras = (values.pop(name) for name in _ENTRY_COLUMNS)
    formats, bodies = packed["formats"], packed["bodies"]
    sequences = _sequences(values["firsts"], values["counts"], values["dropped"])
    if not len(values["partitions"]) == len(values["firsts"]) == len(values["counts"]):
        raise ValueError("the runs are not parallel")
    for column in (timestamps, priorities, formats, bodies, extras):
        if isinstance(column, list) and len(column) != len(sequences):
            raise ValueError(f"{len(sequences)} messages, but a column has {len(column)}")
    return make_entries(sequences, bodies, timestamps, priorities, formats, extras)


def _checked_bodies(values: dict[str, Any]) -> dict[str, Any]:
    formats, bodies = (values[name] for name in _BODY_FIELDS)
    if not isinstance(formats, int) and len(formats) != len(bodies):
        raise ValueError(f"{len(bodies)} bodies, but {len(formats)} formats")
    return values


def _split_keys(value: Any, key_field: str, runs: dict[str, Any]) -> None:
    keys: Iterable[PartitionKey] = value if key_field == "keys" else (value,)
    publishers, runs["partitions"] = tuple(zip(*keys)) or ((), ())
    # Mostly they are all the same one, which is then written once.
    same = publishers and publishers.count(publishers[0]) == len(publishers)
    runs["publishers"] = publishers[0] if same else publishers


def _join_keys(values: dict[str, Any], key_field: str) -> Any:
    publishers, partitions = (values.pop(name) for name in _KEY_COLUMNS)
    if isinstance(publishers, str):
        publishers = [publishers] * len(partitions)
    if len(publishers) != len(partitions):
        raise ValueError("publishers and partitions are not parallel")
    # tuple.__new__ makes the keys in C; the class's own constructor would be a call in Python each.
    keys = list(map(tuple.__new__, repeat(PartitionKey), zip(publishers, partitions)))
    if key_field == "keys":
        return keys
    (key,) = keys
    return key
