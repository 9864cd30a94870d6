"""late-unrecorded: recorded as late are exactly the messages older than one handed out before."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.checks.check import Check, text, violations
from spark.journal_frame import LINE

NAME = "late-unrecorded"


def _unrecorded(frame: DataFrame) -> DataFrame:
    before = (
        Window.partitionBy(*LINE, "start")
        .orderBy("position")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    there = frame.where(F.col("position").isNotNull() & F.col("published_at").isNotNull())
    # Before the segment everything was handed out: what counts is the newest there was.
    newest = F.greatest("newest", F.max("timestamp").over(before))
    older = F.coalesce(F.col("timestamp") < newest, F.lit(False))
    judged = there.withColumn("is_older", older)
    # A redriven message may have been on time when it was handed out first.
    wrong = (F.col("is_late") != F.col("is_older")) & ~F.col("was_redriven")
    return violations(
        judged.where(wrong)
        .withColumn("sequence", F.col("at"))
        .withColumn("first", F.col("position"))
        .withColumn("last", F.col("position")),
        NAME,
        text("message {message}: older than one before it: {is_older}; recorded: {is_late}"),
    )


CHECKS = (Check(NAME, "placed", ("irregular messages",), _unrecorded),)
