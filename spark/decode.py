"""Rows of a journal -> Arrow batches. Pure: no store, no Spark session.

Costs are per record: what is done per run or per message is done in C, by msgpack, ``sorted``,
``zip`` and Arrow, and a batch is built column by column. A row that is damaged is not refused, as
a broker would: it is handed on with ``intact`` false and what cannot be read of it missing, since
to find it is what an audit is for.
"""

from __future__ import annotations

import gc
import json
from contextlib import contextmanager
from itertools import accumulate
from operator import itemgetter
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence
from zlib import crc32

import msgpack  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]

from broker.journal import codec
from spark import schema

#: Records per Arrow batch: long enough to spread its costs, short enough to stay small.
BATCH_RECORDS = 1_000
#: A batch ends earlier when the bodies in it, if they were asked for, take so many bytes.
BATCH_BYTES = 16 * 1024 * 1024
#: How many checksums may stand for a damaged record; see Chain.
LINKS_MAX = 3

Row = Sequence[Any]
Values = dict[str, Any]

_HEAD = codec.COLUMNS[: codec.CHECKSUM]
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Chain:
    """Follows the checksums of a channel from row to row.

    ``known`` are checksums that are known from elsewhere, by sequence: the one before the first
    record, and that of the store's base. After a row that does not fit, either its checksum is
    damaged or the rest of it; the next row may continue the checksum that is stored or the one
    that is computed, so damage to one row is never blamed on the next.
    """

    def __init__(self, known: Mapping[int, int]) -> None:
        self._known = known
        self._links: tuple[int, ...] = ()
        self._expected: int | None = None

    def check(self, row: Row) -> bool | None:
        """Whether a row continues the one before it; None when that one is not known."""
        sequence, stored = row[codec.SEQUENCE], row[codec.CHECKSUM]
        links = self._links
        if sequence != self._expected:
            before = self._known.get(sequence - 1)
            links = () if before is None else (before,)
        self._expected, self._links = sequence + 1, (stored,)
        computed: list[int] = []
        for link in links:
            try:
                head = row[: codec.CHECKSUM]
                found = codec.checksum(link, head, row[codec.RUNS], row[codec.BODIES])
            except Exception:  # a column of a wrong type
                continue
            if found == stored:
                return True
            computed.append(found)
        if not links:
            return None
        self._links = (stored, *computed)[:LINKS_MAX]
        return False


class _Gathered(NamedTuple):
    """The rows of one batch: their columns up to the checksum, ``intact``, what is packed."""

    heads: list[Row]
    intact: list[bool | None]
    unpacked: list[Values]


class Decoder:
    """Makes batches of the columns that were asked for out of rows in journal order."""

    def __init__(self, columns: tuple[str, ...], verify: bool) -> None:
        self._columns = columns
        self._schema = schema.arrow(columns)
        #: Whether the rows are compared with their checksums.
        self.verifies = verify and "intact" in columns
        wanted = set(columns)
        self._packed = [name for name in columns if name not in (*_HEAD, "intact")]
        self._has_offsets = "offsets" in wanted
        self._has_spans = bool(wanted & {"oldest", "newest", "rising"})
        self._has_ids = "ids" in wanted
        self._has_headers = "headers" in wanted
        self._has_bodies = "bodies" in wanted
        self._has_contents = bool(wanted & {"bodies_crc", "formats", "bodies"})

    @property
    def needs_bodies(self) -> bool:
        """Whether the rows must come with their bodies."""
        return self.verifies or self._has_contents

    def batches(
        self, rows: Iterable[Row], chain: Chain, first: int = 1
    ) -> Iterator[pa.RecordBatch]:
        """Batches of the rows; those before ``first`` are there for the chain only."""
        source = iter(rows)
        while True:
            with _collector_paused():
                gathered = self._gather(source, chain, first)
                batch = self._batch(gathered) if gathered.heads else None
            if batch is None:
                return
            yield batch

    def _gather(self, source: Iterator[Row], chain: Chain, first: int) -> _Gathered:
        """The next rows, decoded; no more of them than may be in memory at a time."""
        heads, intact, unpacked = gathered = _Gathered([], [], [])
        size = 0
        for row in source:
            fits = chain.check(row) if self.verifies else None
            if row[codec.SEQUENCE] < first:
                continue
            values = self._values(row)
            heads.append(row[: codec.CHECKSUM])
            intact.append(False if values is _UNREADABLE else fits)
            unpacked.append(values)
            if self._has_bodies:
                size += len(row[codec.BODIES] or b"")
            if len(heads) >= BATCH_RECORDS or size >= BATCH_BYTES:
                break
        return gathered

    def _batch(self, gathered: _Gathered) -> pa.RecordBatch:
        heads, intact, unpacked = gathered
        columns: dict[str, Sequence[Any]] = dict(zip(_HEAD, zip(*heads)))
        columns.update(_transposed(unpacked, self._packed))
        arrays = {
            name: _column(columns[name], schema.BY_NAME[name].arrow, intact)
            for name in self._columns
            if name != "intact"
        }
        arrays["intact"] = pa.array(intact, type=pa.bool_())  # last: the others may add to it
        return pa.RecordBatch.from_arrays(
            [arrays[name] for name in self._columns], schema=self._schema
        )

    def _values(self, row: Row) -> Values:
        """What is packed in a row, under the names of the columns."""
        try:
            values = _unpacked(row[codec.RUNS])
            if isinstance(values.get("publishers"), str):
                values["publishers"] = [values["publishers"]]
            kind = row[codec.KIND]
            if kind == "Published":
                self._add_messages(row, values)
                self._add_contents(row, values)
            elif kind == "Put":
                self._add_contents(row, values)
            elif kind == "Redriven":
                # Here it is a flag; of Published it is the indexes of messages.
                values["given_up"] = values.pop("dropped")
            elif kind in ("ChannelCreated", "TopicCreated"):
                values["policy"] = json.dumps(values["policy"], sort_keys=True)
            if self._has_offsets and kind in ("Published", "Delivered"):
                values["offsets"] = [0, *accumulate(values["counts"])][:-1]
        except Exception:  # a damaged blob can fail in any way that msgpack and Python know
            return _UNREADABLE
        return values

    def _add_messages(self, row: Row, values: Values) -> None:
        counts, dropped, timestamps = values["counts"], values["dropped"], values["timestamps"]
        kept = values["kept"] = _kept(counts, dropped) if dropped else None
        if self._has_spans:
            values["oldest"], values["newest"], values["rising"] = _spans(
                timestamps, kept or counts
            )
        values["timestamps"] = _listed(timestamps)
        extras, values["ids"] = values["extras"], None  # the flag of that name is no column
        if extras is not None:
            if self._has_ids:
                values["ids"] = [item.get("id") if item else None for item in extras]
            if self._has_headers:
                values["headers"] = [_headers(item) for item in extras]

    def _add_contents(self, row: Row, values: Values) -> None:
        if self._has_contents:
            contents = _unpacked(row[codec.BODIES])
            values["formats"] = _listed(contents["formats"])
            values["bodies_crc"] = crc32(b"".join(contents["bodies"]))
            if self._has_bodies:
                values["bodies"] = contents["bodies"]


