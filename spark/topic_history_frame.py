"""The histories of topic clients as frames, and set against the journal.

What a line means is said in ``topics/history.py``. A client writes down what it has before it
writes the line of it, so a life that ended without ``closed`` may lack its last lines: what seems
left out at such an end proves nothing. Clients are compared only if each life of their state
directory has a history, up to its end.

- ``told``: puts that clients were told are done, with what the journal has under that number;
- ``tried``: accepted puts of clients with a history, with their last try and their last refusal;
- ``gets``: what clients wrote of their gets, each with what they had before;
- ``got``: stretches that were got, with the journal's word on that subscription;
- ``contents``: the same with the checksum of what was put there;
- ``confirmed``: what the journal says was confirmed, with what the client had by its history.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.journal_frame import kind_is
from spark.topic_frame import PREFIX

#: A client's state directory.
OWNER = ("name", "instance")
_TICKET = ("channel", "subscriber", "ticket")


def lines(histories: DataFrame) -> DataFrame:
    """The lines of topic clients; ``channel`` is the topic's journal, ``at`` the order of one."""
    return (
        histories.where(F.col("client") == "topic")
        .withColumn("channel", F.concat(F.lit(PREFIX), F.col("topic")))
        .withColumn("life", F.col("session").cast("long"))
        .withColumn("at", F.struct("life", "n"))
    )


def _event(*names: str) -> Column:
    return F.col("event").isin(*names)


def lives(frame: DataFrame) -> DataFrame:
    """One row per life of a state directory.

    ``is_whole``: each life has a history up to its end; ``unclosed_before`` and ``unclosed_last``:
    the last life, before this one or of all, that was not closed.
    """
    every = Window.partitionBy(*OWNER)
    before = every.orderBy("life").rowsBetween(Window.unboundedPreceding, -1)
    unclosed = F.when(~F.col("is_closed"), F.col("life"))
    dense = (F.min("life").over(every) == 1) & (
        F.max("life").over(every) == F.count("*").over(every)
    )
    return (
        frame.groupBy(*OWNER, "life")
        .agg(F.max(_event("closed")).alias("is_closed"), F.max(_event("cut")).alias("is_cut"))
        .select(
            *OWNER, "life", (dense & ~F.max("is_cut").over(every)).alias("is_whole"),
            F.max(unclosed).over(before).alias("unclosed_before"),
            F.max(unclosed).over(every).alias("unclosed_last"),
        )
    )  # fmt: skip


def _owners(life_frame: DataFrame) -> DataFrame:
    """The state directories that have whole histories."""
    return life_frame.where("is_whole").select(*OWNER, "unclosed_last").distinct()


def _calls(frame: DataFrame) -> DataFrame:
    """The lines about puts, each with the checksum of the call: that of the last try before it."""
    order = Window.partitionBy("channel", *OWNER).orderBy("at")
    tried = F.when(_event("tried"), F.struct("number", "count", "crc"))
    same = (F.col("call.number") == F.col("number")) & (F.col("call.count") == F.col("count"))
    return (
        frame.where(_event("tried", "answered", "refused"))
        .withColumn("call", F.last(tried, ignorenulls=True).over(order))
        .select(
            "channel", F.col("name").alias("publisher"), "instance", "at", "event", "number",
            "count", F.when(same, F.col("call.crc")).alias("crc"), "position", "born",
        )
    )  # fmt: skip


def told(frame: DataFrame, puts: DataFrame, topics: DataFrame) -> DataFrame:
    """What clients were told is put, as far as the journal can tell, with what is there."""
    heard = (
        _calls(frame)
        .where(_event("answered"))
        .select("channel", "publisher", "number", "count", "position", "crc", "born")
        .join(F.broadcast(topics), ["channel", "born"])
        .where(_is_judged())
    )
    there = puts.groupBy("channel", "publisher", "number").agg(
        F.count("*").alias("_found"),
        F.min("sequence").alias("sequence"),
        *(F.min(name).alias(f"found_{name}") for name in ("position", "count", "crc")),
    )
    return heard.join(there, ["channel", "publisher", "number"], "left").withColumn(
        "found", F.coalesce("_found", F.lit(0))
    )


