"""The figures of the report against a second way to the same numbers: replaying the records.

The journals are those of real runs with real faults, and small ones for what those lack.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from broker.core import commands as c
from broker.core.channel import Channel
from broker.core.message import PartitionKey
from broker.core.policy import Policy
from broker.core.records import Record
from broker.journal.sqlite import SqliteJournal
from spark.figures.columns import Scale
from spark.figures.lanes import lane_segments
from spark.figures.latency import BLOCK, sample_for
from spark.report import COLUMNS, Limits, collect_figures
from spark.report.scale import scale_for
from tests.builders import Driven, publish_command
from tests.spark.faulty_runs import FaultyStore

#: Jobs of collect_figures over a journal in which everything happens, as measured; nine queries are
#: behind them.
JOBS_MAX = 14
QUERIES = 9

#: The first test waits for the faulty runs and for all their figures.
pytestmark = pytest.mark.timeout(300)

Records = dict[str, list[tuple[int, Record]]]


def load(spark: SparkSession, store: Path) -> DataFrame:
    """The frame as the audit reads it."""
    reader = spark.read.format("fairlead").option("verify", "false")
    return reader.option("columns", ",".join(COLUMNS)).load(str(store)).persist()


def frame_of(spark: SparkSession, folder: Path, *driven: Driven) -> DataFrame:
    """A store with the journals of driven channels, loaded."""
    journal = SqliteJournal(str(folder / "store.db"), durability="flush")
    for one in driven:
        last = journal.append(one.channel.name, 1, one.records)
        journal.wait_durable(one.channel.name, last, timeout=20)
    journal.close()
    return load(spark, folder / "store.db")


@pytest.fixture(scope="module")
def faulty_records(faulty_store: FaultyStore) -> Records:
    """The records of every faulty run, in order."""
    journal = SqliteJournal(str(faulty_store.store))
    try:
        return {one["name"]: list(journal.read(one["name"])) for one in faulty_store.channels}
    finally:
        journal.close()


@pytest.fixture(scope="module")
def faulty_frame(spark: SparkSession, faulty_store: FaultyStore) -> Iterator[DataFrame]:
    """The frame of the faulty runs."""
    frame = load(spark, faulty_store.store)
    yield frame
    frame.unpersist()


@pytest.fixture(scope="module")
def faulty_figures(faulty_frame: DataFrame) -> dict[str, dict[str, Any]]:
    """The figures of every faulty run, by channel."""
    figures = collect_figures(faulty_frame, Limits(channels=100))
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    return {one["channel"]: one for one in figures["channels"]}


def replayed(records: list[tuple[int, Record]]) -> Iterator[tuple[Record, Channel]]:
    """Each record with the channel as it is after it."""
    first: Any = records[0][1]
    channel = Channel(first.name, Policy.from_dict(first.policy))
    for _, record in records:
        channel.apply(record)
        yield record, channel


def test_throughput_counts_each_record_in_its_bucket(
    faulty_figures: dict[str, Any], faulty_records: Records
) -> None:
    for name, records in faulty_records.items():
        figure = faulty_figures[name]
        expected: dict[str, list[int]] = {
            kind: [0] * figure["buckets"] for kind in ("Published", "Delivered", "Acked")
        }
        for _, record in records:
            if record.kind in expected:
                bucket = (record.at_ms - figure["origin_ms"]) // figure["bucket_ms"]
                dropped = len(getattr(record, "dropped", ()))
                expected[record.kind][bucket] += sum(record.counts) - dropped  # type: ignore[union-attr]
        assert list(figure["flow"].values()) == list(expected.values()), name


def test_depth_and_in_flight_are_those_of_the_channel_at_the_end_of_each_bucket(
    faulty_figures: dict[str, Any], faulty_records: Records
) -> None:
    compared = nacked = 0
    for name, records in faulty_records.items():
        figure = faulty_figures[name]
        states: dict[tuple[str, int], tuple[int, int]] = {}
        for record, channel in replayed(records):
            bucket = (record.at_ms - figure["origin_ms"]) // figure["bucket_ms"]
            nacked += record.kind == "Nacked"
            if record.kind == "SubscriptionDeleted":
                states[record.subscription, bucket] = (0, 0)  # type: ignore[union-attr]
            for group in channel.subscriptions_list:
                flight = sum(line.in_flight for line in channel.backup.lines(group))
                states[group.name, bucket] = (group.pending_count, flight)
        for one in figure["depth"]["subscriptions"]:
            for bucket, found in enumerate(zip(one["depth"], one["in_flight"])):
                if (one["subscription"], bucket) in states:
                    compared += 1
                    assert found == states[one["subscription"], bucket], (name, one, bucket)
    assert compared > 500 and nacked > 20


def handled(records: list[tuple[int, Record]]) -> dict[str, list[int]]:
    """Publish to first delivery and to first ack of every message of every subscription, in ms."""
    published: dict[tuple[PartitionKey, int], int] = {}
    sequence_at: dict[tuple[str, PartitionKey, int], int] = {}
    first: dict[str, dict[Any, int]] = {"delivery": {}, "handling": {}}
    for _, record in records:
        if record.kind == "Published":
            for name, start, count in zip(record.partitions, record.firsts, record.counts):  # type: ignore[union-attr]
                for sequence in range(start, start + count):
                    key = PartitionKey(record.publisher, name)  # type: ignore[union-attr]
                    published[key, sequence] = record.at_ms
        elif record.kind in ("Delivered", "Acked"):
            runs: Any = record
            starts = runs.sequences if record.kind == "Delivered" else runs.firsts
            for key, start, count, sequence in zip(runs.keys, runs.firsts, runs.counts, starts):
                for offset in range(count):
                    place = (runs.subscription, key, start + offset)
                    if record.kind == "Delivered":
                        sequence_at[place] = sequence + offset
                    kind = "delivery" if record.kind == "Delivered" else "handling"
                    message = (runs.subscription, key, sequence_at[place])
                    first[kind].setdefault(message, record.at_ms - published[key, message[2]])
    return {kind: sorted(found.values()) for kind, found in first.items()}


def test_latency_is_that_of_every_message_joined_through_its_deliveries(
    faulty_figures: dict[str, Any], faulty_records: Records
) -> None:
    for name, records in faulty_records.items():
        for measure, values in handled(records).items():
            overall = faulty_figures[name]["latency"][measure]["overall"]
            assert overall["messages"] == len(values), (name, measure)
            cuts = quantiles(values, n=100, method="inclusive")
            assert [overall[key] for key in ("p50", "p90", "p99", "max")] == pytest.approx(
                [cuts[49], cuts[89], cuts[98], values[-1]], abs=0.051
            )


def test_latency_over_time_lies_within_the_overall_extremes(
    faulty_figures: dict[str, Any],
) -> None:
    for figure in faulty_figures.values():
        handling = figure["latency"]["handling"]
        seen = [value for value in handling["max"] if value is not None]
        assert max(seen) == handling["overall"]["max"]


def owned(records: list[tuple[int, Record]]) -> dict[Any, list[list[Any]]]:
    """Per line [start, end or None, owner, epoch] of each assignment, from the channel's state."""
    spans: dict[Any, list[list[Any]]] = defaultdict(list)
    for record, channel in replayed(records):
        for group in channel.subscriptions_list:
            for line in channel.backup.lines(group):
                own = spans[group.name, line.key.publisher, line.key.partition]
                open_now = bool(own) and own[-1][1] is None
                if open_now and (line.owner is None or line.epoch != own[-1][3]):
                    own[-1][1] = record.at_ms
                if line.owner is not None and (not own or own[-1][3] != line.epoch):
                    own.append([record.at_ms, None, line.owner.subscriber, line.epoch])
    return spans


