"""lost-write: what was accepted is in the journal, and is not left out when its turn has come."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.checks.check import Check, of_kind, over_rows, text, violations
from spark.journal_frame import LINE

NAME = "lost-write"


def _left_out(frame: DataFrame) -> DataFrame:
    """Never handed out, though a message after it was, while this one was there."""
    newer = (
        Window.partitionBy(*LINE, "start")
        .orderBy(F.desc("timestamp"), F.desc("message"))
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    owed = frame.where(F.col("published_at").isNotNull())
    judged = owed.withColumn("newer_at", F.max("at").over(newer))
    lost = judged.where(F.col("at").isNull() & (F.col("newer_at") > F.col("published_at")))
    return violations(
        lost.withColumn("sequence", F.col("published_at"))
        .withColumn("first", F.col("message"))
        .withColumn("last", F.col("message")),
        NAME,
        text("message {message} was left out; record {newer_at} handed out one after it"),
    )


def _dropped() -> Column:
    """Dropped as known before, though it was not."""
    return of_kind("DuplicatesDropped") & (F.col("last") > F.col("accepted_upto"))


def _answered(frame: DataFrame) -> DataFrame:
    """``frame``: what publishers were told is accepted, with what the journal has of it."""
    missing = frame.where(F.col("last") > F.coalesce("accepted_upto", F.lit(0)))
    return violations(
        missing, NAME,
        text("{publisher} was told that {first} to {last} are accepted; "
             "the journal has {accepted_upto}"),
    )  # fmt: skip


CHECKS = (
    Check(NAME, "placed", ("irregular messages",), _left_out),
    over_rows(
        "sendings", NAME, ("DuplicatesDropped",), _dropped,
        "{first} to {last} dropped as duplicates, but only {accepted_upto} were accepted",
    ),
    Check(NAME, "answered", ("answered lines",), _answered),
)  # fmt: skip
