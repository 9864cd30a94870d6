"""delivery-within-ownership: only a subscriber that is subscribed is given anything."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.checks.check import Check, of_kind, text, violations

NAME = "delivery-within-ownership"


def _outside(frame: DataFrame) -> DataFrame:
    before = (
        Window.partitionBy("channel", "subscription", "generation", "subscriber")
        .orderBy("sequence")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    joined = F.when(~of_kind("Delivered"), of_kind("Subscribed"))
    present = F.coalesce(F.last(joined, ignorenulls=True).over(before), F.lit(False))
    return violations(
        frame.withColumn("present", present).where(of_kind("Delivered") & ~F.col("present")),
        NAME, text("{subscriber} was not subscribed to {subscription}"),
    )  # fmt: skip


CHECKS = (Check(NAME, "members", ("Delivered",), _outside),)
