"""exactly-once-get: a message of a topic comes to each client once, as it was put.

Only what was put after the client subscribed, and nothing once it has left.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.checks.check import Check, of_kind, over_rows, text, violations

NAME = "exactly-once-get"


def no_subscription() -> Column:
    """Whether a record speaks of another subscription than the one that is open."""
    other = (F.col("held.kind") == "TopicUnsubscribed") | (F.col("held.ticket") != F.col("ticket"))
    # Of a topic whose beginning was released, the subscription may have been there.
    return F.coalesce(other, ~F.col("is_trimmed"))


def _confirmed_again() -> Column:
    return of_kind("Confirmed") & ~no_subscription() & (F.col("first") <= F.col("held.upto"))


def _confirmed_beyond() -> Column:
    return of_kind("Confirmed") & (F.col("last") > F.col("put_upto"))


def _confirmed_outside() -> Column:
    return of_kind("Confirmed") & no_subscription()


def _old_ticket() -> Column:
    """Under a ticket that was there before, what is of an older subscription would count again."""
    return of_kind("TopicSubscribed") & (F.col("ticket") <= F.col("stamp_upto"))


def _handed() -> Column:
    return F.col("event").isin("got", "received")


def _got_again(frame: DataFrame) -> DataFrame:
    """``frame``: what clients wrote of their gets, each with what they had before."""
    return violations(
        frame.where(_handed() & (F.col("first") <= F.col("upto"))), NAME,
        text("{subscriber} {event} {first} to {last} under ticket {ticket}, and had everything up "
             "to {upto} before"),
    )  # fmt: skip


def _got_after_leaving(frame: DataFrame) -> DataFrame:
    return violations(
        frame.where(_handed() & F.col("has_left")), NAME,
        text("{subscriber} {event} {first} to {last} under ticket {ticket}, which had ended"),
    )


def _confirmed_unread(frame: DataFrame) -> DataFrame:
    beyond = F.col("position") > F.coalesce("handed_upto", F.lit(0))
    return violations(
        frame.where((F.col("event") == "confirmed") & beyond), NAME,
        text("{subscriber} confirmed up to {position} under ticket {ticket}, but had been handed "
             "{handed_upto}"),
    )  # fmt: skip


def _other_crc(frame: DataFrame) -> DataFrame:
    handed = (
        frame.where(_handed())
        .groupBy("channel", "subscriber", "ticket", "first", "last")
        .agg(F.min("crc").alias("crc"), F.max("crc").alias("other"))
    )
    return violations(
        handed.where(F.col("crc") != F.col("other")), NAME,
        text("{first} to {last} came to {subscriber} with checksum {crc}, and again with {other}"),
    )


def _got_outside(frame: DataFrame) -> DataFrame:
    """``frame``: what clients got of topics that are judged, with the journal's word on it."""
    unknown = F.col("begins_after").isNull() & F.col("is_whole")
    before = F.col("first") <= F.col("begins_after")
    beyond = ~F.col("has_fault") & (F.col("last") > F.coalesce("put_end", F.lit(0)))
    return violations(
        frame.where(unknown | F.coalesce(before, F.lit(False)) | beyond), NAME,
        text("{subscriber} got {first} to {last} under ticket {ticket}; the journal begins that "
             "after {begins_after}, and the topic ends at {put_end}"),
    )  # fmt: skip


def _other_contents(frame: DataFrame) -> DataFrame:
    """``frame``: stretches that were got, with the checksum of the same by the journal."""
    return violations(
        frame.where((F.col("found") == F.col("count")) & (F.col("crc") != F.col("put_crc"))), NAME,
        text("{subscriber} got {first} to {last} with checksum {crc}; what was put has {put_crc}"),
    )  # fmt: skip


CHECKS = (
    over_rows(
        "topic_timeline", NAME, ("Confirmed",), _confirmed_again,
        "{subscriber} confirmed {first} to {last} when it had confirmed up to {held_upto}",
    ),
    over_rows(
        "topic_timeline", NAME, ("Confirmed",), _confirmed_beyond,
        "{subscriber} confirmed {first} to {last}, and the last message was {put_upto}",
    ),
    over_rows(
        "topic_timeline", NAME, ("Confirmed",), _confirmed_outside,
        "{subscriber} confirmed {first} to {last} under ticket {ticket}, which is not open; its "
        "last one was {held_ticket}",
    ),
    over_rows(
        "topic_timeline", NAME, ("TopicSubscribed",), _old_ticket,
        "{subscriber} subscribed with ticket {ticket} after {stamp_upto} was given",
    ),
    Check(NAME, "topic_gets", ("topic got lines", "topic received lines"), _got_again),
    Check(NAME, "topic_gets", ("topic got lines", "topic received lines"), _got_after_leaving),
    Check(NAME, "topic_gets", ("topic confirmed lines",), _confirmed_unread),
    Check(NAME, "topic_gets", ("topic received lines",), _other_crc),
    Check(NAME, "topic_got", ("topic got lines", "topic received lines"), _got_outside),
    Check(NAME, "topic_contents", ("topic got lines", "topic received lines"), _other_contents),
)  # fmt: skip
