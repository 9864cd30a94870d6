"""reassign-causality: work is taken back from the one who holds it, all that is in flight from a
position on."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark.checks.check import of_kind, over_timeline, wrong_owner


def _baseless() -> Column:
    off = (F.col("first") <= F.col("settled")) | (F.col("last") != F.col("delivered"))
    return of_kind("Reassigned") & (~F.col("in_flight") | wrong_owner() | off)


CHECKS = (
    over_timeline(
        "reassign-causality", ("Reassigned",), _baseless,
        "{first} to {last} taken from {subscriber} under epoch {epoch}; {owner} had epoch "
        "{owner_epoch}, settled up to {settled}, delivered up to {delivered}",
    ),
)  # fmt: skip
