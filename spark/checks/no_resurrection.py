"""no-resurrection: what is settled stays settled; it has one end."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.checks.check import Check, of_kind, over_timeline, text, violations


def _again() -> Column:
    return of_kind("Delivered", "Acked", "Nacked", "Parked") & (
        F.col("first") <= F.col("settled")
    )


def _never_parked(frame: DataFrame) -> DataFrame:
    """``frame``: each position that was parked or redriven, with what happened to it before."""
    parked = F.coalesce(F.col("kind_before") == "Parked", F.lit(False))
    return violations(
        frame.where(of_kind("Redriven") & ~parked).withColumn("last", F.col("first")),
        "no-resurrection", text("position {first} was redriven, but it was not parked"),
    )  # fmt: skip


CHECKS = (
    Check("no-resurrection", "redrives", ("Redriven",), _never_parked),
    over_timeline(
        "no-resurrection", ("Delivered", "Acked", "Nacked", "Parked"), _again,
        "{kind} of {first} to {last} when the line was settled up to {settled}",
    ),
)  # fmt: skip
