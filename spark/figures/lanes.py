"""Who owned which partition when: the lines that are worth a swim lane, and their assignments.

A line is a partition as one subscription sees it. An assignment is known by its epoch, which is
used once per channel; it ends when all that was delivered under it is acked or taken back, or by a
nack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from spark.figures.columns import Scale, by_channel, item, kind_is, runs, shown

LINE = ("channel", "subscription", "publisher", "partition")


def lane_choice(records: DataFrame, steps: Mapping[str, int], lanes_max: int) -> DataFrame:
    """The lines with the most hand-overs, then the busiest: at most ``lanes_max`` per channel.

    Hand-overs and nacks are all counted; how busy a line is comes from one in ``steps`` records
    of the channel. ``lines`` is how many lines were seen that way.
    """
    # By hash: kinds follow each other in a rhythm, which a plain remainder would keep step with.
    sampled = F.pmod(F.xxhash64("channel", "sequence"), by_channel(steps)) == 0
    rows = runs(
        records.filter(F.col("channel").isin(*steps)).filter(
            (kind_is("Delivered") & sampled) | kind_is("Reassigned", "Nacked")
        ),
        "channel", "subscription", "kind", "counts",
    )  # fmt: skip
    lines = rows.groupBy(*LINE).agg(
        F.count_if(kind_is("Reassigned")).alias("handovers"),
        F.count_if(kind_is("Nacked")).alias("nacks"),
        F.sum(F.when(kind_is("Delivered"), item("counts")).otherwise(0)).alias("messages"),
    )
    per_channel = Window.partitionBy("channel")
    order = per_channel.orderBy(
        F.desc(F.col("handovers") + F.col("nacks")), F.desc("messages"), *LINE[1:]
    )
    return (
        lines.withColumn("lines", F.count("*").over(per_channel))
        .withColumn("rank", F.row_number().over(order))
        .filter(F.col("rank") <= lanes_max)
    )


def lane_segments(
    records: DataFrame,
    scales: Mapping[str, Scale],
    chosen: Sequence[tuple[str, str, str, str]],
    segments_max: int,
) -> DataFrame:
    """Who held each of the ``chosen`` lines: one row per lane, time bucket and owner.

    Assignments of one owner that begin in the same bucket are one segment; ``assignments`` says how
    many. ``end_ms`` is NULL while the last of them is open.
    """
    assignments = _assignments(_lane_runs(records, scales, chosen))
    width = by_channel({name: scale.width_ms for name, scale in scales.items()})
    origin = by_channel({name: scale.origin_ms for name, scale in scales.items()})
    slot = F.floor((F.col("start_ms") - origin) / width)
    segments = (
        assignments.filter(F.col("owner").isNotNull())
        .groupBy("channel", "lane", slot.alias("slot"), "owner")
        .agg(
            F.min("start_ms").alias("start_ms"),
            F.when(~F.bool_or(F.col("end_ms").isNull()), F.max("end_ms")).alias("end_ms"),
            F.count("*").alias("assignments"),
            F.max_by("ended", "epoch").alias("ended"),
            F.sum("messages").alias("messages"),
        )
    )
    lane = Window.partitionBy("channel", "lane")
    held = F.coalesce("end_ms", F.lit(1 << 62)) - F.col("start_ms")
    return (
        segments.withColumn("all_assignments", F.sum("assignments").over(lane))
        .withColumn("rank", F.row_number().over(lane.orderBy(F.desc(held), "start_ms", "owner")))
        .filter(F.col("rank") <= segments_max)
    )


def _lane_runs(
    records: DataFrame,
    scales: Mapping[str, Scale],
    chosen: Sequence[tuple[str, str, str, str]],
) -> DataFrame:
    """The runs of the chosen lines; first by the partition's name alone, which is cheap."""
    names = sorted({line[3] for line in chosen})
    rows = runs(
        shown(records, scales).filter(kind_is("Delivered", "Acked", "Reassigned", "Nacked")),
        "channel", "sequence", "at_ms", "kind", "subscription", "subscriber", "reason", "counts",
        "epochs", "epoch",
    )  # fmt: skip
    lanes = [
        F.struct(*(F.lit(x).alias(name) for name, x in zip((*LINE, "lane"), (*line, number))))
        for number, line in enumerate(chosen)
    ]
    table = records.sparkSession.range(1).select(F.inline(F.array(*lanes)))
    return (
        rows.filter(F.col("partition").isin(*names))
        .join(F.broadcast(table), list(LINE))
        .withColumn("count", F.coalesce(item("counts"), F.lit(0)))
        .withColumn("epoch", F.coalesce(item("epochs"), F.col("epoch")))
    )


def _assignments(rows: DataFrame) -> DataFrame:
    given = kind_is("Delivered")
    back = F.sum(F.when(~given, F.col("count")).otherwise(0))
    delivered = F.sum(F.when(given, F.col("count")).otherwise(0))
    over = F.bool_or(kind_is("Nacked")) | (delivered <= back)
    return rows.groupBy("channel", "lane", "epoch").agg(
        F.min_by("subscriber", F.when(given, F.col("sequence"))).alias("owner"),
        F.min(F.when(given, F.col("at_ms"))).alias("start_ms"),
        F.when(over, F.max("at_ms")).alias("end_ms"),
        F.when(over, F.max_by(_ended(), F.when(~given, F.col("sequence")))).alias("ended"),
        delivered.alias("messages"),
    )


def _ended() -> Column:
    """How an assignment ended: ``done``, ``retry``, or the reason of the hand-over."""
    return (
        F.when(kind_is("Acked"), "done")
        .when(kind_is("Nacked"), "retry")
        .otherwise(F.col("reason"))
    )
