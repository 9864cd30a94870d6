"""unexpected: nothing is handed out, handled or accepted that nobody sent."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.checks.check import Check, at_position, of_kind, over_timeline, stolen, text, violations

NAME = "unexpected"


def _unpublished() -> Column:
    beyond = F.col("message_last") > F.coalesce("published_upto", F.lit(0))
    in_place = F.col("first") == F.col("delivered") + 1
    fresh = F.col("in_flight") | (F.col("epoch") > F.coalesce("epoch_max", F.lit(0)))
    return of_kind("Delivered") & in_place & ~stolen() & fresh & beyond


def _dropped(frame: DataFrame) -> DataFrame:
    """Handed out though it was dropped when it came, or never came."""
    return violations(
        at_position(frame.where(F.col("published_at").isNull())).withColumn(
            "sequence", F.col("at")
        ),
        NAME,
        text("message {message} was handed out, but it is not among those that were kept"),
    )


def _untried(frame: DataFrame) -> DataFrame:
    """``frame``: accepted batches of publishers with a history, with what they tried."""
    return violations(
        frame.where(~F.col("was_tried")), NAME,
        text("accepted from {publisher} under epoch {epoch}; its history has no such batch: "
             "{partition} from {first}, {count} messages, bodies {bodies_crc}"),
    )  # fmt: skip


def _undelivered(frame: DataFrame) -> DataFrame:
    """``frame``: what subscribers started, with what the journal says of that place."""
    given = F.coalesce(
        (F.col("position") <= F.col("given_upto"))
        & (F.col("position") >= F.col("given_from"))
        & (F.col("given_to") == F.col("subscriber"))
        & (F.col("given_publisher") == F.col("publisher"))
        & (F.col("given_partition") == F.col("partition")),
        F.lit(False),
    )
    return violations(
        at_position(frame.where(~given)),
        NAME,
        text("{subscriber} started position {position} under epoch {epoch}; the journal gave that "
             "epoch to {given_to} from {given_from} to {given_upto}"),
    )  # fmt: skip


CHECKS = (
    over_timeline(
        NAME, ("Delivered",), _unpublished,
        "messages {message_first} to {message_last} handed out, published were {published_upto}",
    ),
    Check(NAME, "placed", ("irregular messages",), _dropped),
    Check(NAME, "batches", ("tried lines",), _untried),
    Check(NAME, "started", ("started lines",), _undelivered),
)  # fmt: skip
