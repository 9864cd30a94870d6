"""The data source ``fairlead``: a journal as a Spark frame, in batch and as a stream.

    spark.read.format("fairlead").option("store", "fairlead.db").load()
    spark.readStream.format("fairlead").option("store", "fairlead.db").load()

Options (``load(path)`` is the same as the option ``store``):

- ``store``: the file of a journal; it may be in use by a broker;
- ``archive``: the folder that ``fairlead export`` wrote; one of the two is enough, and with both
  they are read as one journal;
- ``channel``: this channel only;
- ``columns``: names separated by commas, or ``all``; by default all but the contents of messages.
  Python sources cannot be told by Spark which columns a query uses, so this is how to save work;
- ``upto``: JSON, {channel: sequence}: where to stop; without it at the end as it is now;
- ``verify``: ``false`` leaves the checksums alone and the bodies unread; ``intact`` is NULL then;
- ``range_records``: how many records a task reads (default 20,000);
- ``starting``: ``earliest`` (default) or ``latest``, for a stream that has no checkpoint yet;
- ``records_per_batch_max``: for a stream, per channel (default 1,000,000).

What a stream has read is an offset per channel, kept in its checkpoint, so it goes on after a
restart where it was. A stream never skips a record: when one that it needs was trimmed from the
store and is in no archive that it was given, the query fails and says so. In a batch read a record
that is missing is just not there: its sequence is missing in the frame.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterator, Mapping, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from broker.errors import JournalError, JournalGap
from spark import scan, schema
from spark.decode import Chain, Decoder

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # before Spark 4.2 a Python source could not bound its batches
        ReadAllAvailable = ReadLimit = ReadMaxRows = SupportsTriggerAvailableNow = object

RANGE_RECORDS = 20_000
RECORDS_PER_BATCH_MAX = 1_000_000
#: How many records before a stretch are read to know what its first one continues: the one before
#: it, and one more to tell whether that one is damaged itself.
LEAD_RECORDS = 2

#: What a batch read of an empty journal is given: Spark wants one partition at least.
_NOTHING = scan.Stretch("", 1, 0)

_KNOWN = {
    "path", "store", "archive", "channel", "columns", "upto", "verify", "range_records",
    "starting", "records_per_batch_max",
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What was asked for, checked."""

    place: scan.Place
    channel: str | None
    columns: tuple[str, ...]
    upto: dict[str, int]
    verify: bool
    range_records: int
    from_latest: bool
    records_per_batch_max: int


