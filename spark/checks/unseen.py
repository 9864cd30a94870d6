"""unseen: what was acknowledged was handled; and when a run is over, nothing is left unsettled."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.checks.check import Check, text, violations

NAME = "unseen"


def _left(frame: DataFrame) -> DataFrame:
    """``frame``: the ends of the lines of channels that are said to be drained."""
    return violations(
        frame.where(F.col("pending") > 0)
        .withColumn("first", F.col("settled_after") + 1)
        .withColumn("last", F.col("settled_after") + F.col("pending")),
        NAME,
        text("{pending} messages are neither settled nor parked"),
    )


def _unhandled(frame: DataFrame) -> DataFrame:
    """``frame``: acked stretches of subscribers with a history that no finished line covers."""
    return violations(
        frame, NAME,
        text("{subscriber} acknowledged {first} to {last} under epoch {epoch}; its history says "
             "that it finished {finished_count} of them"),
    )  # fmt: skip


CHECKS = (
    Check(NAME, "drained", ("lines",), _left),
    Check(NAME, "unfinished", ("finished lines",), _unhandled),
)