def test_swim_lanes_show_who_owned_each_partition_when(
    faulty_frame: DataFrame, faulty_records: Records
) -> None:
    """Assignments of one owner that begin in the same bucket are one segment."""
    name = max(faulty_records, key=lambda n: sum(r.kind == "Nacked" for _, r in faulty_records[n]))
    spans = {line: own for line, own in owned(faulty_records[name]).items() if own}
    times = [record.at_ms for _, record in faulty_records[name]]
    scale = scale_for(min(times), max(times), 240)
    lines = [(name, *line) for line in spans]
    rows = lane_segments(faulty_frame, {name: scale}, lines, 1_000).collect()
    found = {(row["lane"], row["slot"], row["owner"]): row for row in rows}
    expected: dict[Any, list[list[Any]]] = defaultdict(list)
    for lane, own in enumerate(spans.values()):
        for span in own:
            slot = (span[0] - scale.origin_ms) // scale.width_ms
            expected[lane, slot, span[2]].append(span)
    assert found.keys() == expected.keys()
    for key, own in expected.items():
        ends = [end for _, end, _, _ in own]
        last = None if None in ends else max(ends)
        assert (found[key]["start_ms"], found[key]["end_ms"]) == (own[0][0], last), key
        assert found[key]["assignments"] == len(own)


