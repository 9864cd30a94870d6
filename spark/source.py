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

What a stream has read is an offset
per channel, kept in its checkpoint, so it goes on after a restart where it was.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from broker.errors import JournalError
from spark import scan, schema
from spark.decode import Decoder

RANGE_RECORDS = 20_000
RECORDS_PER_BATCH_MAX = 1_000_000

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
        return _partitions(scan.ranges(found, {}, options.upto, options.range_records))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one stretch."""
        assert isinstance(partition, StretchPartition)
        return _read(self._options, partition.stretch)


class JournalStreamReader(DataSourceStreamReader):
    """What has come since the last offset, {channel: sequence}."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, int]:
        """Where a query without a checkpoint starts."""
        if not self._options.from_latest:
            return {}
        return self._ends()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        """How far the next batch goes; bounded, so that a first batch is not the whole past."""
        ends = self._ends()
        start = start or {}
        most = self._options.records_per_batch_max
        bounded = {
            name: min(last, start.get(name, 0) + most)
            for name, last in ends.items()
        }
        # A channel that was deleted stays in the offset, so that offsets never go back.
        return {**start, **{name: max(end, start.get(name, 0)) for name, end in bounded.items()}}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One task per stretch between two offsets."""
        found = [
            scan.Extent(name, 1, last)
            for name, last in sorted(end.items())
            if last > start.get(name, 0)
        ]
        return _partitions(scan.ranges(found, start, end, self._options.range_records))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one stretch."""
        assert isinstance(partition, StretchPartition)
        return _read(self._options, partition.stretch)

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
    store, archive = given.get("store", given.get("path")), given.get("archive")
    if store is None and archive is None:
        raise ValueError("the source fairlead needs the option store, archive or both")
    return Options(
        scan.Place(store, archive),
        given.get("channel"),
        _columns(given.get("columns")),
        {str(name): int(last) for name, last in json.loads(given.get("upto", "{}")).items()},
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
    if unknown or not names:
        raise ValueError(
            f"a journal has no column {', '.join(unknown) or '(none given)'}; "
            f"it has {', '.join(schema.BY_NAME)}"
        )
    return names


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"the option {name} is true or false, not {text!r}")
    return text == "true"


def _positive(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"the option {name} is a number from 1 on, not {text!r}")
    return int(text)


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = given.get(name, choices[0])
    if text not in choices:
        raise ValueError(f"the option {name} is {' or '.join(choices)}, not {text!r}")
    return text


def _partitions(stretches: list[scan.Stretch]) -> list[StretchPartition]:
    return [StretchPartition(item) for item in stretches or [scan.Stretch("", 1, 0)]]


def _read(options: Options, stretch: scan.Stretch) -> Iterator[pa.RecordBatch]:
    if stretch.last < stretch.first:
        return
    decoder = Decoder(options.columns, options.verify)
    before = scan.checksum_before(options.place, stretch) if options.verify else None
    rows = scan.read(options.place, stretch, decoder.needs_bodies)
    try:
        yield from decoder.batches(rows, before)
    except JournalError as error:
        raise RuntimeError(str(error)) from error  # our own class may not exist on a Spark worker
