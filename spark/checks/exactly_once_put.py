"""exactly-once-put: what a client put into a topic is there once, in the place it was told."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.checks.check import Check, of_kind, over_rows, text, violations

NAME = "exactly-once-put"


def _off_number() -> Column:
    return of_kind("Put") & (F.col("number") != F.col("number_upto") + 1)


def _off_position() -> Column:
    return of_kind("Put") & (F.col("position") != F.col("position_upto") + 1)


def _off_stamp() -> Column:
    return of_kind("Put") & (F.col("stamp") <= F.col("stamp_upto"))


def _answered(frame: DataFrame) -> DataFrame:
    """``frame``: what clients were told is put, with what the journal has under that number."""
    same = (
        (F.col("found") == 1)
        & (F.col("found_position") == F.col("position"))
        & (F.col("found_count") == F.col("count"))
        # The call's own checksum is not known if its history has lost the line.
        & F.coalesce(F.col("found_crc") == F.col("crc"), F.lit(True))
    )
    return violations(
        frame.where(~F.coalesce(same, F.lit(False))), NAME,
        text("{publisher} was told that its put {number}, {count} messages, is at position "
             "{position}; the journal has {found} of that number, at {found_position} with "
             "{found_count} messages"),
    )  # fmt: skip


def _untried(frame: DataFrame) -> DataFrame:
    """``frame``: accepted calls of clients with a history, with what they tried."""
    return violations(
        frame.where(F.col("tried_at").isNull()), NAME,
        text("put {number} of {publisher}, {count} messages with checksum {crc}, was accepted; its "
             "history has no such call"),
    )  # fmt: skip


def _refused(frame: DataFrame) -> DataFrame:
    """The same frame: the last word about the call was that it is refused."""
    return violations(
        frame.where(F.col("refused_at") > F.col("tried_at")), NAME,
        text("{publisher} was told that its put {number}, {count} messages, is refused"),
    )  # fmt: skip


CHECKS = (
    over_rows(
        "topic_timeline", NAME, ("Put",), _off_number,
        "put {number} of {publisher} was accepted when the one before it was {number_upto}",
    ),
    over_rows(
        "topic_timeline", NAME, ("Put",), _off_position,
        "a message was put at position {position} when the last one was {position_upto}",
    ),
    over_rows(
        "topic_timeline", NAME, ("Put",), _off_stamp,
        "a message has stamp {stamp} after stamp {stamp_upto}",
    ),
    Check(NAME, "topic_answered", ("topic answered lines",), _answered),
    Check(NAME, "topic_puts", ("topic tried lines",), _untried),
    Check(NAME, "topic_puts", ("topic refused lines",), _refused),
)  # fmt: skip
