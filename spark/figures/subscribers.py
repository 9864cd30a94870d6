"""Work per subscriber over time, who came and went, and what fairness needs."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from spark.figures.columns import kind_is


def subscribers(flows: DataFrame, subscribers_max: int) -> DataFrame:
    """One row per subscriber and bucket; all beyond the busiest are one, with ``rest`` set.

    ``members`` and ``squares`` are set in one row of each subscriber: 1, and the square of all
    that it acked. Their sums give Jain's index also where many subscribers are one row.
    """
    who = ["channel", "subscription", "subscriber"]
    one = Window.partitionBy(*who)
    ranking = Window.partitionBy("channel").orderBy(
        F.desc("total"), F.desc("given"), "subscription", "subscriber"
    )
    first = F.row_number().over(one.orderBy("bucket", "kind", "last_sequence")) == 1
    ranked = (
        flows.filter(F.col("subscriber").isNotNull())
        .withColumn("total", F.sum(_messages("Acked")).over(one))
        .withColumn("given", F.sum(_messages("Delivered")).over(one))
        .withColumn("members", first.cast("int"))
        .withColumn("rank", F.dense_rank().over(ranking))
    )
    rest = F.col("rank") > subscribers_max
    folded = ranked.withColumn("rest", rest).withColumn(
        "subscriber", F.when(~F.col("rest"), F.col("subscriber"))
    )
    return folded.groupBy("channel", "subscription", "subscriber", "rest", "bucket").agg(*_sums())


def _sums() -> list[Column]:
    squares = F.col("members") * F.col("total").cast("double") * F.col("total")
    came = kind_is("Subscribed", "Resumed")
    left = kind_is("SubscriberLeft")
    return [
        F.min("rank").alias("rank"),
        F.sum("members").alias("members"),
        F.sum(squares).alias("squares"),
        F.sum(_messages("Delivered")).alias("delivered"),
        F.sum(_messages("Acked")).alias("acked"),
        F.sum(_messages("Reassigned")).alias("taken_back"),
        F.sum(_messages("Nacked")).alias("nacked"),
        F.sum(_records("StaleAcked")).alias("stale"),
        F.sum(_records("Slowed")).alias("slowed"),
        F.sum("slow").alias("slow"),
        F.max("slowest_ms").alias("slowest_ms"),
        F.sum(_records("Subscribed")).alias("joined"),
        F.sum(_records("Resumed")).alias("resumed"),
        F.sum(_records("SubscriberLeft")).alias("left"),
        F.max(F.when(came, F.col("last_sequence"))).alias("came_sequence"),
        F.max(F.when(left, F.col("last_sequence"))).alias("left_sequence"),
        F.max_by("reason", F.when(left, F.col("last_sequence"))).alias("left_reason"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
    ]


def _messages(kind: str) -> Column:
    return F.when(F.col("kind") == kind, F.col("messages")).otherwise(0)


def _records(kind: str) -> Column:
    return F.when(F.col("kind") == kind, F.col("records")).otherwise(0)
