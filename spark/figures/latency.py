"""How long messages take from publish to delivery and to handling, for a sample of them.

A message is (publisher, partition, sequence). Acks speak of positions, so they are joined to the
deliveries of the same assignment (epoch), which know both, and from there to the publishing. Both
are taken of the same blocks of positions, chosen by hash, so every run of this figure over one
journal samples the same messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.figures.columns import Scale, bucket, by_channel, item, kind_is, runs, shown

#: Messages of a line that are sampled together. Small, so that a few large partitions still give
#: an even sample; large, so that a run is not taken apart needlessly.
BLOCK = 64
QUANTILES = (0.5, 0.9, 0.99)
OVERALL = -1  # the bucket of the row that sums up all of them


@dataclass(frozen=True, slots=True)
class Sample:
    """One in ``partitions`` partitions, and of those one in ``blocks`` blocks of messages."""

    partitions: int
    blocks: int


def sample_for(messages: int, partitions: int, target: int) -> Sample:
    """A sample of about ``target`` messages: of few partitions if there are many to choose from.

    >>> sample_for(1_000, 10, 100_000)
    Sample(partitions=1, blocks=1)
    >>> sample_for(100_000_000, 4, 200_000)
    Sample(partitions=1, blocks=500)
    >>> sample_for(100_000_000, 1_000_000, 200_000)
    Sample(partitions=500, blocks=1)
    """
    one_in = max(1, messages // target)
    of_partitions = min(one_in, max(1, partitions // BLOCK))
    return Sample(of_partitions, max(1, one_in // of_partitions))


def latency(
    records: DataFrame, scales: Mapping[str, Scale], samples: Mapping[str, Sample]
) -> DataFrame:
    """Per channel, measure (``delivery``, ``handling``) and bucket: count, quantiles, max in ms.

    The bucket is that of the delivery or the ack, not of the publishing; ``OVERALL`` is all.
    """
    records = shown(records, scales)
    messages = _messages(records, samples)
    published = _published(records, samples)
    joined = messages.join(published, ["channel", "publisher", "partition", "block"]).filter(
        F.col("sequence").between(F.col("first"), F.col("last"))
    )
    measures = F.array(
        F.struct(F.lit("delivery").alias("measure"), F.col("delivered_ms").alias("at_ms")),
        F.struct(F.lit("handling").alias("measure"), F.col("acked_ms").alias("at_ms")),
    )
    measured = joined.select("channel", "published_ms", F.inline(measures)).filter(
        F.col("at_ms").isNotNull()
    )
    buckets = F.explode(F.array(bucket(F.col("at_ms"), scales), F.lit(OVERALL)))
    took = F.col("at_ms") - F.col("published_ms")
    return (
        measured.select("channel", "measure", buckets.alias("bucket"), took.alias("ms"))
        .groupBy("channel", "measure", "bucket")
        .agg(
            F.count("*").alias("messages"),
            F.percentile("ms", list(QUANTILES)).alias("quantiles"),
            F.max("ms").alias("max_ms"),
        )
    )


def _messages(records: DataFrame, samples: Mapping[str, Sample]) -> DataFrame:
    """Each sampled message of each subscription: first delivered and first acked when."""
    given = _sampled(records, "Delivered", samples, item("sequences").alias("sequence"))
    acked = _sampled(records, "Acked", samples, F.lit(None).cast("long").alias("sequence"))
    place = ["channel", "epoch", "position"]
    acks = acked.groupBy(*place).agg(F.min("at_ms").alias("acked_ms"))
    message = ["channel", "subscription", "publisher", "partition", "sequence"]
    return (
        given.join(acks, place, "left")
        .groupBy(*message)
        .agg(F.min("at_ms").alias("delivered_ms"), F.min("acked_ms").alias("acked_ms"))
        .withColumn("block", _block("sequence"))
    )


def _sampled(
    records: DataFrame, kind: str, samples: Mapping[str, Sample], sequence: Column
) -> DataFrame:
    """One row per message of the sampled blocks of positions of one kind of record."""
    rows = runs(
        records.filter(kind_is(kind)),
        "channel", "subscription", "at_ms", "firsts", "counts", "epochs", "sequences",
    ).filter(_partition_chosen(samples))  # fmt: skip
    one_in = by_channel({name: sample.blocks for name, sample in samples.items()})
    key = F.xxhash64("channel", "publisher", "partition", "block")
    blocks = _blocks(
        rows.select(
            "channel", "subscription", "publisher", "partition", "at_ms",
            item("epochs").alias("epoch"), sequence, *_range(),
        )
    ).filter(F.pmod(key, one_in) == 0)  # fmt: skip
    low = F.greatest("first", F.col("block") * BLOCK)
    high = F.least("last", F.col("block") * BLOCK + BLOCK - 1)
    return blocks.withColumn("position", F.explode(F.sequence(low, high))).withColumn(
        "sequence", F.col("sequence") + F.col("position") - F.col("first")
    )


def _published(records: DataFrame, samples: Mapping[str, Sample]) -> DataFrame:
    """The runs published to the sampled partitions, once per block of sequences that they touch."""
    rows = runs(records.filter(kind_is("Published")), "channel", "at_ms", "firsts", "counts")
    return _blocks(
        rows.filter(_partition_chosen(samples)).select(
            "channel", "publisher", "partition", F.col("at_ms").alias("published_ms"), *_range()
        )
    )


def _range() -> list[Column]:
    return [
        item("firsts").alias("first"), (item("firsts") + item("counts") - 1).alias("last"),
    ]  # fmt: skip


def _partition_chosen(samples: Mapping[str, Sample]) -> Column:
    one_in = by_channel({name: sample.partitions for name, sample in samples.items()})
    return F.pmod(F.xxhash64("channel", "publisher", "partition"), one_in) == 0


def _block(name: str) -> Column:
    return F.floor(F.col(name) / BLOCK)


def _blocks(rows: DataFrame) -> DataFrame:
    """Each range once per block that it touches; empty and damaged ranges are left out."""
    whole = rows.filter((F.col("first") >= 0) & (F.col("last") >= F.col("first")))
    return whole.withColumn("block", F.explode(F.sequence(_block("first"), _block("last"))))
