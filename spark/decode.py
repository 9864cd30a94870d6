"""Rows of a journal -> Arrow batches. Pure: no store, no Spark session.

Costs are per record: what is done per run or per message is done in C, by msgpack, ``sorted``,
``zip`` and Arrow. A row that is damaged is not refused, as a broker would: it is handed on with
``intact`` false and its arrays missing, since to find it is what an audit is for.
"""

from __future__ import annotations

import json
from itertools import accumulate
from operator import itemgetter
from typing import Any, Callable, Iterable, Iterator, Sequence
from zlib import crc32

import msgpack  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]

from broker.journal import codec
from spark import schema

#: Records per Arrow batch: long enough to spread its costs, short enough to stay small.
BATCH_RECORDS = 2_000

Values = dict[str, Any]

_HEAD = (
    ("channel", codec.CHANNEL), ("sequence", codec.SEQUENCE), ("kind", codec.KIND),
    ("at_ms", codec.AT_MS), ("publisher", codec.PUBLISHER), ("subscriber", codec.SUBSCRIBER),
    ("subscription", codec.SUBSCRIPTION), ("count", codec.COUNT),
)  # fmt: skip
_PLAIN = (
    "epoch", "position", "attempt", "not_before_ms", "size", "priority", "session", "reason",
    "scope", "boot", "partitions", "firsts", "counts", "sequences", "epochs", "attempts", "uptos",
    "positions", "late", "delays_ms", "delays",
)  # fmt: skip


