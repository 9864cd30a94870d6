"""late-unrecorded: recorded as late are exactly the messages older than one handed out before."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.checks.check import Check, at_position, text, violations
from spark.journal_frame import LINE

NAME = "late-unrecorded"


def _unrecorded(frame: DataFrame) -> DataFrame:
    before = (
        Window.partitionBy(*LINE, "start")
        .orderBy("position")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    there = frame.where(F.col("timestamp").isNotNull())
    # Before the segment everything was handed out: what counts is the newest there was.
    newest = F.greatest("newest", F.max("timestamp").over(before))
    older = F.coalesce(F.col("timestamp") < newest, F.lit(False))
    judged = there.withColumn("is_older", older)
    wrong = F.col("is_late") != F.col("is_older")
    return violations(
        at_position(judged.where(wrong)),
        NAME,
        text("message {message}: older than one before it: {is_older}; recorded: {is_late}"),
    )


CHECKS = (Check(NAME, "positions", ("irregular messages",), _unrecorded),)
