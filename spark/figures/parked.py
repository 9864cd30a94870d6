"""The messages and partitions that were set aside, and what became of them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from spark.figures.columns import kind_is
from spark.figures.failures import REASON_LENGTH


def parked(records: DataFrame, channels: list[str], rows_max: int) -> DataFrame:
    """The last ``rows_max`` Parked records of each channel; ``fate`` is NULL while still parked."""
    latest = Window.partitionBy("channel").orderBy(F.desc("sequence"))
    line = ["channel", "subscription", "publisher", "partition"]
    both = (
        records.filter(F.col("channel").isin(*channels) & kind_is("Parked", "Redriven"))
        .withColumn("publisher", F.get("publishers", F.lit(0)))
        .withColumn("partition", F.get("partitions", F.lit(0)))
    )
    rows = (
        both.filter(kind_is("Parked"))
        .select(
            *line, "sequence", "at_ms", "position", "attempt", "scope",
            F.substring("reason", 1, REASON_LENGTH).alias("reason"),
        )
        .withColumn("rank", F.row_number().over(latest))
        .filter(F.col("rank") <= rows_max)
    )  # fmt: skip
    redriven = both.filter(kind_is("Redriven")).select(
        *line, F.col("sequence").alias("again"), "positions",
        F.when(F.col("given_up"), "given up").otherwise("sent again").alias("word"),
    )  # fmt: skip
    named = F.array_contains("positions", F.col("position")) | (F.col("scope") == "partition")
    fate = F.min_by("word", F.when((F.col("again") > F.col("sequence")) & named, F.col("again")))
    own = [*line, "sequence", "at_ms", "position", "attempt", "scope", "reason"]
    return rows.join(redriven, line, "left").groupBy(*own).agg(fate.alias("fate"))
