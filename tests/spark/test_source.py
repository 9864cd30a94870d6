"""The data source in batch reads: what was written is what the frame has, whole or damaged.

What Spark adds is the transport; so most is asked of the reader itself, the way a Spark task would
call it, and once more through Spark where Spark could make a difference.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any, Iterable, Iterator
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from broker.core.message import PartitionKey, make_entries
from broker.core.records import (
    RECORD_TYPES,
    Acked,
    BrokerStarted,
    ChannelCreated,
    Delivered,
    DuplicatesDropped,
    Nacked,
    Parked,
    Published,
    PublisherOpened,
    QueuesKilled,
    QueuesRestored,
    Reassigned,
    Recalled,
    Record,
    Redriven,
    Resumed,
    Slowed,
    StaleAcked,
    Subscribed,
    SubscriberLeft,
    SubscriptionCreated,
    SubscriptionDeleted,
    message_count,
)
from broker.core.topics import records as topics
from broker.errors import JournalError
from broker.journal import archive as archives
from broker.journal import codec
from broker.journal.archive import export_channel
from broker.journal.sqlite import SqliteJournal
from spark import scan, schema
from spark.decode import Chain, Decoder
from spark.source import FairleadSource, parse
from tests.builders import Driven
from tests.processes import ROOT, environment, poll

ALL = tuple(schema.BY_NAME)
WAIT_S = 60.0

Values = dict[str, Any]


# --- journals


def published(
    runs: list[tuple[str, int, int]],
    timestamps: list[int] | int,
    dropped: Iterable[int] = (),
    priorities: list[int] | None = None,
    extras: list[Values | None] | None = None,
    formats: list[int] | int = 0,
) -> Published:
    """Runs are (partition, first, count); the other columns are of the messages that are kept."""
    used = [first + i for _, first, count in runs for i in range(count)]
    gone = sorted(dropped)
    sequences = [sequence for index, sequence in enumerate(used) if index not in gone]
    bodies = [b"body %d" % sequence for sequence in sequences]
    entries = make_entries(sequences, bodies, timestamps, priorities, formats, extras)
    return Published(
        7, "billing", 3, [run[0] for run in runs], [run[1] for run in runs],
        [run[2] for run in runs], gone, sum(map(len, bodies)), max(priorities or [0]),
        any(item and "id" in item for item in extras or ()), entries,
    )  # fmt: skip


def keys(*pairs: str) -> list[PartitionKey]:
    return [PartitionKey(*pair.split("/")) for pair in pairs]


def every_kind(channel: str) -> list[Record]:
    """Records of every durable kind, in the forms that their fields can take."""
    one, many = keys("a/x", "a/y"), keys("a/x", "b/x", "a/z")
    return [
        ChannelCreated(1, channel, {"prefetch": 10, "poison": "park", "ratio": 0.5}),
        BrokerStarted(2, "boot-1"),
        SubscriptionCreated(3, "default"),
        PublisherOpened(4, "billing", 3),
        Subscribed(5, "default", "w", "w-1", 50, "PYRO:w@127.0.0.1:1", True),
        Subscribed(5, "default", "pulls", "pulls-1", 1, "", False),
        Resumed(6, "default", "w", "w-1", "PYRO:w@127.0.0.1:2"),
        published([("x", 1, 2)], 5_000),
        published([("x", 3, 2), ("y", 1, 3)], [5, 6, 7, 7, 9], priorities=[0, 9, 0, 1, 0]),
        published([("x", 5, 3), ("y", 4, 1)], [9, 8, 7, 6], formats=[0, 1, 2, 0]),
        published([("x", 8, 2), ("y", 5, 2), ("z", 1, 2)], [4, 3, 5], dropped=[1, 2, 3]),
        published([("x", 10, 2), ("y", 7, 1)], 4, dropped=[2]),
        published([("x", 12, 2)], [], dropped=[0, 1]),
        published([("x", 14, 0), ("y", 8, 2), ("z", 3, 0)], [1, 2]),
        published([], []),
        published(
            [("x", 14, 3)], [1, 2, 3],
            extras=[{"id": "i-1", "headers": {"é": "ü"}}, None, {"headers": {}}],
        ),
        DuplicatesDropped(7, "billing", ["x", "y"], [1, 1], [2, 3]),
        Delivered(8, "default", "w", one, [1, 1], [1, 1], [2, 3], [1, 2], [1, 1], []),
        Delivered(8, "default", "w", many, [3, 1, 1], [3, 1, 1], [1, 2, 2], [3, 4, 5], [1, 2, 1],
                  [0, 4]),
        Acked(9, "default", "w", many, [3, 1, 1], [1, 2, 2], [3, 4, 5], [[0, 3, 250], [2, 1, 9]]),
        Acked(9, "default", "w", [], [], [], [], []),
        StaleAcked(10, "default", "w", [1, 2], [5, 6]),
        Nacked(11, "default", "w", PartitionKey("a", "x"), 4, 3, 2, 99, "handler failed"),
        Recalled(12, "default", "w", one, [1, 2], "slow"),
        Reassigned(13, "default", "w", one, [1, 2], [2, 2], [1, 2], "crash"),
        Slowed(14, "default", "w", [700, 800]),
        Parked(15, "default", PartitionKey("a", "x"), 4, 3, "message", "too many attempts"),
        Redriven(16, "default", PartitionKey("a", "x"), [4], False),
        Redriven(16, "default", PartitionKey("a", "x"), [4, 5], True),
        QueuesKilled(17, 12),
        QueuesRestored(18, 12),
        SubscriberLeft(19, "default", "w", "w-1", "left"),
        SubscriptionDeleted(20, "default", 3),
    ]  # fmt: skip


def write(path: Path, **channels: list[Any]) -> Path:
    """A closed store with these journals."""
    journal = SqliteJournal(path)
    for name, records in channels.items():
        journal.append(name, 1, records)
    journal.close()
    return path


class Life(Driven):
    """A channel whose journal can be archived: what is published is delivered and settled."""

    def __init__(self, name: str = "orders") -> None:
        super().__init__(name, checked=False, lease_ms=10**9)
        self.subscribe("w")
        self.appended = 0

    def live(self, records: int, settled: bool = True) -> Life:
        """Go on until there are so many records more, the last messages settled or not."""
        enough = len(self.records) + records
        while len(self.records) < enough:
            self.now_ms += 1_000
            first = self.channel.next_sequences("p", ["x"])[0]
            self.publish("x", *(b"%d" % (first + i) for i in range(3)), timestamps=[7, 8, 8])
            self.publish("y", b"b" * 40)
            if settled:
                self.settle()
        return self

    def settle(self) -> None:
        for sends in self.dispatch().values():
            for send in sends:
                record = send.delivered
                for epoch, first, count in zip(record.epochs, record.firsts, record.counts):
                    self.ack("w", epoch, first + count - 1)

    def append(self, journal: SqliteJournal) -> int:
        """Queue what is new; returns the last sequence."""
        new = self.records[self.appended :]
        self.appended = len(self.records)
        return journal.append(self.channel.name, self.appended - len(new) + 1, new)


# --- reading


def read(**options: object) -> list[Values]:
    """All rows, read stretch by stretch the way Spark's tasks do, by channel and sequence."""
    reader = reader_of(**options)
    return rows_of(reader, reader.partitions())


