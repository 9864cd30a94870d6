"""single-owner: one subscriber at a time holds a line, and its epochs only rise."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark.checks.check import of_kind, over_timeline, stolen


def _second() -> Column:
    is_next = F.col("first") == F.col("delivered") + 1
    old = ~F.col("in_flight") & is_next & (F.col("epoch") <= F.coalesce("epoch_max", F.lit(0)))
    return of_kind("Delivered") & (F.col("first") > F.col("settled")) & (stolen() | old)


CHECKS = (
    over_timeline(
        "single-owner", ("Delivered",), _second,
        "given to {subscriber} under epoch {epoch} while {owner} had epoch {owner_epoch} and the "
        "line was settled up to {settled}, delivered up to {delivered}",
    ),
)  # fmt: skip
