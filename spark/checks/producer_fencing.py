"""producer-fencing: once a newer epoch of a publisher is open, no older one is accepted."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.checks.check import Check, of_kind, text, violations

NAME = "producer-fencing"


def _fenced(frame: DataFrame) -> DataFrame:
    before = (
        Window.partitionBy("channel", "publisher")
        .orderBy("sequence")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    events = frame.where(of_kind("PublisherOpened", "Published")).select(
        "channel", "publisher", "sequence", "kind", "epoch"
    )
    opened = F.when(of_kind("PublisherOpened"), F.col("epoch"))
    newest = F.coalesce(F.max(opened).over(before), F.lit(0))
    older = F.when(of_kind("Published"), F.col("epoch") != F.col("newest")).otherwise(
        F.col("epoch") <= F.col("newest")
    )
    return violations(
        events.withColumn("newest", newest).where(older), NAME,
        text("epoch {epoch} after epoch {newest} was opened"),
    )  # fmt: skip


CHECKS = (Check(NAME, "records", ("Published", "PublisherOpened"), _fenced),)
