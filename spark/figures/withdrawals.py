"""What leaves the queues without a count of its own in the journal.

A Nacked record names one message, but withdraws all that its assignment still has in flight. A
Redriven record that gives up a parked partition settles the message at its head.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from spark.figures.columns import Scale, bucket, kind_is, shown


def withdrawals(records: DataFrame, scales: Mapping[str, Scale]) -> DataFrame:
    """Per channel, bucket and subscription: messages ``withdrawn`` by nacks and ``given_up``."""
    records = shown(records, scales)
    slot = bucket(F.col("at_ms"), scales).alias("bucket")
    both = _withdrawn(records).unionByName(_given_up(records))
    return both.groupBy("channel", slot, "subscription").agg(
        F.sum("withdrawn").alias("withdrawn"), F.sum("given_up").alias("given_up")
    )


def _withdrawn(records: DataFrame) -> DataFrame:
    """Per nack what its assignment had in flight: delivered, less acked, less taken back."""
    nacked = (
        records.filter(kind_is("Nacked"))
        .groupBy("channel", "epoch")
        .agg(F.min("at_ms").alias("at_ms"), F.min("subscription").alias("subscription"))
    )
    signed = F.when(kind_is("Delivered"), 1).otherwise(-1)
    held = (
        records.filter(kind_is("Delivered", "Acked", "Reassigned"))
        .select("channel", "counts", signed.alias("sign"), F.posexplode("epochs"))
        .select(
            "channel",
            F.col("col").alias("epoch"),
            (F.get(F.col("counts"), F.col("pos")) * F.col("sign")).alias("change"),
        )
    )
    in_flight = F.greatest(F.sum("change"), F.lit(0))
    return (
        held.join(nacked, ["channel", "epoch"])
        .groupBy("channel", "epoch", "at_ms", "subscription")
        .agg(in_flight.alias("withdrawn"))
        .select("channel", "at_ms", "subscription", "withdrawn", F.lit(0).alias("given_up"))
    )


def _given_up(records: DataFrame) -> DataFrame:
    """One per Redriven record that gives up a partition which is parked as a whole."""
    line = Window.partitionBy("channel", "subscription", "publishers", "partitions")
    before = F.lag("scope").over(line.orderBy("sequence"))
    return (
        records.filter(kind_is("Parked", "Redriven"))
        .withColumn("before", before)
        .filter(kind_is("Redriven") & F.col("given_up") & (F.col("before") == "partition"))
        .select(
            "channel", "at_ms", "subscription", F.lit(0).alias("withdrawn"),
            F.lit(1).alias("given_up"),
        )
    )  # fmt: skip
