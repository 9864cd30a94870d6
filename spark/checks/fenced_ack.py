"""fenced-ack: an ack or nack counts only under the epoch that holds the line, from its head on."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark.checks.check import of_kind, over_timeline, wrong_owner


def _unfenced() -> Column:
    beyond = (F.col("first") != F.col("settled") + 1) | (F.col("last") > F.col("delivered"))
    return (
        of_kind("Acked", "Nacked")
        & (F.col("first") > F.col("settled"))
        & (~F.col("in_flight") | wrong_owner() | beyond)
    )


CHECKS = (
    over_timeline(
        "fenced-ack", ("Acked", "Nacked"), _unfenced,
        "{kind} by {subscriber} under epoch {epoch} for {first} to {last}; {owner} had epoch "
        "{owner_epoch}, settled up to {settled}, delivered up to {delivered}",
    ),
)  # fmt: skip