class FairleadSource(DataSource):
    """Registered under the name ``fairlead``; see the module for its options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = parse(options)

    @classmethod
    def name(cls) -> str:
        """What stands in ``format(...)``."""
        return "fairlead"

    def schema(self) -> StructType:
        """The columns that were asked for."""
        return schema.struct(self._options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of all that there is."""
        return JournalReader(self._options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of what comes."""
        return JournalStreamReader(self._options)


class StretchPartition(InputPartition):
    """One task: a stretch of one channel."""

    def __init__(self, stretch: scan.Stretch) -> None:
        super().__init__(stretch)
        self.stretch = stretch


class JournalReader(DataSourceReader):
    """All records up to the end as it is when the query is planned."""

    # No pushFilters: Spark 4.3 keeps a reader with the filters of one query for the next query over
    # the same frame, which then misses rows. The options ``channel`` and ``upto`` narrow instead.

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One task per stretch; at least one, since Spark wants one."""
        options = self._options
        found = scan.extents(options.place, options.channel)
        stretches = scan.ranges(found, {}, options.upto, options.range_records)
        return [StretchPartition(item) for item in stretches or [_NOTHING]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one stretch."""
        assert isinstance(partition, StretchPartition)
        return _read(self._options, partition.stretch, may_miss=True)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What has come since the last offset, {channel: sequence}."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._final: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        """Where a query without a checkpoint starts."""
        return self._ends() if self._options.from_latest else {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Of each channel, so that a first batch is not the whole past."""
        return ReadMaxRows(self._options.records_per_batch_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Called when the query is to end where the journal ends now."""
        self._final = self._ends()

    def latestOffset(
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """How far the next batch goes. A Spark before 4.2 gives neither start nor limit."""
        ends = self._ends() if self._final is None else self._final
        if start is None:
            return ends
        for name, last in ends.items():
            if last < start.get(name, 0):
                raise _went_back(name, last, start[name])
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            most = self._options.records_per_batch_max
            ends = {name: min(last, start.get(name, 0) + most) for name, last in ends.items()}
        # The order stays, since Spark compares offsets as text; and so does a deleted channel.
        return {**start, **ends}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One task per stretch between two offsets."""
        found = [
            scan.Extent(name, 1, last)
            for name, last in sorted(end.items())
            if last > start.get(name, 0)
        ]
        stretches = scan.ranges(found, start, end, self._options.range_records)
        return [StretchPartition(item) for item in stretches]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one stretch; fails when a record of it is missing."""
        assert isinstance(partition, StretchPartition)
        return _read(self._options, partition.stretch, may_miss=False)

    def _ends(self) -> dict[str, int]:
        found = scan.extents(self._options.place, self._options.channel)
        return {extent.channel: extent.last for extent in found}


def parse(options: Mapping[str, str]) -> Options:
    """The options of a frame, or a ValueError that says which one is wrong and what it may be."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(given.keys() - _KNOWN)
    if unknown:
        raise ValueError(
            f"the source fairlead has no option {', '.join(unknown)}; "
            f"it has {', '.join(sorted(_KNOWN - {'path'}))}"
        )
    if given.get("store", given.get("path")) != given.get("path", given.get("store")):
        raise ValueError("load(path) is the option store, and both are given: leave one out")
    store, archive = given.get("store", given.get("path")), given.get("archive")
    if not store and not archive:
        raise ValueError("the source fairlead needs the option store, archive or both")
    return Options(
        scan.Place(store, archive),
        given.get("channel"),
        _columns(given.get("columns")),
        _upto(given.get("upto", "{}")),
        _flag(given, "verify", True),
        _positive(given, "range_records", RANGE_RECORDS),
        _choice(given, "starting", ("earliest", "latest")) == "latest",
        _positive(given, "records_per_batch_max", RECORDS_PER_BATCH_MAX),
    )


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return schema.DEFAULT
    if text.strip() == "all":
        return tuple(schema.BY_NAME)
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in schema.BY_NAME]
    if len(set(names)) < len(names):
        raise ValueError(f"the option columns names a column twice: {text}")
    if unknown or not names:
        raise ValueError(
            f"a journal has no column {', '.join(unknown) or '(none given)'}; "
            f"it has {', '.join(schema.BY_NAME)}"
        )
    return names


def _upto(text: str) -> dict[str, int]:
    try:
        upto = json.loads(text)
    except ValueError:
        upto = None
    if not isinstance(upto, dict) or {type(last) for last in upto.values()} - {int}:
        raise ValueError(
            f'the option upto is JSON like {{"orders": 120}}, a sequence per channel, not {text!r}'
        )
    return upto


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"the option {name} is true or false, not {text!r}")
    return text == "true"


def _positive(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"the option {name} is a number from 1 on, not {text!r}")
    return int(text)


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = given.get(name, choices[0])
    if text not in choices:
        raise ValueError(f"the option {name} is {' or '.join(choices)}, not {text!r}")
    return text


def _went_back(channel: str, last: int, read: int) -> JournalGap:
    return JournalGap(
        f"channel {channel!r} ends at journal record {last}, but the query has read up to {read}: "
        "the channel was deleted and made anew, or the store is an older copy. Start the query "
        "with a new checkpoint",
        channel=channel, sequence=last + 1,
    )  # fmt: skip


def _read(
    options: Options, stretch: scan.Stretch, may_miss: bool
) -> Iterator[pa.RecordBatch]:
    if stretch == _NOTHING:
        return
    place, first = options.place, stretch.first
    decoder = Decoder(options.columns, options.verify)
    try:
        chain = Chain({})
        if decoder.verifies:
            chain = Chain(scan.known_checksums(place, stretch.channel))
            stretch = stretch._replace(first=max(1, first - LEAD_RECORDS))
        if may_miss:
            rows = scan.read(place, stretch, decoder.needs_bodies)
        else:
            rows = scan.read_whole(place, stretch, first, decoder.needs_bodies)
        yield from decoder.batches(rows, chain, first)
    except JournalError as error:
        raise RuntimeError(str(error)) from error  # our own class may not exist on a Spark worker