def reader_of(**options: object) -> Any:
    given = {"columns": "all", **{name: str(value) for name, value in options.items()}}
    source = FairleadSource(given)
    return source.reader(source.schema())


def rows_of(reader: Any, partitions: Iterable[Any]) -> list[Values]:
    return [
        row
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def frame(spark: SparkSession, **options: object) -> DataFrame:
    reader = spark.read.format("fairlead").option("columns", "all")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def collected(rows: DataFrame) -> list[Values]:
    """The rows of a frame in journal order, bodies as plain bytes."""
    found = [row.asDict() for row in rows.collect()]
    for row in found:
        if row.get("bodies") is not None:
            row["bodies"] = [bytes(body) for body in row["bodies"]]
    return sorted(found, key=lambda row: (row["channel"], row["sequence"]))


def sequences(rows: Iterable[Values]) -> list[int]:
    return [row["sequence"] for row in rows]


# --- what a row has to be, from the record alone


def expected(channel: str, sequence: int, record: Any) -> Values:
    values: Values = dict.fromkeys(ALL)
    values.update(
        channel=channel, sequence=sequence, kind=record.kind, intact=True,
    )  # fmt: skip
    for field in fields(record):
        if field.name in values and field.name not in ("ids", "policy"):
            values[field.name] = getattr(record, field.name)
    values["count"] = message_count(record)
    pairs = getattr(record, "keys", None)
    if hasattr(record, "key"):
        pairs = [record.key]
    if pairs is not None:
        publishers = [pair.publisher for pair in pairs]
        values["publishers"] = publishers[:1] if len(set(publishers)) == 1 else publishers
        values["partitions"] = [pair.partition for pair in pairs]
    if isinstance(record, ChannelCreated):
        values["policy"] = json.dumps(record.policy, sort_keys=True)
    if isinstance(record, Redriven):
        values["dropped"], values["given_up"] = None, record.dropped
    if isinstance(record, (Published, Delivered)):
        values["offsets"] = [sum(record.counts[:run]) for run in range(len(record.counts))]
    if isinstance(record, Published):
        values.update(expected_messages(record))
    return values


def expected_messages(record: Published) -> Values:
    """Message by message, the slow way."""
    stamps: list[list[int]] = []
    kept = iter(record.entries)
    index = 0
    for count in record.counts:
        run = []
        for _ in range(count):
            if index not in record.dropped:
                run.append(next(kept)[0])
            index += 1
        stamps.append(run)
    timestamps, _, priorities, formats, bodies, extras = (
        [list(column) for column in zip(*record.entries)] or [[], [], [], [0], [], []]
    )
    some_extras = any(extras)
    return {
        "kept": [len(run) for run in stamps] if record.dropped else None,
        "oldest": [min(run, default=None) for run in stamps],
        "newest": [max(run, default=None) for run in stamps],
        "rising": [all(a <= b for a, b in zip(run, run[1:])) for run in stamps],
        "timestamps": once(timestamps), "formats": once(formats), "bodies": bodies,
        "priorities": priorities if any(priorities) else None,
        "bodies_crc": crc32(b"".join(bodies)),
        "ids": [(item or {}).get("id") for item in extras] if some_extras else None,
        "headers": [
            json.dumps(item["headers"]) if item and "headers" in item else None for item in extras
        ] if some_extras else None,
    }  # fmt: skip


def once(values: list[int]) -> list[int]:
    return values[:1] if len(set(values)) == 1 else values


def expected_journal(**channels: list[Record]) -> list[Values]:
    return [
        expected(name, sequence, record)
        for name, records in sorted(channels.items())
        for sequence, record in enumerate(records, 1)
    ]


# --- round trip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two channels with records of every kind; not to be changed."""
    path = tmp_path_factory.mktemp("source") / "journal.db"
    return write(path, orders=every_kind("orders"), other=every_kind("other"))


def test_the_sample_has_every_kind_that_is_ever_journaled() -> None:
    durable = {kind for kind, cls in RECORD_TYPES.items() if cls.durable}
    assert {record.kind for record in every_kind("orders")} == durable


def test_every_field_of_every_kind_has_a_column() -> None:
    renamed = {"keys", "key", "entries", "name", "lines", "columns"}
    missing = {
        f"{cls.__name__}.{field.name}"
        for cls in RECORD_TYPES.values()
        for field in fields(cls)
        if field.name not in schema.BY_NAME and field.name not in renamed
    }
    assert not missing


def every_topic_kind(name: str) -> list[Any]:
    """One record of each kind that a topic's journal can hold, a put of several formats too."""
    return [
        topics.TopicCreated(1, name, 7, {"backlog_count_max": 5}),
        topics.TopicSubscribed(2, "bob", "b-1", 1, 8, 0),
        topics.Put(3, "ann", "a-1", 1, 1, 9, 77, 0, [b"one", b""]),
        topics.Put(4, "ann", "a-1", 3, 3, 11, 78, [1, 2], [b"t\xc3\xa4xt", b"{}"]),
        topics.Confirmed(5, "bob", 8, 1, 3),
        topics.ClientTakenOver(6, "bob", "b-2"),
        topics.TopicUnsubscribed(7, "bob", 2, 8, 3, 1),
    ]


def test_every_field_of_every_kind_of_a_topic_has_a_column() -> None:
    assert {item.kind for item in every_topic_kind("t")} == set(topics.TOPIC_RECORD_TYPES)
    missing = {
        f"{cls.__name__}.{field.name}"
        for cls in topics.TOPIC_RECORD_TYPES.values()
        for field in fields(cls)
        if field.name not in schema.BY_NAME and field.name != "name"
    }
    assert not missing


def test_the_frame_has_what_was_written_of_a_topic_beside_a_channel(tmp_path: Path) -> None:
    records = every_topic_kind("prices")
    path = write(tmp_path / "journal.db", **{"orders": every_kind("orders"),
                                             "topic:prices": records})  # fmt: skip
    rows = read(store=path)
    assert rows[: len(every_kind("orders"))] == expected_journal(orders=every_kind("orders"))
    for row, record in zip(rows[len(every_kind("orders")) :], records, strict=True):
        wanted = expected(row["channel"], row["sequence"], record)
        if isinstance(record, topics.TopicCreated):
            wanted["policy"] = json.dumps(record.policy, sort_keys=True)
        if isinstance(record, topics.Put):
            listed = [record.formats] if isinstance(record.formats, int) else record.formats
            wanted |= {"formats": listed, "bodies_crc": crc32(b"".join(record.bodies))}
        assert row == wanted and row["intact"]


def test_the_frame_has_what_was_written_of_every_kind(spark: SparkSession, store: Path) -> None:
    records = {name: every_kind(name) for name in ("orders", "other")}
    rows = collected(frame(spark, store=store, range_records=10))
    assert rows == expected_journal(**records)


@st.composite
def batches(draw: st.DrawFn) -> Published:
    """A Published record of any shape, empty runs and runs that are dropped whole included."""
    counts = draw(st.lists(st.integers(0, 4), max_size=5))
    total = sum(counts)
    dropped = draw(st.sets(st.integers(0, max(0, total - 1)), max_size=total))
    kept = total - len(dropped)
    column = st.lists(st.integers(0, 3), min_size=kept, max_size=kept)
    extras = st.none() | st.fixed_dictionaries(
        {}, optional={"id": st.sampled_from(["", "i"]), "headers": st.just({"h": "ä"})}
    )
    timestamps = draw(st.one_of(st.just([5] * kept), column, column.map(sorted)))
    runs = [(f"p{index}", 10 * index + 1, count) for index, count in enumerate(counts)]
    return published(
        runs, timestamps, dropped, draw(column), draw(st.lists(extras, min_size=kept,
        max_size=kept)), draw(column),
    )  # fmt: skip


def encoded(records: Iterable[Record], channel: str = "orders") -> list[codec.Row]:
    rows: list[codec.Row] = []
    for sequence, record in enumerate(records, 1):
        previous = rows[-1][codec.CHECKSUM] if rows else codec.CHECKSUM_START
        rows.append(codec.encode(channel, sequence, record, previous))
    return rows


def decoded(rows: Iterable[Any], columns: tuple[str, ...] = ALL) -> list[Values]:
    batches = Decoder(columns, verify=True).batches(rows, Chain({0: codec.CHECKSUM_START}))
    return [row for batch in batches for row in batch.to_pylist()]


@settings(max_examples=150, deadline=None)
@given(st.lists(batches(), min_size=1, max_size=4))
def test_what_is_derived_from_a_batch_equals_a_plain_computation(records: list[Record]) -> None:
    assert decoded(encoded(records)) == expected_journal(orders=records)


@pytest.mark.parametrize("name", [name for name in ALL if name != "sequence"])
def test_a_column_is_the_same_without_the_others(name: str) -> None:
    records = every_kind("orders")
    assert decoded(encoded(records), ("sequence", name)) == [
        {"sequence": row["sequence"], name: row[name]} for row in expected_journal(orders=records)
    ]


def test_long_journals_are_cut_into_batches_without_a_seam(monkeypatch: Any) -> None:
    monkeypatch.setattr("spark.decode.BATCH_RECORDS", 7)
    records = every_kind("orders") * 3
    assert decoded(encoded(records)) == expected_journal(orders=records)


def test_large_bodies_make_small_batches(monkeypatch: Any) -> None:
    monkeypatch.setattr("spark.decode.BATCH_BYTES", 100)
    records: list[Record] = [published([("x", 1, 3)], 5)] * 20
    found = Decoder(ALL, True).batches(encoded(records), Chain({0: 0}))
    assert [batch.num_rows for batch in found] == [3] * 6 + [2]


# --- ranges and options


@pytest.mark.parametrize("size", [1, 2, 3, 7, 32, 33, 34, 1_000])
def test_ranges_of_any_size_are_exactly_the_journal(store: Path, size: int) -> None:
    reader = reader_of(store=store, range_records=size)
    partitions = reader.partitions()
    length = len(every_kind("orders"))
    assert len(partitions) == 2 * -(-length // size)
    whole = expected_journal(orders=every_kind("orders"), other=every_kind("other"))
    assert rows_of(reader, partitions) == whole


def test_spark_reads_the_ranges_in_tasks_of_their_own(spark: SparkSession, store: Path) -> None:
    assert frame(spark, store=store, range_records=9).rdd.getNumPartitions() == 8
    assert frame(spark, store=store).rdd.getNumPartitions() == 2


def test_channel_and_upto_narrow_what_is_read(store: Path) -> None:
    orders = every_kind("orders")
    whole = expected_journal(orders=orders, other=every_kind("other"))
    assert read(store=store, channel="orders") == whole[: len(orders)]
    assert read(store=store, channel="orders", upto='{"orders": 5}') == whole[:5]
    assert len(read(store=store, upto='{"orders": 5}')) == 5 + len(orders)
    assert read(store=store, upto='{"orders": 0, "other": 0}') == []
    assert len(read(store=store, upto='{"orders": 1000}')) == len(whole)
    assert read(store=store, channel="none") == []


def test_path_is_the_store(spark: SparkSession, store: Path) -> None:
    assert spark.read.format("fairlead").load(str(store)).count() == 2 * len(every_kind("orders"))


def test_the_columns_are_those_that_were_asked_for(spark: SparkSession, store: Path) -> None:
    assert frame(spark, store=store, columns="kind, sequence").columns == ["kind", "sequence"]
    plain = spark.read.format("fairlead").option("store", str(store)).load()
    assert plain.columns == list(schema.DEFAULT)
    assert not {"bodies", "ids", "headers"} & set(plain.columns)


def test_without_verify_nothing_is_said_of_checksums_and_no_body_is_read(
    store: Path, monkeypatch: Any, tmp_path: Path
) -> None:
    touched = watch_columns(monkeypatch)
    rows = read(store=store, verify="false", columns="sequence,intact,timestamps,ids")
    assert {row["intact"] for row in rows} == {None} and touched and "bodies" not in touched
    assert read(store=store, columns="sequence,kind") and "bodies" not in touched
    assert read(store=store, columns="sequence,intact") and "bodies" in touched


def watch_columns(monkeypatch: Any) -> set[str]:
    """The columns of the table of records that SQLite reads from now on."""
    touched: set[str] = set()
    connect = scan.connect

    def watched(path: str) -> sqlite3.Connection:
        connection = connect(path)

        def authorize(action: int, table: str, column: str, *_: Any) -> int:
            if action == sqlite3.SQLITE_READ and table == "records":
                touched.add(column)
            return sqlite3.SQLITE_OK

        connection.set_authorizer(authorize)
        return connection

    monkeypatch.setattr(scan, "connect", watched)
    return touched


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "needs the option store, archive or both"),
        ({"store": "x", "stroe": "y"}, "has no option stroe; it has archive, channel"),
        ({"store": "x", "path": "y"}, "leave one out"),
        ({"store": "x", "columns": "kind,colour"}, "has no column colour; it has channel,"),
        ({"store": "x", "columns": " ,"}, r"has no column \(none given\)"),
        ({"store": "x", "columns": "kind,kind"}, "names a column twice"),
        ({"store": "x", "upto": "12"}, "upto is JSON like"),
        ({"store": "x", "upto": "{"}, "upto is JSON like"),
        ({"store": "x", "upto": '{"orders": "12"}'}, "upto is JSON like"),
        ({"store": "x", "verify": "maybe"}, "verify is true or false, not 'maybe'"),
        ({"store": "x", "range_records": "0"}, "range_records is a number from 1 on, not '0'"),
        ({"store": "x", "range_records": "²"}, "range_records is a number from 1 on"),
        ({"store": "x", "records_per_batch_max": "-1"}, "records_per_batch_max is a number"),
        ({"store": "x", "starting": "now"}, "starting is earliest or latest, not 'now'"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_may_be(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse(options)


def test_spark_shows_what_is_wrong_with_an_option(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="has no option stroe"):
        frame(spark, stroe=tmp_path).count()
    with pytest.raises(Exception, match=f"there is no store {tmp_path}/none.db"):
        frame(spark, store=tmp_path / "none.db").count()


def test_what_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no store"):
        read(store=tmp_path / "none.db")
    with pytest.raises(JournalError, match="there is no archive"):
        read(archive=tmp_path / "none")
    (tmp_path / "text.db").write_text("no database at all, but long enough to be looked at" * 20)
    with pytest.raises(JournalError, match="damaged"):
        read(store=tmp_path / "text.db")


def test_an_empty_store_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    assert frame(spark, store=write(tmp_path / "journal.db")).collect() == []


# --- damage

KINDS = [record.kind for record in every_kind("orders")]
PLACE = KINDS.index("Published") + 3  # a Published with several runs, not the first one
FLIP = "CAST(substr({0}, 1, {1}) || x'{2}' || substr({0}, {1} + 2) AS BLOB)"


def damaged(store: Path, target: Path, *statements: str) -> Path:
    """A copy of a store, changed by somebody who should not."""
    shutil.copyfile(store, target)
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount == 1, statement
    return target


def change(column: str, value: str, sequence: int = PLACE) -> str:
    return (
        f"UPDATE records SET {column} = {value} "
        f"WHERE channel = 'orders' AND sequence = {sequence}"
    )


DAMAGE = {
    "a bit in runs": ("runs", FLIP.format("runs", 20, "7f")),
    "a bit in bodies": ("bodies", FLIP.format("bodies", 25, "7f")),
    "bodies that are gone": ("bodies", "NULL"),
    "a number": ("count", "count + 1"),
    "a number of a wrong type": ("count", "'many'"),
    "a text": ("publisher", "'other'"),
    "a text of a wrong type": ("publisher", "x'ff'"),
    "another kind": ("kind", "'Delivered'"),
    "the time": ("at_ms", "at_ms + 1"),
    "the checksum": ("checksum", "checksum + 1"),
    "a checksum of a wrong type": ("checksum", "'none'"),
    "runs that cannot be unpacked": ("runs", "x'c1'"),
    "runs that are no map": ("runs", "x'05'"),
    "runs that are a text": ("runs", "'text'"),
    "empty runs": ("runs", "x''"),
    "bodies that cannot be unpacked": ("bodies", "x'c1c1'"),
}


@pytest.mark.parametrize("size", [PLACE - 1, PLACE, 1, 1_000])
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_makes_exactly_its_row_not_intact(
    store: Path, tmp_path: Path, name: str, size: int
) -> None:
    path = damaged(store, tmp_path / "damaged.db", change(*DAMAGE[name]))
    rows = read(store=path, range_records=size)
    whole = expected_journal(orders=every_kind("orders"), other=every_kind("other"))
    assert [(row["channel"], row["sequence"]) for row in rows if row["intact"] is not True] == [
        ("orders", PLACE)
    ]
    assert rows[PLACE - 1]["intact"] is False
    assert rows[: PLACE - 1] + rows[PLACE:] == whole[: PLACE - 1] + whole[PLACE:]


@pytest.mark.parametrize(
    "name", ["a number of a wrong type", "a text of a wrong type", "runs that cannot be unpacked",
             "bodies that cannot be unpacked"],
)  # fmt: skip
def test_what_cannot_be_read_is_not_intact_also_without_checksums(
    store: Path, tmp_path: Path, name: str
) -> None:
    path = damaged(store, tmp_path / "damaged.db", change(*DAMAGE[name]))
    rows = read(store=path, channel="orders", verify="false")
    assert [row["sequence"] for row in rows if row["intact"] is not None] == [PLACE]
    assert rows[PLACE - 1]["intact"] is False


@pytest.mark.parametrize("size", [2, 3, 1_000])
def test_two_damaged_rows_in_a_row_are_two(store: Path, tmp_path: Path, size: int) -> None:
    for first in ("the checksum", "a bit in runs"):
        for second in ("the checksum", "a number"):
            path = damaged(
                store, tmp_path / "damaged.db",
                change(*DAMAGE[first]), change(*DAMAGE[second], PLACE + 1),  # type: ignore[call-arg]
            )  # fmt: skip
            rows = read(store=path, channel="orders", range_records=size)
            lost = [row["sequence"] for row in rows if row["intact"] is not True]
            assert lost == [PLACE, PLACE + 1], (first, second)


def test_damage_of_many_sorts_does_not_break_a_query(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    statements = [
        change(*damage, sequence)  # type: ignore[call-arg]
        for sequence, damage in zip(range(2, 33, 2), DAMAGE.values())
        if damage[0] != "bodies"
    ]
    path = damaged(store, tmp_path / "damaged.db", *statements)
    rows = collected(frame(spark, store=path, channel="orders", range_records=10))
    found = {row["sequence"] for row in rows if row["intact"] is False}
    assert len(rows) == len(KINDS) and len(found) == len(statements)
    assert all(row["intact"] is not None for row in rows)


@pytest.mark.parametrize("size", [1, PLACE, 1_000])
def test_a_missing_row_is_a_missing_sequence_and_nothing_else(
    store: Path, tmp_path: Path, size: int
) -> None:
    path = damaged(
        store, tmp_path / "damaged.db",
        f"DELETE FROM records WHERE channel = 'orders' AND sequence = {PLACE}",
    )  # fmt: skip
    rows = read(store=path, channel="orders", range_records=size)
    whole = expected_journal(orders=every_kind("orders"))
    following = {**whole[PLACE], "intact": None}  # what it continues is not there
    assert rows == [*whole[: PLACE - 1], following, *whole[PLACE + 1 :]]


def test_rows_missing_at_the_end_are_known_from_the_head(store: Path, tmp_path: Path) -> None:
    last = len(KINDS)
    path = damaged(
        store, tmp_path / "damaged.db",
        f"DELETE FROM records WHERE channel = 'orders' AND sequence = {last}",
    )  # fmt: skip
    assert scan.extents(scan.Place(str(path), None), "orders") == [scan.Extent("orders", 1, last)]
    assert sequences(read(store=path, channel="orders")) == list(range(1, last))


def test_a_store_that_cannot_be_written_at_all_is_read(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "medium"
    folder.mkdir()
    shutil.copyfile(store, folder / "journal.db")
    real = scan.connect_readonly

    def refused(path: str) -> sqlite3.Connection:
        connection = real(path)
        connection.close()
        raise_medium = sqlite3.OperationalError("unable to open database file")
        raise_medium.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        return Refusing(raise_medium)  # type: ignore[return-value]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "connect_readonly", refused)
        assert len(read(store=folder / "journal.db")) == 2 * len(KINDS)
        (folder / "journal.db-wal").write_bytes(b"somebody writes")
        with pytest.raises(JournalError, match="unable to open"):
            read(store=folder / "journal.db")


class Refusing:
    """A connection to a place where SQLite cannot make its files."""

    def __init__(self, error: sqlite3.OperationalError) -> None:
        self._error = error

    def execute(self, *_: Any) -> Any:
        raise self._error

    def close(self) -> None:
        pass


# --- archive and store as one


@pytest.fixture
def lived(tmp_path: Path) -> tuple[Path, Path, list[Values]]:
    """A store, an empty archive beside it, and the rows of the whole journal."""
    life = Life().live(60).live(20, settled=False)
    path = write(tmp_path / "journal.db", orders=life.records, other=every_kind("other"))
    whole = expected_journal(orders=life.records, other=every_kind("other"))
    assert read(store=path) == whole
    return path, tmp_path / "archive", whole


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_store_and_archive_are_one_journal_before_and_after_a_trim(
    lived: tuple[Path, Path, list[Values]], size: int
) -> None:
    path, archive, whole = lived
    export_channel(path, archive, "orders")
    assert read(store=path, archive=archive, range_records=size) == whole
    done = export_channel(path, archive, "orders", trim=True)
    assert 0 < done.base == done.trimmed < done.head
    assert read(store=path, archive=archive, range_records=size) == whole
    assert read(archive=archive, range_records=size) == whole[: done.base]


def test_spark_reads_a_trimmed_store_with_its_archive(
    spark: SparkSession, lived: tuple[Path, Path, list[Values]]
) -> None:
    path, archive, whole = lived
    export_channel(path, archive, "orders", trim=True)
    rows = frame(spark, store=path, archive=archive, range_records=25)
    assert collected(rows) == whole


def test_a_journal_that_was_trimmed_whole_is_in_the_archive(tmp_path: Path) -> None:
    life = Life().live(30)
    path, archive = write(tmp_path / "journal.db", orders=life.records), tmp_path / "archive"
    done = export_channel(path, archive, "orders", trim=True)
    assert done.base == len(life.records)
    assert read(store=path, archive=archive) == expected_journal(orders=life.records)
    assert read(store=path) == []


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_a_trimmed_store_alone_starts_after_its_base_and_is_intact(
    lived: tuple[Path, Path, list[Values]], size: int
) -> None:
    path, archive, whole = lived
    done = export_channel(path, archive, "orders", trim=True)
    place = scan.Place(str(path), None)
    assert scan.extents(place, "orders") == [scan.Extent("orders", done.base + 1, done.head)]
    assert read(store=path, channel="orders", range_records=size) == whole[done.base : done.head]


def test_a_trim_between_planning_and_reading_loses_nothing(
    lived: tuple[Path, Path, list[Values]],
) -> None:
    path, archive, whole = lived
    export_channel(path, archive, "orders")
    reader = reader_of(store=path, archive=archive, range_records=9)
    partitions = reader.partitions()
    assert export_channel(path, archive, "orders", trim=True).trimmed
    assert rows_of(reader, partitions) == whole


def test_a_first_export_between_planning_and_reading_loses_nothing(
    lived: tuple[Path, Path, list[Values]],
) -> None:
    path, archive, whole = lived
    archive.mkdir()
    reader = reader_of(store=path, archive=archive)
    partitions = reader.partitions()
    assert export_channel(path, archive, "orders", trim=True).trimmed
    assert rows_of(reader, partitions) == whole


def test_a_first_export_in_the_middle_of_planning_loses_nothing(
    lived: tuple[Path, Path, list[Values]], monkeypatch: Any
) -> None:
    path, archive, whole = lived
    archive.mkdir()
    real = scan._archived

    def overtaken(*place: Any) -> Any:
        """What a planner finds in the archive just before an export."""
        found = real(*place)
        export_channel(path, archive, "orders", trim=True)
        return found

    monkeypatch.setattr(scan, "_archived", overtaken)
    assert read(store=path, archive=archive, channel="orders") == whole[: -len(KINDS)]


def test_a_trim_in_the_middle_of_a_stretch_loses_nothing(
    lived: tuple[Path, Path, list[Values]], monkeypatch: Any
) -> None:
    path, archive, whole = lived
    monkeypatch.setattr(scan, "CHUNK_RECORDS_FIRST", 4)
    monkeypatch.setattr(scan, "CHUNK_RECORDS", 4)
    place, head = scan.Place(str(path), str(archive)), len(whole) - len(KINDS)
    rows = scan.read(place, scan.Stretch("orders", 1, head), bodies=True)
    begun = [next(rows) for _ in range(6)]
    assert export_channel(path, archive, "orders", trim=True).base > 20
    assert decoded([*begun, *rows]) == whole[:head]


def test_rows_that_an_interrupted_trim_left_come_once(
    lived: tuple[Path, Path, list[Values]], monkeypatch: Any
) -> None:
    path, archive, whole = lived
    monkeypatch.setattr(archives, "delete_rows", lambda *_: 0)
    done = export_channel(path, archive, "orders", trim=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM records WHERE channel = 'orders' AND sequence <= 11")
    assert done.base > 20
    assert read(store=path, archive=archive, range_records=5) == whole


def test_without_verify_no_body_is_read_from_an_archive(
    lived: tuple[Path, Path, list[Values]], monkeypatch: Any
) -> None:
    path, archive, whole = lived
    done = export_channel(path, archive, "orders", trim=True)
    asked: list[Any] = []
    real = archives.read_batches

    def watched(file: Any, first: Any, last: Any, columns: Any = None) -> Iterator[Any]:
        asked.append(columns)
        return iter(real(file, first, last, columns))

    monkeypatch.setattr(archives, "read_batches", watched)
    monkeypatch.setattr(archives, "read_rows", None)
    rows = read(store=path, archive=archive, columns="sequence,timestamps", channel="orders")
    assert rows == [
        {"sequence": row["sequence"], "timestamps": row["timestamps"]} for row in whole[: done.head]
    ]
    assert asked and all("bodies" not in columns for columns in asked)


def test_a_store_of_the_first_format_is_read(store: Path, tmp_path: Path) -> None:
    """It had no bases."""
    shutil.copyfile(store, tmp_path / "old.db")
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.executescript("DROP TABLE bases; PRAGMA user_version = 1")
    whole = expected_journal(orders=every_kind("orders"), other=every_kind("other"))
    assert read(store=tmp_path / "old.db", range_records=10) == whole


# --- beside a broker that writes


class Writer(threading.Thread):
    """Appends to a store as fast as it is told durable, until it is stopped."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.journal = SqliteJournal(path, checkpoint_bytes=64 * 1024)
        self.life = Life()
        self.durable = 0
        self.failure: BaseException | None = None
        self._stop_asked = threading.Event()

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                last = self.life.live(10).append(self.journal)
                self.journal.wait_durable("orders", last, timeout=WAIT_S)
                self.durable = last
        except BaseException as error:
            self.failure = error
            raise

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(WAIT_S)
        self.journal.close()
        assert not self.is_alive() and self.failure is None


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    thread = Writer(tmp_path / "live.db")
    thread.start()
    poll(lambda: thread.durable > 100, WAIT_S, "the first records")
    yield thread
    thread.stop()


def check_prefix(rows: list[Values], at_least: int) -> int:
    """Dense from 1, all of it intact; returns where it ends."""
    assert sequences(rows) == list(range(1, len(rows) + 1))
    assert all(row["intact"] for row in rows) and len(rows) >= at_least
    return len(rows)


def test_reads_beside_a_writer_and_a_trimming_export_are_prefixes(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    path, archive = tmp_path / "live.db", tmp_path / "archive"
    archive.mkdir()
    child = ROOT / "tests" / "journal" / "trimming_child.py"
    options = {"store": path, "archive": archive, "columns": "channel,sequence,intact"}
    trimming = subprocess.Popen(
        [sys.executable, str(child), str(path), str(archive), "orders"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    assert trimming.stdin and trimming.stdout
    try:
        bases = [int(trimming.stdout.readline())]
        end = 0
        for size in (100, 20_000):
            before = writer.durable
            rows = collected(frame(spark, range_records=size, **options))
            end = check_prefix(rows, max(end, before))
            for _ in range(2):
                before = writer.durable
                end = check_prefix(read(range_records=size, **options), max(end, before))
            bases.append(int(trimming.stdout.readline()))
            assert writer.failure is None
        assert 0 < bases[0] < bases[-1], "nothing was trimmed meanwhile"
        # A reader may see a commit a moment before the writer's thread has heard of it.
        poll(lambda: writer.durable >= end, 10.0, "the writer hears of what was read")
    finally:
        trimming.stdin.close()
        trimming.stdout.read()
        assert trimming.wait(WAIT_S) == 0
    check_prefix(read(**options), end)


def test_a_reader_that_pauses_holds_nothing_that_a_writer_needs(tmp_path: Path) -> None:
    """Between two chunks there is no transaction: the write-ahead log can start over."""
    path = tmp_path / "live.db"
    life = Life().live(200)
    journal = SqliteJournal(path)
    journal.wait_durable("orders", life.append(journal), timeout=WAIT_S)
    rows = scan.read(scan.Place(str(path), None), scan.Stretch("orders", 1, 10**6), bodies=True)
    begun = [next(rows) for _ in range(70)]
    journal.wait_durable("orders", life.live(50).append(journal), timeout=WAIT_S)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert busy == 0
    assert decoded([*begun, *rows]) == expected_journal(orders=life.records)
    journal.close()


def test_a_record_that_is_not_committed_is_not_read(tmp_path: Path) -> None:
    life = Life().live(40)
    path = write(tmp_path / "journal.db", orders=life.records[:30])
    rows = encoded(life.records)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            f"INSERT INTO records VALUES ({','.join('?' * len(codec.COLUMNS))})", rows[30:]
        )
        assert len(read(store=path)) == 30
        connection.execute("COMMIT")
    assert read(store=path) == expected_journal(orders=life.records)


# --- what it needs

NO_PANDAS = """
import os, sys
class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
sys.meta_path.insert(0, Refuses())
open(os.path.join({folder!r}, str(os.getpid())), "w").close()
"""
READ_ALL = """
import sys
from spark.session import build
spark = build("local[1]", memory="1g")
spark.conf.set("spark.sql.codegen.wholeStage", "false")
rows = spark.read.format("fairlead").option("columns", "all").option("range_records", "40")
found = rows.load(sys.argv[1]).collect()
stream = spark.readStream.format("fairlead").load(sys.argv[1]).writeStream.format("memory")
query = stream.queryName("found").trigger(availableNow=True).start()
query.awaitTermination()
print(len(found), sum(row.intact for row in found), spark.table("found").count())
"""


def test_reading_needs_no_pandas_in_driver_and_workers(store: Path, tmp_path: Path) -> None:
    """A Python in which pandas cannot be imported, neither by the driver nor by a worker."""
    site, seen = tmp_path / "site", tmp_path / "seen"
    site.mkdir()
    seen.mkdir()
    (site / "sitecustomize.py").write_text(NO_PANDAS.format(folder=str(seen)))
    variables = environment(PYTHONPATH=f"{site}:{ROOT}")
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(store)],
        env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    records = 2 * len(KINDS)
    assert done.stdout.split() == [str(records)] * 3, done.stderr[-3000:]
    assert len(list(seen.iterdir())) >= 3, "the workers ran without the refusal"
