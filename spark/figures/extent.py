"""How far each channel's journal goes, and how much is in it: what the other figures need first."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.figures.columns import kept, kind_is


def extent(records: DataFrame, boundaries_max: int) -> DataFrame:
    """One row per channel: first and last record, messages, how often the costly kinds occur.

    ``boundaries`` are the first (sequence, kind, subscription, at_ms) at which a subscription was
    made or deleted: what is published between the two is owed to it.
    """
    boundary = F.when(
        kind_is("SubscriptionCreated", "SubscriptionDeleted"),
        F.struct("sequence", "kind", "subscription", "at_ms"),
    )
    return records.groupBy("channel").agg(
        F.count("*").alias("records"),
        F.min("at_ms").alias("start_ms"),
        F.max("at_ms").alias("end_ms"),
        F.min("sequence").alias("first_sequence"),
        F.max("sequence").alias("last_sequence"),
        F.sum(F.when(kind_is("Published"), kept()).otherwise(0)).alias("published"),
        _times("Delivered"),
        _times("Nacked"),
        _times("Parked"),
        _times("Redriven"),
        F.slice(F.sort_array(F.collect_list(boundary)), 1, boundaries_max).alias("boundaries"),
    )


def _times(kind: str) -> Column:
    return F.count_if(F.col("kind") == kind).alias(kind)
