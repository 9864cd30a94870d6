"""From runs to messages, for the segments that must be compared message by message.

In a regular segment (see :mod:`spark.journal_frame`) the runs say it all. In the others, usually
few, positions and sequences are compared one by one:

- ``accepted``: one row per message that a line is owed: its sequence (``message``), timestamp, and
  the record that accepted it;
- ``handed``: one row per position that was handed out: which message, by which record at first,
  whether it was recorded as late;
- ``placed``: the two joined; ``at`` and ``position`` are NULL where a message was never handed out.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.journal_frame import LINE, kind_is

#: What identifies a segment; ``newest`` is the newest timestamp before it.
SEGMENT = (*LINE, "start", "newest")


def runs_of(rows: DataFrame, records: DataFrame) -> DataFrame:
    """These rows of the timeline, with what their records tell of each message."""
    # From 5 up to 4 would be two messages, counted down.
    some = kind_is("Redriven") | (F.col("count") > 0)
    wanted = rows.where(kind_is("Published", "Delivered", "Redriven") & some).select(
        *LINE, "segment.start", "segment.newest", "sequence", "kind", "first", "last", "count",
        "message_first", "offset", "positions", "given_up",
    )  # fmt: skip
    details = records.where(kind_is("Published", "Delivered", "Redriven")).select(
        "channel", "sequence", "late", "dropped", "timestamps"
    )
    return details.join(wanted, ["channel", "sequence"])


def accepted(events: DataFrame) -> DataFrame:
    """(SEGMENT, message, timestamp, sequence): what each line is owed."""
    inside = F.filter("dropped", lambda x: (x >= F.col("offset")) & (x < _end()))
    before = F.size(F.filter("dropped", lambda x: x < F.col("offset")))
    gone = F.transform(inside, lambda x: F.col("first") + x - F.col("offset"))
    published = events.where(kind_is("Published")).select(
        *SEGMENT, "sequence", "timestamps", (F.col("offset") - before).alias("from"),
        F.array_except(F.sequence("first", "last"), gone).alias("messages"),
    )  # fmt: skip
    stamps = F.when(
        F.size("timestamps") == 1,
        F.transform("messages", lambda _: F.element_at("timestamps", 1)),
    ).otherwise(
        # Forged indexes may lie before the batch, and Spark refuses to slice there.
        F.slice("timestamps", F.greatest("from", F.lit(0)) + 1, F.size("messages"))
    )
    each = F.explode(
        F.arrays_zip(F.col("messages").alias("message"), stamps.alias("timestamp"))
    ).alias("each")
    return published.select(*SEGMENT, "sequence", each).select(*SEGMENT, "sequence", "each.*")


def _end() -> Column:
    return F.col("offset") + F.col("count")


def handed(events: DataFrame) -> DataFrame:
    """(SEGMENT, position, message ...): what each position stands for, and since which record."""
    delivered = events.where(kind_is("Delivered")).select(
        *SEGMENT, "sequence", "first", "message_first", "offset", "late",
        F.explode(F.sequence("first", "last")).alias("position"),
    )  # fmt: skip
    place = F.col("position") - F.col("first")
    each = delivered.select(
        *SEGMENT, "position", "sequence",
        (F.col("message_first") + place).alias("message"),
        F.array_contains("late", F.col("offset") + place).alias("is_late"),
    )  # fmt: skip
    return each.groupBy(*SEGMENT, "position").agg(
        F.min_by("message", "sequence").alias("message"),
        F.min("message").alias("message_min"),
        F.max("message").alias("message_max"),
        F.min("sequence").alias("sequence"),
        F.min_by("is_late", "sequence").alias("is_late"),
    )


def redriven(events: DataFrame) -> DataFrame:
    """Positions that were parked and whose message went back to its line, and by which record."""
    back = events.where(kind_is("Redriven") & ~F.col("given_up"))
    each = back.select(*LINE, "start", "sequence", F.explode("positions").alias("position"))
    return each.groupBy(*LINE, "start", "position").agg(F.max("sequence").alias("redriven_at"))


def placed(accepted_frame: DataFrame, handed_frame: DataFrame, back: DataFrame) -> DataFrame:
    """Each message with its place; of one that was redriven, the place it had last."""
    message = Window.partitionBy(*LINE, "start", "message").orderBy("position")
    first = handed_frame.join(back, [*LINE, "start", "position"], "left").withColumn(
        "next_at", F.lead("sequence").over(message)
    )
    # A redriven message has left its place, but not before it was redriven.
    stays = F.col("redriven_at").isNull() | (F.col("next_at") < F.col("redriven_at"))
    by_message = first.groupBy(*LINE, "start", "message").agg(
        F.max("position").alias("position"),
        F.max_by("sequence", "position").alias("at"),
        F.max_by("is_late", "position").alias("is_late"),
        F.sum(F.when(stays, 1).otherwise(0)).alias("places"),
        F.max(F.col("redriven_at").isNotNull()).alias("was_redriven"),
    )
    return accepted_frame.withColumnRenamed("sequence", "published_at").join(
        by_message, [*LINE, "start", "message"], "full"
    )
