"""conservation: where a record counts what is owed, it is what was accepted and not yet settled."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.checks.check import Check, text, violations

NAME = "conservation"


def _wrong_counts(frame: DataFrame) -> DataFrame:
    """``frame``: the ledger, one row per change of a subscription's debt and per claim about it."""
    before = (
        Window.partitionBy("channel", "subscription", "generation")
        .orderBy("sequence")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    debts = frame.withColumn("owed", F.coalesce(F.sum("change").over(before), F.lit(0)))
    claims = debts.where(F.col("claim").isNotNull())
    per_record = claims.groupBy("channel", "sequence").agg(
        F.first("claim").alias("claim"), F.sum("owed").alias("owed")
    )
    return violations(
        per_record.where(F.col("claim") != F.col("owed")), NAME,
        text("the record counts {claim} unsettled messages, there were {owed}"),
    )  # fmt: skip


CHECKS = (Check(NAME, "ledger", ("claims",), _wrong_counts),)
