"""The audit: read a journal and the clients' histories, run every check, answer with a Verdict.

The order of reading is what makes a growing journal safe to judge. First the end of each channel
is noted (``known_upto``), then the histories are read, then the journal up to its end by then.
Whatever a client has written of was in the journal before, so it is in what is read after; and
whatever was in the journal at first is in the histories, since clients write before they call.

What may not live here: the definition of an anomaly (``spark.checks``) and how a frame is made
(``spark.frames``).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Callable, NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from broker import __version__
from broker.core.anomalies import ANOMALIES, INVALID, UNKNOWN, VALID
from spark import checks, history_frame, journal_frame, scan
from spark.checks.check import Check
from spark.frames import STORAGE, Frames
from spark.session import fit

#: How many offenders of each anomaly are named.
OFFENDERS_MAX = 5

#: Says what is going on; ``None`` ends the last step.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Question:
    """What is to be audited."""

    place: scan.Place
    channel: str | None = None
    histories: str | None = None
    drained: bool = False
    """The run is over: what is neither settled nor parked by now counts as unseen."""
    more_columns: tuple[str, ...] = ()
    """Further columns of the records, for who draws them afterwards."""


@dataclass
class Channel:
    """What was found of one channel."""

    name: str
    expected: scan.Extent
    known_upto: int
    records: int = 0
    first: int = 0
    last: int = 0
    messages: int = 0
    partitions: int = 0
    pending: int = 0
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    fault_at: int | None = None
    fault: str | None = None
    violations: int = 0
    compared: dict[str, int] = field(default_factory=dict)

    @property
    def is_trimmed(self) -> bool:
        """Records at its beginning are elsewhere."""
        return self.expected.first > 1

    @property
    def judged_upto(self) -> int:
        """The last record that is judged: the one before the first fault."""
        return self.expected.last if self.fault_at is None else self.fault_at - 1

    @property
    def verdict(self) -> str:
        """Of this channel alone."""
        if self.violations:
            return INVALID
        return VALID if self.compared.get("Delivered") and not self.is_trimmed else UNKNOWN


@dataclass
class Verdict:
    """The answer: valid, invalid or unknown, and how much was compared."""

    question: Question
    channels: list[Channel]
    reasons: list[str]
    checks: list[dict[str, Any]]
    histories: dict[str, int]
    seconds: float

    @property
    def verdict(self) -> str:
        """Invalid as soon as one thing is wrong; valid only if something was compared."""
        if any(channel.violations for channel in self.channels):
            return INVALID
        judged = [channel for channel in self.channels if channel.verdict == VALID]
        return VALID if judged and not self.reasons else UNKNOWN

    def to_dict(self) -> dict[str, Any]:
        """Everything, in values that JSON can carry."""
        place = self.question.place
        return {
            "verdict": self.verdict, "reasons": self.reasons, "store": place.store,
            "archive": place.archive, "histories": self.question.histories,
            "drained": self.question.drained,
            "records": sum(item.records for item in self.channels),
            "messages": sum(item.messages for item in self.channels),
            "partitions": sum(item.partitions for item in self.channels),
            "channels": [_channel_dict(item) for item in self.channels],
            "histories_compared": self.histories, "checks": self.checks,
            "seconds": round(self.seconds, 2), "version": __version__,
        }  # fmt: skip


def _channel_dict(channel: Channel) -> dict[str, Any]:
    return {
        "channel": channel.name, "verdict": channel.verdict, "upto": channel.judged_upto,
        "records": channel.records, "messages": channel.messages,
        "partitions": channel.partitions, "pending": channel.pending,
        "violations": channel.violations, "fault": channel.fault,
        "started_at_ms": channel.started_at_ms, "ended_at_ms": channel.ended_at_ms,
    }  # fmt: skip


@dataclass
class Outcome:
    """The verdict, and the records for who wants to draw them. ``release`` lets them go."""

    verdict: Verdict
    records: DataFrame
    frames: Frames

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
        if question.channel is not None:
            written = written.where(F.col("channel") == question.channel)
        histories = written.persist(STORAGE)
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
    found_all = channels.values()
    frames = Frames(
        records, _judged(session, channels), checks.ALL, histories, drained=question.drained,
        whole=not any(item.fault or item.is_trimmed for item in found_all),
        still=all(item.known_upto == item.expected.last for item in found_all),
    )  # fmt: skip
    say("sorting them by partition")
    found = _end_of_lines(frames, channels)
    say("running the checks")
    heard = _histories_compared(histories)
    results = _run(frames, _totals(channels, found, heard), channels)
    reasons += _reasons(channels, question)
    verdict = Verdict(
        question, list(channels.values()), reasons, results, heard, time.monotonic() - began
    )
    if histories is not None:
        histories.unpersist()
    return Outcome(verdict, records, frames)


def read_records(
    session: SparkSession, question: Question, channels: dict[str, Channel]
) -> DataFrame:
    """The records of the channels, up to where they ended when the audit looked."""
    upto = {name: channel.expected.last for name, channel in channels.items()}
    columns = dict.fromkeys((*journal_frame.AUDIT_COLUMNS, *question.more_columns))
    reader = session.read.format("fairlead").option("upto", json.dumps(upto))
    for name, value in (
        ("store", question.place.store), ("archive", question.place.archive),
        ("channel", question.channel), ("columns", ",".join(columns)),
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
    if row["kind"] == "Published":
        channel.messages = row["messages"]
    starts = [item for item in (channel.started_at_ms, row["started"]) if item is not None]
    ends = [item for item in (channel.ended_at_ms, row["ended"]) if item is not None]
    channel.started_at_ms, channel.ended_at_ms = min(starts), max(ends)
    if row["damaged"] is not None:
        text = "the record is damaged, or does not continue the one before it"
        _blame(channel, row["damaged"], text)


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
            item.name, item.judged_upto if not item.is_trimmed else 0, item.fault,
            item.fault is None and not item.is_trimmed, item.known_upto,
        )
        for item in channels.values()
    ]  # fmt: skip
    schema = "channel string, judged_upto long, fault string, is_whole boolean, known_upto long"
    return session.createDataFrame(rows, schema)


class Found(NamedTuple):
    """What the pass over the timeline left to look at."""

    suspect_rows: int
    irregular_messages: int


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
    return totals


def _run(
    frames: Frames, totals: dict[str, int], channels: dict[str, Channel]
) -> list[dict[str, Any]]:
    """Run what there is something to run on; one result per anomaly."""
    skipped: dict[Check, str] = {}
    parts: list[DataFrame] = []
    for check in checks.ALL:
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


_NOT_GIVEN = {"drained": "the run was not said to be over (--drained)"}


def _collect(parts: list[DataFrame], channels: dict[str, Channel]) -> dict[str, list[Row]]:
    """The first offenders of each anomaly, with the number of all; and the number per channel."""
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
    if histories is None:
        return {"publishers": 0, "subscribers": 0, "lines": 0}
    rows = histories.groupBy("client", "event").count().collect()
    heard = {"publishers": 0, "subscribers": 0, "lines": sum(row["count"] for row in rows)}
    for row in rows:
        if row["event"] == "opened":
            heard[row["client"] + "s"] += row["count"]
        else:
            heard[row["event"]] = heard.get(row["event"], 0) + row["count"]
    return heard


def _reasons(channels: dict[str, Channel], question: Question) -> list[str]:
    """Why the verdict cannot be valid, apart from anomalies."""
    reasons: list[str] = []
    if not channels:
        reasons.append(
            "there is no channel"
            + (f" {question.channel!r}" if question.channel else "")
            + " in it: nothing was compared"
        )
    for channel in channels.values():
        if channel.is_trimmed:
            reasons.append(
                f"channel {channel.name!r} begins at record {channel.expected.first}: the ones "
                "before it were trimmed; give the archive they are in (--archive)"
            )
        elif not channel.violations and not channel.compared.get("Delivered"):
            reasons.append(f"nothing of channel {channel.name!r} was delivered: nothing to compare")
    return reasons
