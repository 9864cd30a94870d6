"""What happened in each time bucket, by kind, reason, subscription and subscriber.

The one aggregate over all records. Throughput, depth, hand-overs, members and fairness are sums of
its rows, so the journal is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from spark.figures.columns import Scale, bucket, kept, kind_is, reason, shown


def flows(
    records: DataFrame, scales: Mapping[str, Scale], eras: Mapping[str, Sequence[int]]
) -> DataFrame:
    """One row per channel, bucket, era, subscription, subscriber, kind and reason.

    ``eras`` are the sequences at which a channel's subscriptions changed; a Published record is of
    the era after as many of them. So what is owed to a subscription is exact within a bucket, too.
    """
    at_ms = F.col("at_ms")
    slowest = F.array_max(F.transform("delays", lambda delay: F.get(delay, 2)))
    return (
        shown(records, scales)
        .groupBy(
            "channel", bucket(at_ms, scales).alias("bucket"), _era(eras).alias("era"),
            "subscription", "subscriber", "kind", reason().alias("reason"),
        )
        .agg(
            F.count("*").alias("records"),
            F.sum(kept()).alias("messages"),
            F.sum(F.when(F.col("partitions").isNull(), 0).otherwise(F.size("partitions"))).alias(
                "runs"
            ),
            F.sum(F.when(F.col("delays").isNull(), 0).otherwise(F.size("delays"))).alias("slow"),
            F.max(slowest).alias("slowest_ms"),
            F.min(at_ms).alias("first_ms"),
            F.max(at_ms).alias("last_ms"),
            F.max("sequence").alias("last_sequence"),
        )
    )  # fmt: skip


def _era(eras: Mapping[str, Sequence[int]]) -> Column:
    count = F.lit(0)
    for channel, sequences in eras.items():
        for sequence in sequences:
            after = (F.col("channel") == channel) & (F.col("sequence") > sequence)
            count = count + after.cast("int")
    return F.when(kind_is("Published"), count).otherwise(0)


def timeline(flows: DataFrame, subscriptions_max: int) -> DataFrame:
    """The flows without subscribers; what is beyond the busiest subscriptions has ``rest`` set."""
    line = Window.partitionBy("channel", "subscription")
    settled = F.sum(F.when(kind_is("Acked"), F.col("messages")).otherwise(0)).over(line)
    ranked = flows.withColumn("settled", settled).withColumn(
        "rank",
        F.dense_rank().over(
            Window.partitionBy("channel").orderBy(
                F.col("subscription").isNull(), F.desc("settled"), "subscription"
            )
        ),
    )
    rest = F.col("subscription").isNotNull() & (F.col("rank") > subscriptions_max)
    return (
        ranked.withColumn("rest", rest)
        .withColumn("subscription", F.when(~F.col("rest"), F.col("subscription")))
        .groupBy("channel", "bucket", "era", "subscription", "rest", "kind", "reason")
        .agg(
            F.sum("records").alias("records"),
            F.sum("messages").alias("messages"),
            F.sum("runs").alias("runs"),
        )
    )
