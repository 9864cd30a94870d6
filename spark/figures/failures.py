"""Why messages were retried and parked, and on which attempt."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from spark.figures.columns import kind_is

REASON_LENGTH = 160


def failures(
    records: DataFrame, channels: list[str], reasons_max: int, attempts_max: int
) -> DataFrame:
    """Per channel, kind (Nacked, Parked), reason and attempt: how many, since when, until when.

    The reason is free text and cut. Beyond the most frequent ones it is NULL and ``rest`` is set;
    attempts from ``attempts_max`` on are one.
    """
    grouped = (
        records.filter(F.col("channel").isin(*channels) & kind_is("Nacked", "Parked"))
        .groupBy(
            "channel", "kind", F.substring("reason", 1, REASON_LENGTH).alias("reason"),
            F.least("attempt", F.lit(attempts_max)).alias("attempt"),
        )
        .agg(F.count("*").alias("records"))
    )  # fmt: skip
    one = Window.partitionBy("channel", "kind", "reason")
    ranking = Window.partitionBy("channel", "kind").orderBy(F.desc("total"), "reason")
    ranked = grouped.withColumn("total", F.sum("records").over(one)).withColumn(
        "rank", F.dense_rank().over(ranking)
    )
    rest = F.col("rank") > reasons_max
    return (
        ranked.withColumn("rest", rest)
        .withColumn("reason", F.when(~F.col("rest"), F.col("reason")))
        .groupBy("channel", "kind", "reason", "rest", "attempt")
        .agg(F.sum("records").alias("records"))
    )