def test_handovers_leaves_and_retries_are_counted_by_reason(
    faulty_figures: dict[str, Any], faulty_records: Records
) -> None:
    seen: Counter[str] = Counter()
    for name, records in faulty_records.items():
        figure, expected = faulty_figures[name], Counter[str]()
        for _, record in records:
            if record.kind == "Reassigned":
                expected[record.reason] += sum(record.counts)  # type: ignore[union-attr]
        assert {r["reason"]: r["messages"] for r in figure["handovers"]["reasons"]} == expected
        assert {k: sum(v) for k, v in figure["handovers"]["over_time"].items()} == expected
        seen += expected
        nacks = Counter(r.attempt for _, r in records if r.kind == "Nacked")  # type: ignore[union-attr]
        assert dict(figure["retries"]["attempts"]) == nacks
        left = Counter(r.reason for _, r in records if r.kind == "SubscriberLeft")  # type: ignore[union-attr]
        assert {r["reason"]: r["records"] for r in figure["subscribers"]["left_reasons"]} == left
    assert set(seen) >= {"left", "crash", "join"}


def test_work_per_subscriber_and_jains_index(
    faulty_figures: dict[str, Any], faulty_records: Records
) -> None:
    for name, records in faulty_records.items():
        acked: dict[str, Counter[str]] = defaultdict(Counter)
        for _, record in records:
            if record.kind in ("Subscribed", "Acked"):
                work = sum(getattr(record, "counts", [0]))
                acked[record.subscription][record.subscriber] += work  # type: ignore[union-attr]
        members = faulty_figures[name]["subscribers"]
        for row in members["rows"]:
            assert row["acked"] == sum(row["over_time"])
            assert row["acked"] == acked[row["subscription"]][row["subscriber"]]
        for one in members["fairness"]:
            work_of = acked[one["subscription"]].values()
            squares = sum(value * value for value in work_of)
            assert one["subscribers"] == len(work_of)
            if squares:
                jain = sum(work_of) ** 2 / len(work_of) / squares
                assert one["index"] == pytest.approx(jain, abs=1e-4)


def test_the_number_of_jobs_is_bounded(spark: SparkSession, faulty_frame: DataFrame) -> None:
    faulty_frame.count()
    context = spark.sparkContext
    context.setJobGroup("figures", "all figures")
    try:
        collect_figures(faulty_frame)
    finally:
        context.setLocalProperty("spark.jobGroup.id", "")
    assert QUERIES <= len(context.statusTracker().getJobIdsForGroup("figures")) <= JOBS_MAX


