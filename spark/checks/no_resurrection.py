"""no-resurrection: what is settled stays settled; it has one end."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark.checks.check import of_kind, over_timeline


def _again() -> Column:
    return of_kind("Delivered", "Acked", "Nacked", "Parked") & (
        F.col("first") <= F.col("settled")
    )


CHECKS = (
    over_timeline(
        "no-resurrection", ("Delivered", "Acked", "Nacked", "Parked"), _again,
        "{kind} of {first} to {last} when the line was settled up to {settled}",
    ),
)  # fmt: skip
