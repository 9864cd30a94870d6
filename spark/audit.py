"""The audit: read a journal and the clients' histories, run every check, answer with a Verdict.

The order of reading is what makes a growing journal safe to judge. First the end of each channel
is noted (``known_upto``), then the histories are read, then the journal up to its end by then.
Whatever a client has written of was in the journal before, so it is in what is read after; and
whatever was in the journal at first is in the histories, since clients write before they call.

What may not live here: the definition of an anomaly (``spark.checks``), how a frame is made
(``spark.frames``), and what follows from what was found (``spark.verdict``).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import reduce
from typing import Any, Callable, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from broker.core.anomalies import ANOMALIES
from spark import checks, history_frame, journal_frame, scan, topic_frame
from spark.checks.check import Check
from spark.frames import Frames
from spark.session import STORAGE, fit
from spark.topic_frames import TopicFrames
from spark.verdict import Channel, Question, Verdict, reasons_against

__all__ = ["Channel", "Outcome", "Question", "Verdict", "audit"]

#: How many offenders of each anomaly are named.
OFFENDERS_MAX = 5

#: Says what is going on; ``None`` ends the last step.
Say = Callable[[str], None]


@dataclass
class Outcome:
    """The verdict, and the records for who wants to draw them. ``release`` lets them go."""

    verdict: Verdict
    records: DataFrame
    frames: Frames

    @property
    def drawn(self) -> DataFrame:
        """The records of channels; topics have no figures."""
        return self.records.where(~topic_frame.of_topic())

    def release(self) -> None:
        """Free what Spark holds of the journal."""
        self.frames.release()
        self.records.unpersist()


def audit(session: SparkSession, question: Question, say: Say = lambda _: None) -> Outcome:
    """Judge a journal. Raises JournalError when it cannot be found or read."""
    began = time.monotonic()
    known = {item.channel: item.last for item in scan.extents(question.place, question.channel)}
    reasons: list[str] = []
    histories = None
    if question.histories is not None:
        say("reading the histories")
        written = history_frame.lines(session, question.histories)
        histories = written.where(_is_asked(question.channel)).persist(STORAGE)
        reasons += _incomplete(histories)
    channels = {
        item.channel: Channel(item.channel, item, known.get(item.channel, 0))
        for item in scan.extents(question.place, question.channel)
    }
    total = sum(item.expected.last - item.expected.first + 1 for item in channels.values())
    say(f"reading {total:,} records")
    fit(session, total)
    records = read_records(session, question, channels).persist(STORAGE)
    _summarise(records, channels)
    _find_births(question.place, channels)
    frames = _frames(session, question, channels, records, histories)
    say("sorting them by partition")
    found = _look_over(frames, channels)
    say("running the checks")
    heard = _histories_compared(histories)
    results = _run(frames, _totals(channels, found, heard), channels)
    reasons += reasons_against(channels, question)
    verdict = Verdict(
        question, list(channels.values()), reasons, results, heard, time.monotonic() - began
    )
    if histories is not None:
        histories.unpersist()
    return Outcome(verdict, records, frames)


def _frames(
    session: SparkSession,
    question: Question,
    channels: dict[str, Channel],
    records: DataFrame,
    histories: DataFrame | None,
) -> Frames:
    found, judged = channels.values(), _judged(session, channels)
    still = all(item.known_upto == item.expected.last for item in found)
    topics = None
    if any(item.is_topic for item in found):
        bodies = None if histories is None else read_bodies(session, question, channels)
        topics = TopicFrames(
            records, judged, checks.ALL, histories, bodies, drained=question.drained, still=still
        )
    return Frames(
        records, judged, checks.ALL, histories, topics, drained=question.drained,
        whole=not any(item.fault or item.is_trimmed for item in found if not item.is_topic),
        still=still,
    )  # fmt: skip


def _is_asked(channel: str | None) -> Column:
    """Whether a line of a history is about the channel that is asked for.

    A client's history is of all its topics, and is whole only with all its lines.
    """
    of_topics = F.col("client") == "topic"
    if channel is None:
        return F.lit(True)
    if topic_frame.is_topic(channel):
        return of_topics
    return ~of_topics & (F.col("channel") == channel)


def read_records(
    session: SparkSession, question: Question, channels: dict[str, Channel]
) -> DataFrame:
    """The records of the channels, up to where they ended when the audit looked."""
    upto = {name: channel.expected.last for name, channel in channels.items()}
    columns = dict.fromkeys((*journal_frame.AUDIT_COLUMNS, *question.more_columns))
    return _read(session, question, upto, ",".join(columns))


def read_bodies(
    session: SparkSession, question: Question, channels: dict[str, Channel]
) -> DataFrame:
    """The same records, of topics only: where each message is, and what is in it.

    Read apart, so that the bodies of channels stay where they are; the checksums were looked at.
    """
    upto = {item.name: item.judged_upto if item.is_topic else 0 for item in channels.values()}
    return _read(session, question, upto, "channel,sequence,kind,position,bodies")


def _read(
    session: SparkSession, question: Question, upto: dict[str, int], columns: str
) -> DataFrame:
    reader = session.read.format("fairlead").option("upto", json.dumps(upto))
    for name, value in (
        ("store", question.place.store), ("archive", question.place.archive),
        ("channel", question.channel), ("columns", columns),
    ):  # fmt: skip
        if value is not None:
            reader = reader.option(name, value)
    # A channel that was made since then has no end yet, and is left for the next audit.
    return reader.load().where(F.col("channel").isin(list(upto)))


def _incomplete(histories: DataFrame) -> list[str]:
    found = history_frame.incomplete(histories).limit(OFFENDERS_MAX).collect()
    return [
        f"history {row['file']} has {row['found']} lines of {row['expected']}: it proves nothing"
        for row in found
    ]


def _summarise(records: DataFrame, channels: dict[str, Channel]) -> None:
    """One pass over the records: how many there are of each kind, and the first damaged one."""
    runs = F.coalesce(F.size("firsts"), F.lit(1))
    rows = (
        records.groupBy("channel", "kind")
        .agg(
            F.count("*").alias("records"),
            F.sum(F.when(F.col("firsts").isNull(), 1).otherwise(runs)).alias("runs"),
            F.sum("count").alias("messages"),
            F.min("sequence").alias("first"),
            F.max("sequence").alias("last"),
            F.min("at_ms").alias("started"),
            F.max("at_ms").alias("ended"),
            F.min(F.when(~F.col("intact"), F.col("sequence"))).alias("damaged"),
            F.sum(F.size(F.coalesce("ids", F.array()))).alias("ids"),
            F.max(F.when(F.col("kind") == "TopicCreated", F.col("stamp"))).alias("born"),
        )
        .collect()
    )
    for row in rows:
        _add(channels[row["channel"]], row)
    for channel in channels.values():
        _find_fault(records, channel)


def _add(channel: Channel, row: Row) -> None:
    channel.compared[row["kind"]] = row["runs"]
    channel.compared["ids"] = channel.compared.get("ids", 0) + row["ids"]
    channel.records += row["records"]
    channel.first = min(channel.first or row["first"], row["first"])
    channel.last = max(channel.last, row["last"])
    if row["kind"] == ("Put" if channel.is_topic else "Published"):
        channel.messages = row["messages"]
    channel.born = channel.born if row["born"] is None else row["born"]
    starts = [item for item in (channel.started_at_ms, row["started"]) if item is not None]
    ends = [item for item in (channel.ended_at_ms, row["ended"]) if item is not None]
    channel.started_at_ms, channel.ended_at_ms = min(starts), max(ends)
    if row["damaged"] is not None:
        text = "the record is damaged, or does not continue the one before it"
        _blame(channel, row["damaged"], text)


def _find_births(place: scan.Place, channels: dict[str, Channel]) -> None:
    """A topic whose beginning was released is told from an earlier one by its base."""
    for channel in channels.values():
        if channel.is_topic and channel.born is None:
            channel.born = scan.born(place, channel.name)


def _blame(channel: Channel, sequence: int, fault: str) -> None:
    if channel.fault_at is None or sequence < channel.fault_at:
        channel.fault_at, channel.fault = sequence, fault


def _find_fault(records: DataFrame, channel: Channel) -> None:
    """Where records are missing; looked for only if the numbers say that some are."""
    extent = channel.expected
    if not channel.records:
        if extent.last >= extent.first:
            _blame(channel, extent.first, "the record is missing, and all after it")
        return
    if channel.first > extent.first:
        _blame(channel, extent.first, f"the record is missing; the first one is {channel.first}")
    if channel.records != channel.last - channel.first + 1:
        order = Window.orderBy("sequence")
        gaps = (
            records.where(F.col("channel") == channel.name)
            .select("sequence", F.lag("sequence").over(order).alias("before"))
            .where(F.col("sequence") != F.col("before") + 1)
        )
        for row in gaps.orderBy("sequence").limit(1).collect():
            text = f"the record is missing; the next one that exists is {row['sequence']}"
            _blame(channel, row["before"] + 1, text)
    if channel.last < extent.last:
        text = f"the record is missing; the journal ends at {extent.last}"
        _blame(channel, channel.last + 1, text)


def _judged(session: SparkSession, channels: dict[str, Channel]) -> DataFrame:
    """One small row per channel. Channels whose beginning is elsewhere are not judged."""
    rows = [
        (
            item.name, item.judged_upto if item.is_topic or not item.is_trimmed else 0, item.fault,
            item.fault is None and not item.is_trimmed, item.known_upto, item.is_trimmed,
            item.born,
        )
        for item in channels.values()
    ]  # fmt: skip
    schema = (
        "channel string, judged_upto long, fault string, is_whole boolean, known_upto long, "
        "is_trimmed boolean, born long"
    )
    return session.createDataFrame(rows, schema)


class Found(NamedTuple):
    """What the pass over the timeline left to look at."""

    suspect_rows: int
    irregular_messages: int
    suspect_topic_rows: int = 0


def _look_over(frames: Frames, channels: dict[str, Channel]) -> Found:
    """One pass over everything: what is left in the end, what to look at more closely."""
    found = Found(0, 0)
    if not all(item.is_topic for item in channels.values()):
        found = _end_of_lines(frames, channels)
    if frames.topics is not None:
        found = found._replace(suspect_topic_rows=_end_of_topics(frames.topics, channels))
    return found


def _end_of_topics(frames: TopicFrames, channels: dict[str, Channel]) -> int:
    """What the open subscriptions of each topic are owed; how many records are suspect."""
    suspects = F.lit(None).cast("string").alias("channel"), F.count("*").alias("count")
    rows = (
        frames.places.groupBy("channel")
        .agg(F.count("*").alias("count"), F.sum("pending").alias("pending"))
        .unionByName(
            frames.marked.where("suspect").select(*suspects), allowMissingColumns=True
        )
        .collect()
    )
    found = 0
    for row in rows:
        if row["channel"] is None:
            found = row["count"]
        else:
            channels[row["channel"]].pending = row["pending"] or 0
            channels[row["channel"]].compared["topic places"] = row["count"]
    return found


def _end_of_lines(frames: Frames, channels: dict[str, Channel]) -> Found:
    """What is left at the end of each line, and what is to be looked at more closely."""
    irregular = F.col("irregular") & (F.col("kind") == "Published")
    seen = frames.marked.agg(
        F.sum(F.when(F.col("suspect"), 1).otherwise(0)).alias("suspects"),
        F.sum(F.when(irregular, F.col("count")).otherwise(0)).alias("irregular"),
    ).collect()[0]
    rows = (
        frames.lines.groupBy("channel")
        .agg(
            F.countDistinct("publisher", "partition").alias("partitions"),
            F.count("*").alias("lines"),
            F.sum(F.when(F.col("is_alive"), F.col("pending"))).alias("pending"),
        )
        .collect()
    )
    for row in rows:
        channel = channels[row["channel"]]
        channel.partitions, channel.pending = row["partitions"], row["pending"] or 0
        channel.compared["lines"] = row["lines"]
    return Found(seen["suspects"] or 0, seen["irregular"] or 0)


#: Frames that are empty, and not worth a plan, unless the journal has this.
_ONLY_WITH = {
    "timeline": ("suspect rows",), "handed": ("irregular messages",),
    "placed": ("irregular messages",), "positions": ("irregular messages",), "ids": ("ids",),
    "ledger": ("claims",), "faults": ("faults",), "redrives": ("Redriven",),
    "topic_timeline": ("suspect topic rows",),
}  # fmt: skip
_CLAIMS = ("SubscriptionDeleted", "QueuesKilled", "QueuesRestored")


def _totals(
    channels: dict[str, Channel], found: Found, heard: dict[str, int]
) -> dict[str, int]:
    """How much there is of everything that a check may compare."""
    totals = {f"{event} lines": count for event, count in heard.items()}
    for channel in channels.values():
        for name, count in channel.compared.items():
            totals[name] = totals.get(name, 0) + count
    totals["records"] = sum(channel.records for channel in channels.values())
    totals["claims"] = sum(totals.get(kind, 0) for kind in _CLAIMS)
    totals["faults"] = sum(channel.fault is not None for channel in channels.values())
    totals["irregular messages"] = found.irregular_messages
    totals["suspect rows"] = found.suspect_rows
    totals["suspect topic rows"] = found.suspect_topic_rows
    return totals


def _run(
    frames: Frames, totals: dict[str, int], channels: dict[str, Channel]
) -> list[dict[str, Any]]:
    """Run what there is something to run on; one result per anomaly."""
    skipped: dict[Check, str] = {}
    parts: list[DataFrame] = []
    has_channels = not all(item.is_topic for item in channels.values())
    for check in checks.ALL:
        if frames.topics is None and check.frame.startswith("topic_"):
            skipped[check] = "there is no topic"
            continue
        if not has_channels and not check.frame.startswith(("topic_", "faults")):
            skipped[check] = "there is no channel"
            continue
        needs = _ONLY_WITH.get(check.frame)
        if needs is not None and not any(map(totals.get, needs)):
            continue  # the pass over all rows has shown that there is nothing to find
        frame = frames.named(check.frame)
        if frame is None:
            skipped[check] = _NOT_GIVEN.get(check.frame, "no histories were given")
        else:
            parts.append(check.violations(frame))
    offenders = _collect(parts, channels)
    return [_result(name, offenders.get(name, []), totals, skipped) for name in ANOMALIES]


_NOT_DRAINED = "the run was not said to be over (--drained)"
_NOT_GIVEN = {"drained": _NOT_DRAINED, "topic_drained": _NOT_DRAINED}


def _collect(parts: list[DataFrame], channels: dict[str, Channel]) -> dict[str, list[Row]]:
    """The first offenders of each anomaly, with the number of all; and the number per channel."""
    if not parts:
        return {}
    by_anomaly = Window.partitionBy("anomaly")
    order = by_anomaly.orderBy("channel", "sequence", "subscription", "partition", "first")
    union = reduce(DataFrame.unionByName, parts)
    by_channel = Window.partitionBy("anomaly", "channel")
    rows = (
        union.withColumn("place", F.row_number().over(order))
        .withColumn("total", F.count("*").over(by_anomaly))
        .withColumn("in_channel", F.count("*").over(by_channel))
        .withColumn("place_in_channel", F.row_number().over(by_channel.orderBy("place")))
        .where((F.col("place") <= OFFENDERS_MAX) | (F.col("place_in_channel") == 1))
        .collect()
    )
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda item: (item["anomaly"], item["place"])):
        if row["place_in_channel"] == 1 and row["channel"] in channels:
            channels[row["channel"]].violations += row["in_channel"]
        found.setdefault(row["anomaly"], []).append(row)
    return found


def _result(
    name: str, rows: list[Row], totals: dict[str, int], skipped: dict[Check, str]
) -> dict[str, Any]:
    ours = [check for check in checks.ALL if check.anomaly == name]
    counted = {kind for check in ours if check not in skipped for kind in check.compares}
    compared = sum(totals.get(kind, 0) for kind in counted)
    reasons = "; ".join(sorted({skipped[check] for check in ours if skipped.get(check)})) or None
    is_partly = any(check not in skipped for check in ours)
    return {
        "name": name, "definition": ANOMALIES[name], "compared": compared,
        "violations": rows[0]["total"] if rows else 0,
        "offenders": [_offender(row) for row in rows if row["place"] <= OFFENDERS_MAX],
        "skipped": None if is_partly else reasons, "partly": reasons if is_partly else None,
    }  # fmt: skip


def _offender(row: Row) -> dict[str, Any]:
    names = (
        "channel", "sequence", "subscription", "publisher", "partition", "subscriber", "first",
        "last", "detail",
    )  # fmt: skip
    return {name: row[name] for name in names}


def _histories_compared(histories: DataFrame | None) -> dict[str, int]:
    """How many histories of each kind there are, and how many lines of each event."""
    heard = {"publishers": 0, "subscribers": 0, "topic_clients": 0, "lines": 0}
    if histories is None:
        return heard
    # A history of a topic client is of one life; its events have names that others have too.
    counted = F.when(F.col("client") == "topic", F.concat(F.lit("topic "), F.col("event")))
    rows = (
        histories.groupBy("client", "event", F.coalesce(counted, "event").alias("counted"))
        .agg(F.count("*").alias("lines"), F.countDistinct("name").alias("names"))
        .collect()
    )
    for row in rows:
        heard["lines"] += row["lines"]
        if row["event"] != "opened":
            heard[row["counted"]] = heard.get(row["counted"], 0) + row["lines"]
        elif row["client"] == "topic":
            heard["topic_clients"] += row["names"]
        else:
            heard[row["client"] + "s"] += row["lines"]
    return heard
