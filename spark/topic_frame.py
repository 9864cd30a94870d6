"""From the records of topics to the frames that the checks read. Only column functions and windows.

- ``events``: one row per record of a topic, with the state of the topic and of the client before
  it. As with channels, each part of the state is set by a record itself, so "the last value that
  was set" is the fold;
- ``places``: one row per client that is or was subscribed, at its end;
- ``puts``, ``tickets``, ``ends``: what histories are set against.

A topic whose beginning was released is judged from where it begins now: what is first of its kind
there sets the state and is compared with nothing. The rows of one topic are sorted by one task.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from spark.journal_frame import kind_is

#: What the journal of a topic is called, before the topic's name.
PREFIX = "topic:"
#: A client of a topic.
CLIENT = ("channel", "client")

_SUBSCRIPTION = ("TopicSubscribed", "TopicUnsubscribed", "Confirmed")


def is_topic(name: str) -> bool:
    """Whether a journal is that of a topic."""
    return name.startswith(PREFIX)


def of_topic() -> Column:
    """Whether a row is of a topic's journal."""
    return F.col("channel").startswith(PREFIX)


def events(records: DataFrame) -> DataFrame:
    """The records of topics, each with the state before it.

    ``records`` has ``is_trimmed`` beside the columns of a record. Of the topic: ``put_upto`` is its
    last position, ``stamp_upto`` its last stamp or ticket. Of the client: ``number_upto`` is that
    of its last put, ``request_upto`` that of its last request, ``held`` what was last said of its
    subscription (kind, ticket, upto). ``is_end``: nothing more is said of the subscription.
    """
    rows = records.select(
        "channel", "sequence", "kind", F.coalesce("publisher", "subscriber").alias("client"),
        "publisher", "subscriber", "number", "position", "stamp", "ticket", "request", "count",
        "is_trimmed", F.when(kind_is("Put"), F.col("position")).otherwise(F.col("first")).alias(
            "first"
        ),
    ).withColumn("last", F.col("first") + F.col("count") - 1)  # fmt: skip
    return _with_clients(_with_topic(rows)).withColumn("is_end", _is_end())


def _before(*keys: str) -> WindowSpec:
    """What came before a row, of the same topic or client."""
    order = Window.partitionBy(*keys).orderBy("sequence")
    return order.rowsBetween(Window.unboundedPreceding, -1)


def _from_start(known: Column) -> Column:
    """A count that is 0 before anything was counted; not known if that was released."""
    return F.coalesce(known, F.when(~F.col("is_trimmed"), F.lit(0)))


def _with_topic(rows: DataFrame) -> DataFrame:
    before = _before("channel")
    put = kind_is("Put")
    stamp = F.when(put, F.col("stamp") + F.col("count") - 1).otherwise(
        F.coalesce(F.when(kind_is("TopicSubscribed"), F.col("ticket")), "stamp")
    )
    return rows.select(
        "*",
        # The last one and not the highest: what is wrong once is named once.
        _from_start(F.last(F.when(put, F.col("last")), True).over(before)).alias("position_upto"),
        _from_start(F.max(F.when(put, F.col("last"))).over(before)).alias("put_upto"),
        F.max(stamp).over(before).alias("stamp_upto"),
    )


def _with_clients(rows: DataFrame) -> DataFrame:
    before = _before(*CLIENT)
    put_last = F.when(kind_is("Put"), F.col("number") + F.col("count") - 1)
    upto = F.when(kind_is("Confirmed"), F.col("last")).otherwise(F.col("position"))
    said = F.when(kind_is(*_SUBSCRIPTION), F.struct("kind", "ticket", upto.alias("upto")))
    return rows.select(
        "*",
        _from_start(F.last(put_last, True).over(before)).alias("number_upto"),
        F.last("request", True).over(before).alias("request_upto"),
        F.last(said, True).over(before).alias("held"),
    ).select("*", F.col("held.ticket").alias("held_ticket"), F.col("held.upto").alias("held_upto"))


def _is_end() -> Column:
    said = F.when(kind_is(*_SUBSCRIPTION), F.col("sequence"))
    return F.coalesce(
        said == F.max(said).over(Window.partitionBy(*CLIENT)), F.lit(False)
    )


def ends(records: DataFrame) -> DataFrame:
    """One row per topic that has messages: its first position, and its last one."""
    return (
        records.where(kind_is("Put"))
        .groupBy("channel")
        .agg(
            F.min("position").alias("put_from"),
            F.max(F.col("position") + F.col("count") - 1).alias("put_end"),
        )
    )


def places(rows: DataFrame, topic_ends: DataFrame) -> DataFrame:
    """The open subscriptions: how far each has confirmed, and what is pending.

    ``rows`` are the events with ``is_end``.
    """
    upto = F.when(kind_is("Confirmed"), F.col("last")).otherwise(F.col("position"))
    return (
        rows.where(F.col("is_end") & ~kind_is("TopicUnsubscribed"))
        .select("channel", "subscriber", "sequence", "ticket", upto.alias("upto"))
        .join(F.broadcast(topic_ends), "channel", "left")
        .withColumn(
            "pending", F.greatest(F.coalesce("put_end", F.lit(0)) - F.col("upto"), F.lit(0))
        )
    )


def puts(records: DataFrame) -> DataFrame:
    """The accepted calls."""
    return records.where(kind_is("Put")).select(
        "channel", "sequence", "publisher", "instance", "number", "count", "position", "crc"
    )


def tickets(records: DataFrame) -> DataFrame:
    """One row per subscription: where it begins, and the state directory of its client."""
    return records.where(kind_is("TopicSubscribed")).select(
        "channel", "subscriber", "ticket", F.col("position").alias("begins_after"), "instance"
    )