def test_a_parked_partition_that_is_given_up_settles_its_head(
    spark: SparkSession, tmp_path: Path
) -> None:
    driven = Driven(poison="park_partition", attempts_max=1)
    driven.subscribe("w")
    driven.publish("a", b"1", b"2", b"3")
    epoch = driven.dispatch()["w"][0].delivered.epochs[0]
    driven.do(c.Nack("default", "w", "w-1", epoch, 1, "poison"))
    driven.do(c.Redrive("default", drop=True))
    (figure,) = collect_figures(frame_of(spark, tmp_path, driven))["channels"]
    (depth,) = figure["depth"]["subscriptions"]
    assert (depth["depth"][-1], depth["in_flight"][-1]) == (2, 0)
    assert driven.channel.unsettled() == 2
    (row,) = figure["parked"]["rows"]
    assert (row["scope"], row["reason"], row["fate"]) == ("partition", "poison", "given up")


def test_the_fate_of_a_parked_message_is_told(spark: SparkSession, tmp_path: Path) -> None:
    driven = Driven(attempts_max=1)
    driven.subscribe("w")
    for name in ("again", "still"):
        driven.publish(name, b"1")
        epoch = driven.dispatch()["w"][0].delivered.epochs[0]
        driven.do(c.Nack("default", "w", "w-1", epoch, 1, f"{name} fails"))
    driven.do(c.Redrive("default", PartitionKey("p", "again")))
    (figure,) = collect_figures(frame_of(spark, tmp_path, driven))["channels"]
    fates = {row["partition"]: row["fate"] for row in figure["parked"]["rows"]}
    assert fates == {"again": "sent again", "still": None}
    assert figure["depth"]["subscriptions"][0]["depth"][-1] == driven.channel.unsettled() == 1