class Decoder:
    """Makes batches of the columns that were asked for out of rows in journal order."""

    def __init__(self, columns: tuple[str, ...], verify: bool) -> None:
        self._schema = schema.arrow(columns)
        self._columns = columns
        self._verify = verify and "intact" in columns
        wanted = set(columns)
        self._head = [(name, index) for name, index in _HEAD if name in wanted]
        self._plain = [name for name in _PLAIN if name in wanted]
        self._spans = wanted & {"oldest", "newest", "rising"}
        self._extras = wanted & {"ids", "headers"}
        self._contents = wanted & {"bodies_crc", "formats", "bodies"}
        self._wanted = wanted

    @property
    def needs_bodies(self) -> bool:
        """Whether the rows must come with their bodies."""
        return self._verify or bool(self._contents)

    def batches(
        self, rows: Iterable[Sequence[Any]], previous: int | None
    ) -> Iterator[pa.RecordBatch]:
        """Batches of the rows; ``previous`` is the checksum before the first, None: not known."""
        gathered: list[Values] = []
        expected: int | None = None
        for row in rows:
            if expected is not None and row[codec.SEQUENCE] != expected:
                previous = None  # records are missing: what this one continues is not known
            gathered.append(self.values(row, previous))
            previous, expected = row[codec.CHECKSUM], row[codec.SEQUENCE] + 1
            if len(gathered) >= BATCH_RECORDS:
                yield self._batch(gathered)
                gathered = []
        if gathered:
            yield self._batch(gathered)

    def values(self, row: Sequence[Any], previous: int | None) -> Values:
        """The columns of one row; what it does not have is left out."""
        values: Values = {name: row[index] for name, index in self._head}
        if self._verify and previous is not None:
            values["intact"] = _continues(row, previous)
        try:
            self._unpack(row, values)
        except Exception:  # a damaged blob can fail in any way that msgpack and Python know
            values = {name: values[name] for name, _ in self._head}
            values["intact"] = False
        return values

    def _unpack(self, row: Sequence[Any], values: Values) -> None:
        runs = _unpacked(row[codec.RUNS])
        wanted = self._wanted
        for name in self._plain:
            if name in runs:
                values[name] = runs[name]
        if "publishers" in runs and "publishers" in wanted:
            values["publishers"] = _listed(runs["publishers"])
        if "policy" in runs and "policy" in wanted:
            values["policy"] = json.dumps(runs["policy"], sort_keys=True)
        if "dropped" in runs:
            # Of Redriven it is a flag, of Published the indexes of messages.
            dropped = runs["dropped"]
            values["given_up" if isinstance(dropped, bool) else "dropped"] = dropped
        if row[codec.KIND] in ("Published", "Delivered") and "offsets" in wanted:
            values["offsets"] = [0, *accumulate(runs["counts"])][:-1]
        if row[codec.KIND] == "Published":
            self._unpack_messages(row, runs, values)

    def _unpack_messages(self, row: Sequence[Any], runs: Values, values: Values) -> None:
        if "timestamps" in self._wanted:
            values["timestamps"] = _listed(runs["timestamps"])
        if runs["dropped"]:
            values["kept"] = _kept(runs["counts"], runs["dropped"])
        if self._spans:
            values["oldest"], values["newest"], values["rising"] = _spans(
                runs["timestamps"], runs["counts"], runs["dropped"]
            )
        if self._extras and runs["extras"] is not None:
            extras = [item or {} for item in runs["extras"]]
            values["ids"] = [item.get("id") for item in extras]
            if "headers" in self._wanted:
                values["headers"] = [
                    json.dumps(item["headers"]) if "headers" in item else None for item in extras
                ]
        if self._contents:
            contents = _unpacked(row[codec.BODIES])
            bodies = contents["bodies"]
            values["bodies"], values["formats"] = bodies, _listed(contents["formats"])
            values["bodies_crc"] = crc32(b"".join(bodies))

    def _batch(self, rows: list[Values]) -> pa.RecordBatch:
        try:
            return pa.RecordBatch.from_pylist(rows, schema=self._schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # One row has a value of a type that nobody writes; the others are fine.
            return pa.RecordBatch.from_pylist(
                [self._readable(row) for row in rows], schema=self._schema
            )

    def _readable(self, values: Values) -> Values:
        readable: Values = {}
        for name, value in values.items():
            if name not in self._wanted:
                continue
            try:
                pa.array([value], type=schema.BY_NAME[name].arrow)
                readable[name] = value
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                readable["intact"] = False
        return readable


def _continues(row: Sequence[Any], previous: int) -> bool:
    try:
        *head, check, runs, bodies = row
        return codec.checksum(previous, head, runs, bodies) == check
    except Exception:  # a column of a wrong type
        return False


def _unpacked(blob: bytes) -> Values:
    # Text that a strict reader refuses is of no use to Spark either.
    found: Values = msgpack.unpackb(blob, unicode_errors="replace", strict_map_key=False)
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _spans(
    timestamps: Any, counts: list[int], dropped: list[int]
) -> tuple[list[int | None], list[int | None], list[bool]]:
    """Per run the lowest and the highest timestamp, and whether they never fall."""
    if not isinstance(timestamps, list):
        return [timestamps] * len(counts), [timestamps] * len(counts), [True] * len(counts)
    if dropped:
        counts = _kept(counts, dropped)
    elif len(timestamps) != sum(counts):
        raise ValueError("the timestamps are not those of the messages")
    ends = list(accumulate(counts))
    if not dropped and sorted(timestamps) == timestamps:
        pick: Callable[[list[int]], Any] = itemgetter(*[end - 1 for end in ends], 0)
        first: Callable[[list[int]], Any] = itemgetter(0, *ends[:-1], 0)
        return list(first(timestamps))[:-1], list(pick(timestamps))[:-1], [True] * len(counts)
    oldest: list[int | None] = []
    newest: list[int | None] = []
    rising: list[bool] = []
    for end, count in zip(ends, counts):
        run = timestamps[end - count : end]
        oldest.append(min(run, default=None))
        newest.append(max(run, default=None))
        rising.append(sorted(run) == run)
    return oldest, newest, rising


def _kept(counts: list[int], dropped: list[int]) -> list[int]:
    """How many messages of each run are kept; ``dropped`` are indexes over the whole batch."""
    kept = list(counts)
    ends = list(accumulate(counts))
    run = 0
    for index in sorted(dropped):
        while index >= ends[run]:
            run += 1
        kept[run] -= 1
    return kept