def _is_judged() -> Column:
    """Whether a position is among the messages of the records that are judged."""
    after_start = ~F.col("is_trimmed") | F.coalesce(
        F.col("position") >= F.col("put_from"), F.lit(False)
    )
    before_fault = ~F.col("has_fault") | F.coalesce(
        F.col("position") <= F.col("put_end"), F.lit(False)
    )
    return after_start & before_fault


def tried(frame: DataFrame, life_frame: DataFrame, puts: DataFrame) -> DataFrame:
    """Accepted puts of clients with whole histories: when was it tried, and refused, at last?

    A refused number is given to the next call, and that may be the same one again.
    """
    by_call = ("channel", "publisher", "instance", "number", "count", "crc")
    tries = (
        _calls(frame)
        .groupBy(*by_call)
        .agg(
            F.max(F.when(_event("tried"), F.col("at"))).alias("tried_at"),
            F.max(F.when(_event("refused"), F.col("at"))).alias("refused_at"),
        )
    )
    known = _owners(life_frame).select(F.col("name").alias("publisher"), "instance")
    return puts.join(F.broadcast(known), ["publisher", "instance"], "left_semi").join(
        tries, [*by_call], "left"
    )


def gets(frame: DataFrame, life_frame: DataFrame) -> DataFrame:
    """What clients with whole histories wrote of their subscriptions and gets.

    ``upto``: everything up to it was the client's before; ``handed_upto``: it had seen this far;
    ``has_left``: the subscription had ended; ``may_lack``: lines may be missing before this one.
    """
    before = (
        Window.partitionBy(*_TICKET, "instance")
        .orderBy("at")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    whole = life_frame.where("is_whole").select(
        F.col("name").alias("subscriber"), "instance", "life", "unclosed_before"
    )
    had_in = F.max(F.when(F.col("has").isNotNull(), F.col("life"))).over(before)
    handed = F.when(_event("got", "received"), F.col("last"))
    return (
        _advances(frame)
        .join(F.broadcast(whole), ["subscriber", "instance", "life"])
        .select(
            "*", F.max("has").over(before).alias("upto"),
            F.max(handed).over(before).alias("handed_upto"),
            F.coalesce(F.max(_event("unsubscribed")).over(before), F.lit(False)).alias("has_left"),
            F.coalesce(F.col("unclosed_before") >= had_in, F.lit(False)).alias("may_lack"),
        )
    )  # fmt: skip


def _advances(frame: DataFrame) -> DataFrame:
    """Lines of subscriptions; ``has``: from then on everything up to it is the client's."""
    wanted = _event("subscribed", "taken_over", "got", "received", "confirmed", "unsubscribed")
    has = F.when(_event("got"), F.col("last")).when(
        _event("subscribed", "taken_over", "confirmed"), F.col("position")
    )
    return (
        frame.where(wanted & (F.col("ticket") > 0))
        .withColumn("last", F.col("first") + F.col("count") - 1)
        .select(
            "channel", F.col("name").alias("subscriber"), "instance", "life", "at", "event",
            "ticket", "first", "last", "count", "crc", "position", "born", has.alias("has"),
        )
    )  # fmt: skip


def got(frame: DataFrame, tickets: DataFrame, topics: DataFrame) -> DataFrame:
    """Stretches that were got of the topics that the journal has, with its word on them.

    A topic that was removed and made anew is another one: what was got of the old one is left out.
    """
    rows = _advances(frame)
    births = rows.groupBy(*_TICKET).agg(F.max("born").alias("ticket_born"))
    begins = tickets.select(*_TICKET, "begins_after")
    ours = F.col("begins_after").isNotNull() | (F.col("ticket_born") == F.col("born"))
    return (
        rows.where(_event("got", "received"))
        .drop("born")
        .join(births, [*_TICKET], "left")
        .join(begins, [*_TICKET], "left")
        .join(F.broadcast(topics), "channel")
        .where(ours)
        .withColumn("is_whole", ~F.col("is_trimmed") & ~F.col("has_fault"))
    )


def contents(got_frame: DataFrame, bodies: DataFrame) -> DataFrame:
    """The stretches, each once, with the checksum of what was put there.

    ``bodies``: one row per Put, with its bodies. ``found`` says how many of the messages are there.
    """
    stretch = ("channel", "first", "last", "count", "crc")
    asked = (
        got_frame.where(F.col("count") > 0)
        .groupBy(*stretch)
        .agg(F.min("subscriber").alias("subscriber"), F.min("ticket").alias("ticket"))
        .withColumn("position", F.explode(F.sequence("first", "last")))
    )
    put = bodies.where(kind_is("Put")).select(
        "channel", "position", F.posexplode("bodies").alias("index", "body")
    )
    place = F.col("position") + F.col("index")
    each = put.select("channel", place.alias("position"), F.hex("body").alias("hex"))
    joined = F.array_join(
        F.transform(F.sort_array(F.collect_list(F.struct("position", "hex"))), lambda x: x["hex"]),
        "",
    )
    return (
        asked.join(each, ["channel", "position"])
        .groupBy(*stretch, "subscriber", "ticket")
        .agg(F.count("*").alias("found"), F.crc32(F.unhex(joined)).alias("put_crc"))
    )


def confirmed(
    frame: DataFrame, life_frame: DataFrame, records: DataFrame, tickets: DataFrame
) -> DataFrame:
    """What was confirmed under each ticket, of clients all of whose directories have histories.

    ``upto`` is what the client had by its own word; ``may_lack``: its last lines may be missing.
    """
    owners = _owners(life_frame).withColumnRenamed("name", "subscriber")
    taken = (
        records.where(kind_is("Confirmed"))
        .groupBy(*_TICKET)
        .agg(
            F.min("first").alias("first"),
            F.max(F.col("first") + F.col("count") - 1).alias("last"),
            F.min("sequence").alias("sequence"),
        )
        .join(tickets.select(*_TICKET, "begins_after"), [*_TICKET])
        .join(_known_clients(records, owners), ["channel", "subscriber"])
    )
    had = (
        _advances(frame)
        .where(F.col("has").isNotNull())
        .groupBy(*_TICKET, "instance")
        .agg(F.max("has").alias("upto"), F.max("life").alias("life"))
        .join(F.broadcast(owners), ["subscriber", "instance"])
        .groupBy(*_TICKET)
        .agg(
            F.max("upto").alias("upto"),
            F.max(F.coalesce(F.col("unclosed_last") >= F.col("life"), F.lit(False))).alias("lacks"),
        )
    )
    return taken.join(had, [*_TICKET], "left").withColumn(
        "may_lack", F.coalesce("lacks", F.col("was_killed"))
    )


def _known_clients(records: DataFrame, owners: DataFrame) -> DataFrame:
    """The clients of each topic all of whose state directories have whole histories."""
    used = records.where(F.col("instance").isNotNull()).select(
        "channel", F.coalesce("subscriber", "publisher").alias("subscriber"), "instance"
    )
    known = owners.withColumn("has_history", F.lit(True))
    return (
        used.distinct()
        .join(F.broadcast(known), ["subscriber", "instance"], "left")
        .groupBy("channel", "subscriber")
        .agg(
            F.min(F.coalesce("has_history", F.lit(False))).alias("all_known"),
            F.max(F.col("unclosed_last").isNotNull()).alias("was_killed"),
        )
        .where("all_known")
    )
