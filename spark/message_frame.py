"""From runs to messages, for the lines whose messages must be compared one by one.

In a regular line (see :func:`spark.journal_frame.irregular`) the runs say it all. In the others,
usually few, positions and sequences are compared message by message:

- ``accepted``: one row per message that a line is owed: its sequence (``message``), timestamp, and
  the record that accepted it;
- ``handed``: one row per position that was handed out: which message, by which record at first,
  whether it was recorded as late;
- ``placed``: the two joined; ``at`` and ``position`` are NULL where a message was never handed out.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.journal_frame import LINE, kind_is, line_events

_MORE = ("late", "dropped", "timestamps")


def events_of(records: DataFrame, lives: DataFrame, lines: DataFrame) -> DataFrame:
    """The events of these lines, with what is known of each message."""
    wanted = records.where(kind_is("Published", "Delivered", "Redriven"))
    return line_events(wanted, lives, *_MORE).join(lines.select(*LINE), [*LINE], "left_semi")


def accepted(events: DataFrame) -> DataFrame:
    """(LINE, message, timestamp, sequence): what each line is owed."""
    inside = F.filter("dropped", lambda x: (x >= F.col("offset")) & (x < _end()))
    before = F.size(F.filter("dropped", lambda x: x < F.col("offset")))
    gone = F.transform(inside, lambda x: F.col("first") + x - F.col("offset"))
    published = events.where(kind_is("Published")).select(
        *LINE, "sequence", "timestamps", (F.col("offset") - before).alias("start"),
        F.array_except(F.sequence("first", "last"), gone).alias("messages"),
    )  # fmt: skip
    stamps = F.when(
        F.size("timestamps") == 1,
        F.transform("messages", lambda _: F.element_at("timestamps", 1)),
    ).otherwise(F.slice("timestamps", F.col("start") + 1, F.size("messages")))
    each = F.explode(
        F.arrays_zip(F.col("messages").alias("message"), stamps.alias("timestamp"))
    ).alias("each")
    return published.select(*LINE, "sequence", each).select(*LINE, "sequence", "each.*")


def _end() -> Column:
    return F.col("offset") + F.col("count")


def handed(events: DataFrame) -> DataFrame:
    """(LINE, position, message, message_max, at, is_late): what each position stands for."""
    delivered = events.where(kind_is("Delivered")).select(
        *LINE, "sequence", "first", "message_first", "offset", "late",
        F.explode(F.sequence("first", "last")).alias("position"),
    )  # fmt: skip
    place = F.col("position") - F.col("first")
    each = delivered.select(
        *LINE, "position", "sequence",
        (F.col("message_first") + place).alias("message"),
        F.array_contains("late", F.col("offset") + place).alias("is_late"),
    )  # fmt: skip
    return each.groupBy(*LINE, "position").agg(
        F.min_by("message", "sequence").alias("message"),
        F.min("message").alias("message_min"),
        F.max("message").alias("message_max"),
        F.min("sequence").alias("sequence"),
        F.min_by("is_late", "sequence").alias("is_late"),
    )


def redriven(events: DataFrame) -> DataFrame:
    """(LINE, position): positions that were parked and whose message went back to its line."""
    back = events.where(kind_is("Redriven") & ~F.col("given_up"))
    return back.select(*LINE, F.explode("positions").alias("position")).distinct()


def placed(accepted_frame: DataFrame, handed_frame: DataFrame, back: DataFrame) -> DataFrame:
    """Each message with its place; of one that was redriven, the place it had last."""
    first = handed_frame.join(
        back.withColumn("was_redriven", F.lit(True)), [*LINE, "position"], "left"
    )
    by_message = first.groupBy(*LINE, "message").agg(
        F.max("position").alias("position"),
        F.max_by("sequence", "position").alias("at"),
        F.max_by("is_late", "position").alias("is_late"),
        F.sum(F.when(F.col("was_redriven").isNull(), 1).otherwise(0)).alias("places"),
        F.coalesce(F.max("was_redriven"), F.lit(False)).alias("was_redriven"),
    )
    return accepted_frame.withColumnRenamed("sequence", "published_at").join(
        by_message, [*LINE, "message"], "full"
    )
