"""nonmonotonic-send: messages that wait together are placed in the order (timestamp, sequence).

A message may come after one that is newer only if that one was handed out before it was accepted.
Compared with the newest one placed before it, and with the one just before it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.checks.check import Check, at_position, text, violations
from spark.journal_frame import LINE

NAME = "nonmonotonic-send"


def _overtaken(frame: DataFrame) -> DataFrame:
    order = Window.partitionBy(*LINE, "start").orderBy("position")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    there = frame.where(
        F.col("position").isNotNull() & F.col("published_at").isNotNull() & ~F.col("was_redriven")
    ).withColumn("place", F.struct("timestamp", "message", "at"))
    compared = there.withColumn("newest", F.max("place").over(before)).withColumn(
        "previous", F.lag("place").over(order)
    )

    def passed(other: str) -> Column:
        mine = F.struct("timestamp", "message")
        theirs = F.struct(f"{other}.timestamp", f"{other}.message")
        while_waiting = F.col(f"{other}.at") > F.col("published_at")
        return F.coalesce((mine < theirs) & while_waiting, F.lit(False))

    found = compared.where(passed("newest") | passed("previous"))
    return violations(
        at_position(found).withColumn("sequence", F.col("at")),
        NAME,
        text(
            "message {message}, accepted by record {published_at}, waited while a newer one was "
            "handed out before it"
        ),
    )


CHECKS = (Check(NAME, "placed", ("irregular messages",), _overtaken),)