#: Stands for the values of a row whose blobs cannot be read.
_UNREADABLE: Values = {}


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Decoding makes thousands of lists and no cycles: to look for these would double its cost."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _transposed(unpacked: list[Values], names: Iterable[str]) -> dict[str, list[Any]]:
    """Columns out of rows. Most rows have few of the names, so it is the rows that are walked."""
    columns: dict[str, list[Any]] = {name: [None] * len(unpacked) for name in names}
    for index, values in enumerate(unpacked):
        for name, value in values.items():
            if name in columns:
                columns[name][index] = value
    return columns


def _column(values: Sequence[Any], kind: pa.DataType, intact: list[bool | None]) -> pa.Array:
    """The values as an array; a value of a type that nobody writes makes its row not intact."""
    try:
        return pa.array(values, type=kind)
    except _UNFIT:
        return pa.array(
            [_fitting(value, kind, intact, index) for index, value in enumerate(values)], type=kind
        )


def _fitting(value: Any, kind: pa.DataType, intact: list[bool | None], index: int) -> Any:
    try:
        pa.array([value], type=kind)
    except _UNFIT:
        intact[index] = False
        return None
    return value


def _unpacked(blob: bytes) -> Values:
    # Text that a strict reader refuses is of no use to Spark either.
    found = msgpack.unpackb(blob, unicode_errors="replace", strict_map_key=False)
    if not isinstance(found, dict):
        raise ValueError(f"a map was expected, found {type(found).__name__}")
    return found


def _headers(extras: Values | None) -> str | None:
    return json.dumps(extras["headers"]) if extras and "headers" in extras else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _spans(
    timestamps: Any, counts: list[int]
) -> tuple[list[int | None], list[int | None], list[bool]]:
    """Per run the lowest and the highest timestamp, and whether they never fall.

    ``counts`` are the messages of each run that are kept; of none there is no timestamp.

    >>> _spans([5, 3, 4], [2, 0, 1])
    ([3, None, 4], [5, None, 4], [False, True, True])
    """
    all_rise = [True] * len(counts)
    if not isinstance(timestamps, list):
        same = [timestamps if count else None for count in counts]
        return same, same, all_rise
    if len(timestamps) != sum(counts):
        raise ValueError("the timestamps are not those of the messages")
    ends = list(accumulate(counts))
    if timestamps and 0 not in counts and sorted(timestamps) == timestamps:
        # The index 0 at the end makes itemgetter give a tuple for a single run, too.
        pick: Callable[[list[int]], Any] = itemgetter(*[end - 1 for end in ends], 0)
        first: Callable[[list[int]], Any] = itemgetter(0, *ends[:-1], 0)
        return list(first(timestamps))[:-1], list(pick(timestamps))[:-1], all_rise
    runs = [timestamps[end - count : end] for end, count in zip(ends, counts)]
    return (
        [min(run, default=None) for run in runs],
        [max(run, default=None) for run in runs],
        [sorted(run) == run for run in runs],
    )


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
