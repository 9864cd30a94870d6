"""The data source as a stream: every record once, in batches, through restarts and trims."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Iterator

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from broker.core.records import Record
from broker.errors import JournalGap
from broker.journal.archive import export_channel
from broker.journal.sqlite import SqliteJournal
from spark.source import FairleadSource, JournalStreamReader
from tests.processes import poll
from tests.spark.test_source import (
    Life,
    Values,
    damaged,
    expected_journal,
    published,
    rows_of,
    write,
)

WAIT_S = 60.0


class Sink:
    """Takes the batches of queries that follow each other, and remembers them."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, int]]] = []

    def take(self, batch: DataFrame, number: int) -> None:
        rows = batch.select("channel", "sequence").collect()
        self.batches.append([(row.channel, row.sequence) for row in rows])

    @property
    def rows(self) -> Counter[tuple[str, int]]:
        """How often each record came."""
        return Counter(row for batch in self.batches for row in batch)


def every_one(**ends: int) -> Counter[tuple[str, int]]:
    """Each record of the channels up to these ends, once."""
    return Counter((name, number) for name, end in ends.items() for number in range(1, end + 1))


class Stream:
    """A query with a checkpoint, that can be started again and again."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self.sink = Sink()
        self.query: StreamingQuery | None = None

    def start(self, ends: bool = False, **options: object) -> StreamingQuery:
        """Start it, to run on or to end where the journal ends now."""
        reader = self._spark.readStream.format("fairlead").option("columns", "channel,sequence")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        writer = reader.load().writeStream.foreachBatch(self.sink.take)
        trigger: Any = {"availableNow": True} if ends else {"processingTime": "0 seconds"}
        writer = writer.trigger(**trigger).option("checkpointLocation", str(self._folder))
        self.query = writer.start()
        return self.query

    def run(self, **options: object) -> None:
        """Read what there is, and end."""
        query = self.start(ends=True, **options)
        assert query.awaitTermination(int(WAIT_S)), "the query does not end"

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Iterator[Stream]:
    setting = "spark.sql.codegen.wholeStage"  # to compile takes longer than such small batches
    before = spark.conf.get(setting)
    spark.conf.set(setting, "false")
    made = Stream(spark, tmp_path / "checkpoint")
    yield made
    made.stop()
    spark.conf.set(setting, str(before))


def records(count: int) -> list[Record]:
    return [published([("x", 1, 1)], 5) for _ in range(count)]


def reader_of(**options: object) -> JournalStreamReader:
    source = FairleadSource({name: str(value) for name, value in options.items()})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, JournalStreamReader)
    return reader


# --- through Spark


def test_records_arrive_as_they_are_appended_and_new_channels_too(
    stream: Stream, tmp_path: Path
) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.wait_durable("orders", journal.append("orders", 1, records(5)), timeout=WAIT_S)
    query = stream.start(store=path)
    poll(lambda: len(stream.sink.rows) >= 5, WAIT_S, "what was there before")
    journal.append("orders", 6, records(3))
    poll(lambda: len(stream.sink.rows) >= 8, WAIT_S, "what came later")
    # This name sorts before the first one.
    journal.wait_durable("added", journal.append("added", 1, records(4)), timeout=WAIT_S)
    query.processAllAvailable()
    assert stream.sink.rows == every_one(orders=8, added=4)
    journal.close()


def test_a_query_goes_on_where_it_was_stopped(stream: Stream, tmp_path: Path) -> None:
    path = write(tmp_path / "journal.db", orders=records(10), other=records(3))
    stream.run(store=path)
    assert stream.sink.rows == every_one(orders=10, other=3)
    stream.run(store=path)
    assert len(stream.sink.rows) == 13, "nothing was new"
    journal = SqliteJournal(path)
    journal.append("orders", 11, records(5))
    journal.close()
    stream.run(store=path)
    assert stream.sink.rows == every_one(orders=15, other=3)


def test_a_query_goes_on_after_what_it_has_not_read_was_trimmed(
    stream: Stream, tmp_path: Path
) -> None:
    path, archive = tmp_path / "journal.db", tmp_path / "archive"
    archive.mkdir()
    life = Life().live(30)
    journal = SqliteJournal(path)
    life.append(journal)
    journal.close()
    stream.run(store=path, archive=archive)
    begun = len(life.records)
    assert stream.sink.rows == every_one(orders=begun)
    journal = SqliteJournal(path)
    life.live(30).append(journal)
    journal.close()
    assert export_channel(path, archive, "orders", trim=True).base > begun + 10
    stream.run(store=path, archive=archive)
    assert stream.sink.rows == every_one(orders=len(life.records))


def test_a_query_fails_when_a_record_that_it_needs_was_trimmed(
    stream: Stream, tmp_path: Path
) -> None:
    path, archive = tmp_path / "journal.db", tmp_path / "archive"
    write(path, orders=Life().live(30).records)
    export_channel(path, archive, "orders", trim=True)
    with pytest.raises(StreamingQueryException, match="give the option archive"):
        stream.run(store=path)
    assert not stream.sink.rows
    stream.run(store=path, archive=archive)  # the advice is good
    assert len(stream.sink.rows) >= 30


def test_batches_are_bounded_also_in_a_query_that_ends(stream: Stream, tmp_path: Path) -> None:
    path = write(tmp_path / "journal.db", orders=records(10), other=records(3))
    stream.run(store=path, records_per_batch_max=4)
    assert stream.sink.rows == every_one(orders=10, other=3)
    assert [len(batch) for batch in stream.sink.batches] == [7, 4, 2]
    journal = SqliteJournal(path)
    journal.append("orders", 11, records(6))
    journal.close()
    # The checkpoint is further than one batch from the beginning by now.
    stream.run(store=path, records_per_batch_max=4)
    assert stream.sink.rows == every_one(orders=16, other=3)
    assert [len(batch) for batch in stream.sink.batches[3:]] == [4, 2]


def test_starting_at_the_latest_leaves_the_past_out(stream: Stream, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.wait_durable("orders", journal.append("orders", 1, records(5)), timeout=WAIT_S)
    query = stream.start(store=path, starting="latest")
    # Its start is in the checkpoint once it has begun; what comes then is new.
    query.processAllAvailable()
    journal.append("orders", 6, records(2))
    journal.wait_durable("added", journal.append("added", 1, records(2)), timeout=WAIT_S)
    query.processAllAvailable()
    assert stream.sink.rows == every_one(orders=7, added=2) - every_one(orders=5)
    journal.close()


def test_a_parquet_sink_gets_whole_rows(spark: SparkSession, tmp_path: Path) -> None:
    life = Life().live(40)
    path = write(tmp_path / "journal.db", orders=life.records)
    rows = spark.readStream.format("fairlead").option("range_records", 15).load(str(path))
    writer = rows.writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start(str(tmp_path / "out"))
    assert query.awaitTermination(int(WAIT_S))
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("sequence")
    whole = expected_journal(orders=life.records)
    assert [row.asDict() for row in found.collect()] == [
        {name: row[name] for name in rows.columns} for row in whole
    ]


# --- the reader alone, in the steps that Spark takes


def read(reader: JournalStreamReader, start: Any, end: Any) -> list[Values]:
    return rows_of(reader, reader.partitions(start, end))


def test_nothing_new_is_the_same_offset_and_no_task(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.db", orders=records(3), added=records(2))
    reader = reader_of(store=path)
    offset = {"orders": 3, "added": 2}
    # Spark compares the text.
    assert list(reader.latestOffset(offset, reader.getDefaultReadLimit()).items()) == [
        ("orders", 3), ("added", 2),
    ]  # fmt: skip
    assert reader.partitions(offset, offset) == []


def test_a_spark_that_gives_no_start_gets_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.db", orders=records(9))
    assert reader_of(store=path, records_per_batch_max=2).latestOffset() == {"orders": 9}


def test_an_offset_moves_by_no_more_than_a_batch(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.db", orders=records(9), other=records(2))
    reader = reader_of(store=path, records_per_batch_max=4)
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset({}, limit) == {"orders": 4, "other": 2}
    assert reader.latestOffset({"orders": 4, "other": 2}, limit) == {"orders": 8, "other": 2}
    assert reader.latestOffset({"orders": 8, "other": 2}, limit) == {"orders": 9, "other": 2}


def test_a_query_that_ends_does_not_follow_what_comes_meanwhile(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.db", orders=records(5))
    reader = reader_of(store=path)
    reader.prepareForTriggerAvailableNow()
    journal = SqliteJournal(path)
    journal.append("orders", 6, records(5))
    journal.append("added", 1, records(5))
    journal.close()
    assert reader.latestOffset({}, reader.getDefaultReadLimit()) == {"orders": 5}


def test_a_deleted_channel_stays_in_the_offset(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.db", orders=records(3))
    offset = reader_of(store=path).latestOffset({"gone": 7}, None)
    assert offset == {"gone": 7, "orders": 3}


def test_a_channel_that_was_made_anew_is_an_error(tmp_path: Path) -> None:
    """Its first records would never be read: their sequences are below the offset."""
    path = write(tmp_path / "journal.db", orders=records(3))
    with pytest.raises(JournalGap, match="ends at journal record 3, but .* read up to 7"):
        reader_of(store=path).latestOffset({"orders": 7}, None)


def test_a_stream_is_verified_across_its_offsets(tmp_path: Path) -> None:
    life = Life().live(30)
    path = write(tmp_path / "journal.db", orders=life.records)
    reader = reader_of(store=path, columns="all", range_records=4)
    rows = read(reader, {"orders": 5}, {"orders": 20})
    assert rows == expected_journal(orders=life.records)[5:20]


@pytest.mark.parametrize("size", [1, 6, 1_000])
@pytest.mark.parametrize("gone", [1, 6, 7, 20])
def test_a_missing_record_in_a_stream_is_an_error(tmp_path: Path, gone: int, size: int) -> None:
    path = write(tmp_path / "journal.db", orders=records(20))
    path = damaged(path, tmp_path / "b.db", f"DELETE FROM records WHERE sequence = {gone}")
    reader = reader_of(store=path, range_records=size)
    with pytest.raises(RuntimeError, match=f"journal record {gone} is not in the store"):
        read(reader, {}, {"orders": 20})
    # Those around it can be read, and so can they when it is not asked for.
    assert len(read(reader, {"orders": gone}, {"orders": 20})) == 20 - gone
    assert len(read(reader, {}, {"orders": gone - 1})) == gone - 1


def test_records_that_are_in_no_archive_either_are_an_error(tmp_path: Path) -> None:
    path, archive = tmp_path / "journal.db", tmp_path / "archive"
    write(path, orders=Life().live(30).records)
    done = export_channel(path, archive, "orders", trim=True)
    shutil.rmtree(archive / "channel=orders")
    reader = reader_of(store=path, archive=archive)
    with pytest.raises(RuntimeError, match=f"records 3 to {done.base} are in none of the store"):
        read(reader, {"orders": 2}, {"orders": done.head})


def test_a_trim_between_planning_and_reading_is_made_up_from_the_archive(tmp_path: Path) -> None:
    path, archive = tmp_path / "journal.db", tmp_path / "archive"
    archive.mkdir()
    life = Life().live(30)
    write(path, orders=life.records)
    reader = reader_of(store=path, archive=archive, columns="all", range_records=8)
    end = {"orders": len(life.records)}
    tasks = reader.partitions({"orders": 3}, end)
    assert export_channel(path, archive, "orders", trim=True).base > 20
    assert rows_of(reader, tasks) == expected_journal(orders=life.records)[3:]
