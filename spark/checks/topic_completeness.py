"""topic-completeness: a subscription to a topic gets all from its beginning to its end."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.checks.check import Check, of_kind, over_rows, text, violations
from spark.checks.exactly_once_get import no_subscription

NAME = "topic-completeness"


def _hole() -> Column:
    return of_kind("Confirmed") & ~no_subscription() & (F.col("first") > F.col("held.upto") + 1)


def _off_beginning() -> Column:
    """What is accepted after a subscription is owed, and nothing of before."""
    return of_kind("TopicSubscribed") & (F.col("position") != F.col("put_upto"))


def _subscribed_twice() -> Column:
    open_before = F.col("held.kind").isin("TopicSubscribed", "Confirmed")
    return of_kind("TopicSubscribed") & F.coalesce(open_before, F.lit(False))


def _off_end() -> Column:
    """It ends a subscription that is not open, or elsewhere than where that had come to."""
    elsewhere = (F.col("position") != F.col("held.upto")) | (
        F.col("count") != F.col("put_upto") - F.col("position")
    )
    return of_kind("TopicUnsubscribed") & (
        no_subscription() | F.coalesce(elsewhere, F.lit(False))
    )


def _late_request() -> Column:
    return of_kind("TopicSubscribed", "TopicUnsubscribed") & (
        F.col("request") <= F.col("request_upto")
    )


def _left(frame: DataFrame) -> DataFrame:
    """``frame``: the open subscriptions of topics that are said to be drained."""
    return violations(
        frame.where(F.col("pending") > 0)
        .withColumn("first", F.col("upto") + 1)
        .withColumn("last", F.col("put_end")),
        NAME,
        text("{subscriber} has not confirmed {pending} messages"),
    )


def _left_out(frame: DataFrame) -> DataFrame:
    """``frame``: what clients wrote of their gets, each with what they had before."""
    # An answer over several topics may have several stretches of one: they go on from each other.
    seen = F.when(F.col("event") == "received", F.greatest("upto", "handed_upto"))
    upto = F.coalesce(seen, F.col("upto"))
    skips = F.col("event").isin("got", "received") & (F.col("first") > upto + 1)
    return violations(
        frame.where(skips & ~F.col("may_lack")), NAME,
        text("{subscriber} {event} {first} to {last} under ticket {ticket}, and had everything up "
             "to {upto} before"),
    )  # fmt: skip


def _never_got(frame: DataFrame) -> DataFrame:
    """``frame``: what was confirmed for clients with a history, with what they had."""
    beyond = F.col("last") > F.coalesce("upto", "begins_after")
    return violations(
        frame.where(beyond & ~F.col("may_lack")), NAME,
        text("{subscriber} has confirmed up to {last} under ticket {ticket}; by its history it had "
             "everything up to {upto}"),
    )  # fmt: skip


CHECKS = (
    over_rows(
        "topic_timeline", NAME, ("Confirmed",), _hole,
        "{subscriber} confirmed {first} to {last} when it had confirmed up to {held_upto}",
    ),
    over_rows(
        "topic_timeline", NAME, ("TopicSubscribed",), _off_beginning,
        "{subscriber} subscribed after position {position}, and the last message was {put_upto}",
    ),
    over_rows(
        "topic_timeline", NAME, ("TopicSubscribed",), _subscribed_twice,
        "{subscriber} subscribed with ticket {ticket} while {held_ticket} was open",
    ),
    over_rows(
        "topic_timeline", NAME, ("TopicUnsubscribed",), _off_end,
        "{subscriber} left with ticket {ticket} after position {position}, {count} were owed; it "
        "had confirmed up to {held_upto} with ticket {held_ticket}, and the last message was "
        "{put_upto}",
    ),
    over_rows(
        "topic_timeline", NAME, ("TopicSubscribed", "TopicUnsubscribed"), _late_request,
        "request {request} of {subscriber} was done after request {request_upto}",
    ),
    Check(NAME, "topic_drained", ("topic places",), _left),
    Check(NAME, "topic_gets", ("topic got lines", "topic received lines"), _left_out),
    Check(NAME, "topic_confirmed", ("topic got lines", "topic confirmed lines"), _never_got),
)  # fmt: skip