def test_what_is_collected_is_bounded_and_says_what_was_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Many channels, partitions, subscribers, parked messages and reasons, small limits."""
    many = []
    for number in range(4):
        driven = Driven(f"channel-{number}", checked=False, attempts_max=1)
        for worker in range(6):
            driven.subscribe(f"w{worker}", prefetch=2)
        for partition in range(20 + number):
            driven.now_ms += 977
            driven.publish(f"k{partition}", b"1")
            for who, sends in driven.dispatch().items():
                for epoch in sends[0].delivered.epochs:
                    driven.do(c.Nack("default", who, f"{who}-1", epoch, 1, f"r{partition}"))
        many.append(driven)
    limits = Limits(
        channels=2, buckets=10, lanes=3, segments=2, subscribers=2, parked=5, reasons=4
    )
    figures = collect_figures(frame_of(spark, tmp_path, *many), limits)
    assert [one["channel"] for one in figures["channels"]] == ["channel-3", "channel-2"]
    assert figures["channels_left_out"]["channels"] == 2
    assert figures["channels_left_out"]["messages"] == 41
    one = figures["channels"][0]
    assert one["buckets"] <= 10 and len(one["flow"]["published"]) == one["buckets"]
    assert len(one["lanes"]["rows"]) == 3 and one["lanes"]["left_out"] == 20
    assert len(one["subscribers"]["rows"]) == 2
    assert sum(row["members"] for row in one["subscribers"]["rest"]) == 4
    assert len(one["parked"]["rows"]) == 5 and one["parked"]["left_out"] == 18
    reasons = dict(one["retries"]["reasons"]["Nacked"])
    assert len(reasons) == 5 and reasons["(all other reasons)"] == 19


def test_a_sample_of_the_messages_has_the_same_latencies(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One large partition: the sample is of blocks of its messages, and the same each time.

    Published, Delivered and Acked follow each other in a rhythm; the records that are looked at to
    choose the lanes must not be out of step with it.
    """
    driven = Driven(checked=False)
    driven.subscribe("w", prefetch=10_000)
    for first in range(1, 64 * BLOCK, BLOCK // 2):
        driven.now_ms += 10
        bodies = [b""] * (BLOCK // 2)
        driven.do(publish_command("p", {"k": (first, bodies)}))
        driven.now_ms += 7
        epoch = driven.dispatch()["w"][0].delivered.epochs[0]
        driven.now_ms += 13
        driven.ack("w", epoch, first + BLOCK // 2 - 1)
    frame = frame_of(spark, tmp_path, driven)
    limits = Limits(sampled_messages=400, sampled_records=20)
    (one,) = collect_figures(frame, limits)["channels"]
    assert len(one["lanes"]["rows"]) == 1 and not one["lanes"]["exact"]
    assert one["latency"]["one_in"] == 64 * BLOCK // 400
    assert 0 < one["latency"]["handling"]["overall"]["messages"] < 20 * BLOCK
    assert one["latency"]["handling"]["overall"]["max"] == 20
    assert one["latency"]["delivery"]["overall"]["p50"] == 7
    assert collect_figures(frame, limits)["channels"][0]["latency"] == one["latency"]


@pytest.mark.parametrize("number", [2, 3])
def test_a_damaged_journal_still_has_figures(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    """Each ``number``-th record lost its arrays, its time or its names; the others are drawn."""
    driven = Driven(attempts_max=2)
    driven.subscribe("w")
    for partition in range(12):
        driven.now_ms += 500
        driven.publish(f"k{partition}", b"1", b"2")
        epoch = driven.dispatch()["w"][0].delivered.epochs[0]
        driven.do(c.Nack("default", "w", "w-1", epoch, 1, "no", final=partition % 2 > 0))
    frame = frame_of(spark, tmp_path, driven)
    hit = F.pmod("sequence", F.lit(number)) == 0
    for some, names in enumerate((("counts", "epochs"), ("at_ms",), ("count", "reason"),
                                  ("firsts", "sequences", "publishers"), ("partitions",),
                                  ("subscriber", "subscription", "attempt", "scope"))):  # fmt: skip
        lost = hit & (F.pmod(F.floor(F.col("sequence") / number), F.lit(6)) == some)
        for name in names:
            frame = frame.withColumn(name, F.when(~lost, F.col(name)))
    (one,) = collect_figures(frame)["channels"]
    assert sum(one["flow"]["published"]) > 4
    json.dumps(one, allow_nan=False)


def test_a_journal_without_records_has_no_channels(faulty_frame: DataFrame) -> None:
    figures = collect_figures(faulty_frame.filter("false"))
    assert figures["channels"] == []


def test_a_channel_that_was_only_created_has_figures(spark: SparkSession, tmp_path: Path) -> None:
    (one,) = collect_figures(frame_of(spark, tmp_path, Driven()))["channels"]
    assert one["buckets"] == 1 and one["flow"]["acked"] == [0]
    assert one["lanes"]["rows"] == [] and one["subscribers"]["rows"] == []


@pytest.mark.parametrize("span_ms", [0, 99, 100, 24_000, 10**6, 10**9, 10**12])
def test_an_axis_covers_the_journal_with_few_round_buckets(span_ms: int) -> None:
    start = 1_700_000_012_345
    scale = scale_for(start, start + span_ms, 240)
    assert scale.origin_ms <= start < scale.origin_ms + scale.width_ms
    assert start + span_ms < scale.origin_ms + scale.count * scale.width_ms
    assert isinstance(scale, Scale) and 1 <= scale.count <= 240


@pytest.mark.parametrize("partitions", [1, 4, 1_000, 1_000_000])
@pytest.mark.parametrize("messages", [10, 10**6, 10**8])
def test_a_sample_is_about_as_large_as_it_should_be(messages: int, partitions: int) -> None:
    sample = sample_for(messages, partitions, 200_000)
    taken = messages / (sample.partitions * sample.blocks)
    assert taken == messages if messages <= 200_000 else 200_000 <= taken <= 500_000
    assert sample.partitions == 1 or partitions / sample.partitions >= BLOCK
