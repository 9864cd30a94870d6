"""The histories of publishers and subscribers as frames, and set against the journal.

See :mod:`broker.history` for the files, :mod:`spark.topic_history_frame` for clients of topics.

``lines`` is one row per line of any history. The other frames join it with what the journal says of
the same thing, so that a check only compares two columns of one row:

- ``answered``: runs that publishers were told are accepted, with how far the journal accepted;
- ``batches``: accepted batches of publishers that wrote a history, with their own tries;
- ``started``: places at which subscribers started, with who was given that place;
- ``finished``: stretches that subscribers finished, with what the same session had finished;
- ``handled``: per epoch, the sum of the sequences by the subscriber's word and by the journal's;
- ``unfinished``: acked stretches of subscribers with a history that they did not finish.

Only clients that wrote a history are compared: of the others nothing is said.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from spark.journal_frame import KEY, LINE, accepted_runs, kind_is

SCHEMA = (
    "client string, name string, session string, channel string, subscription string, n long, "
    "at_us long, event string, epoch long, call long, partitions array<string>, "
    "firsts array<long>, counts array<long>, crc long, record long, "
    "reason string, publisher string, partition string, position long, sequence long, "
    "attempt long, epochs array<long>, sequence_sums array<long>, "
    "instance string, topic string, number long, count long, ticket long, first long, born long"
)

_BATCH = ("channel", "publisher", "epoch", "partitions", "firsts", "counts")


def lines(session: SparkSession, directory: str) -> DataFrame:
    """Every whole line of every history in a folder.

    What a killed client leaves behind its last line is no JSON and has no event.
    """
    read = session.read.schema(SCHEMA).option("pathGlobFilter", "*.jsonl").json(directory)
    return read.withColumn("file", F.col("_metadata.file_name")).where(
        F.col("event").isNotNull()
    )


def incomplete(frame: DataFrame) -> DataFrame:
    """(file, found, expected): histories that have lost lines; nothing can be proved by them."""
    return (
        frame.groupBy("file")
        .agg(F.count("*").alias("found"), (F.max("n") + 1).alias("expected"))
        .where(F.col("found") != F.col("expected"))
    )


def _of(frame: DataFrame, client: str, *events: str) -> DataFrame:
    return frame.where((F.col("client") == client) & F.col("event").isin(*events))


def _whole(frame: DataFrame, client: str) -> DataFrame:
    """The first lines of histories that go on to their client's end, be it a violent one.

    A client whose disk was full has gone on without a history, and says so in its last line.
    """
    cut = _of(frame, client, "cut").select("file")
    return _of(frame, client, "opened").join(F.broadcast(cut), "file", "left_anti")


def answered(frame: DataFrame, records: DataFrame, judged: DataFrame) -> DataFrame:
    """What publishers were told is accepted, by records that are judged, and what there is."""
    run = F.arrays_zip(
        F.col("partitions").alias("partition"), F.col("firsts").alias("first"),
        F.col("counts").alias("count"),
    )  # fmt: skip
    told = (
        _of(frame, "publisher", "answered")
        .select("channel", F.col("name").alias("publisher"), "record", F.explode(run).alias("run"))
        .select("channel", "publisher", F.col("record").alias("sequence"), "run.*")
        .withColumn("last", F.col("first") + F.col("count") - 1)
        .join(F.broadcast(judged.select("channel", "judged_upto")), "channel")
        .where(F.col("sequence") <= F.col("judged_upto"))
    )
    accepted = accepted_runs(records).groupBy(*KEY).agg(F.max("last").alias("accepted_upto"))
    return told.join(accepted, [*KEY], "left")


def batches(frame: DataFrame, records: DataFrame) -> DataFrame:
    """Accepted batches of publishers with a history: was it tried, and was every try refused?"""
    opened = _whole(frame, "publisher").select(
        "channel", F.col("name").alias("publisher"), "epoch"
    )
    accepted = (
        records.where(kind_is("Published"))
        .select(
            *_BATCH, "sequence", F.element_at("partitions", 1).alias("partition"),
            F.element_at("firsts", 1).alias("first"), "count",
            # Messages that were dropped by their id are not in it.
            F.when(F.size("dropped") == 0, F.col("bodies_crc")).alias("bodies_crc"),
            F.element_at("counts", 1).alias("run_count"),
        )
        .join(F.broadcast(opened.distinct()), ["channel", "publisher", "epoch"], "left_semi")
    )  # fmt: skip
    tried = _tries(frame)
    shapes = tried.groupBy(*_BATCH).agg(
        F.collect_set("crc").alias("crcs"),
        F.collect_set(F.when(~F.col("refused"), F.col("crc"))).alias("crcs_open"),
    )
    # A batch of which only a part was accepted has another shape: then it lies inside a try.
    matched = accepted.join(shapes, [*_BATCH], "left").join(
        _reach(frame), ["channel", "publisher", "epoch", "partition"], "left"
    )
    last = F.col("first") + F.col("run_count") - 1
    crc = F.col("bodies_crc")
    exact = F.col("crcs").isNotNull()
    other_bodies = exact & crc.isNotNull() & ~F.array_contains("crcs", crc)
    within = _within_larger(frame, matched.where(other_bodies).withColumn("last", last))
    was_tried = F.when(
        exact, ~other_bodies | F.coalesce(F.col("within"), F.lit(False))
    ).otherwise(F.coalesce(last <= F.col("tried_upto"), F.lit(False)))
    only_refused = F.coalesce(
        exact & crc.isNotNull() & ~other_bodies & ~F.array_contains("crcs_open", crc),
        F.lit(False),
    )
    return (
        matched.join(F.broadcast(within), ["channel", "sequence"], "left")
        .withColumn("was_tried", was_tried)
        .withColumn("only_refused", only_refused)
    )


def _within_larger(frame: DataFrame, odd: DataFrame) -> DataFrame:
    """Which of the ``odd`` batches may be the accepted part of a larger try.

    Such a part can have the shape of another try, of other messages, that was refused before.
    """
    total = F.aggregate("counts", F.lit(0).cast("long"), lambda left, right: left + right)
    tries = (
        _of(frame, "publisher", "tried")
        .select(
            "channel", F.col("name").alias("publisher"), "epoch", total.alias("tried_count"),
            F.explode(_runs_of_line()).alias("run"),
        )
        .select(
            "channel", "publisher", "epoch", "tried_count",
            F.col("run.partition").alias("partition"), F.col("run.first").alias("tried_first"),
            (F.col("run.first") + F.col("run.count") - 1).alias("tried_last"),
        )
    )  # fmt: skip
    return (
        tries.join(F.broadcast(odd), ["channel", "publisher", "epoch", "partition"])
        .where(
            (F.col("tried_first") == F.col("first"))
            & (F.col("tried_last") >= F.col("last"))
            & (F.col("tried_count") > F.col("count"))
        )
        .select("channel", "sequence", F.lit(True).alias("within"))
        .distinct()
    )


def _tries(frame: DataFrame) -> DataFrame:
    """One row per call that was tried, by its shape, and whether all of it was refused."""
    total = F.aggregate("counts", F.lit(0).cast("long"), lambda left, right: left + right)
    by_call = ("channel", "name", "session", "file", "call")
    tried = (
        _of(frame, "publisher", "tried")
        .select(
            *by_call, "epoch", "crc", "partitions", "firsts", "counts", total.alias("count")
        )
        .dropDuplicates([*by_call, "partitions", "firsts", "counts", "crc"])
    )
    refused = (
        _of(frame, "publisher", "refused")
        .select(*by_call, total.alias("refused_count"))
        .groupBy(*by_call)
        .agg(F.sum("refused_count").alias("refused_count"))
    )
    # What was accepted of a call goes again under its number; what was refused is no part of that.
    largest = F.max("count").over(Window.partitionBy(*by_call))
    whole = F.coalesce(F.col("refused_count") >= F.col("largest"), F.lit(False))
    return (
        tried.withColumn("largest", largest)
        .join(refused, [*by_call], "left")
        .withColumn("refused", whole)
        .withColumnRenamed("name", "publisher")
    )


def _runs_of_line() -> Column:
    """The runs of a publisher's line."""
    return F.arrays_zip(
        F.col("partitions").alias("partition"), F.col("firsts").alias("first"),
        F.col("counts").alias("count"),
    )  # fmt: skip


def _reach(frame: DataFrame) -> DataFrame:
    """How far a publisher tried in each partition."""
    run = F.explode(_runs_of_line()).alias("run")
    return (
        _of(frame, "publisher", "tried")
        .select("channel", F.col("name").alias("publisher"), "epoch", run)
        .groupBy("channel", "publisher", "epoch", F.col("run.partition").alias("partition"))
        .agg(F.max(F.col("run.first") + F.col("run.count") - 1).alias("tried_upto"))
    )


def deliveries(frame: DataFrame, events: DataFrame, sessions: DataFrame) -> DataFrame:
    """The delivered and acked runs of the sessions that wrote a history, with the session."""
    known = _whole(frame, "subscriber").select("channel", "session")
    ours = sessions.join(F.broadcast(known.distinct()), ["channel", "session"], "left_semi")
    life = ours.select(
        F.col("channel").alias("_channel"), F.col("subscription").alias("_subscription"),
        F.col("subscriber").alias("_subscriber"), "session", "joined", "left",
    )  # fmt: skip
    wanted = events.where(kind_is("Delivered", "Acked")).select(
        *LINE, "sequence", "kind", "subscriber", "first", "last", "count", "message_first",
        "epoch",
    )  # fmt: skip
    return wanted.join(
        F.broadcast(life),
        (F.col("channel") == F.col("_channel"))
        & (F.col("subscription") == F.col("_subscription"))
        & (F.col("subscriber") == F.col("_subscriber"))
        & (F.col("sequence") > F.col("joined"))
        & (F.col("left").isNull() | (F.col("sequence") <= F.col("left"))),
    ).drop("_channel", "_subscription", "_subscriber", "joined", "left")


def sessions(records: DataFrame) -> DataFrame:
    """(channel, subscription, subscriber, session, joined, left): the lives of subscribers."""
    life = Window.partitionBy("channel", "subscription", "subscriber").orderBy("sequence")
    return (
        records.where(kind_is("Subscribed"))
        .select("channel", "subscription", "subscriber", "session", "sequence")
        .withColumn("left", F.lead("sequence").over(life))
        .withColumnRenamed("sequence", "joined")
    )


def given(deliveries_frame: DataFrame) -> DataFrame:
    """(channel, epoch): the line and the places that an epoch was given."""
    return (
        deliveries_frame.where(kind_is("Delivered"))
        .groupBy("channel", "epoch", "session", *LINE[1:])
        .agg(
            F.first("subscriber").alias("given_to"),
            F.min("first").alias("given_from"),
            F.max("last").alias("given_upto"),
        )
    )


def started(frame: DataFrame, given_frame: DataFrame, judged: DataFrame) -> DataFrame:
    """Each place at which a subscriber started, with who was given the place."""
    began = _of(frame, "subscriber", "started").select(
        "channel", F.col("name").alias("subscriber"), "session", "subscription", "publisher",
        "partition", "epoch", "position",
    )  # fmt: skip
    # Only of these sessions it is known what they were given.
    told = _whole(frame, "subscriber").select("channel", "session").distinct()
    whole = judged.where(F.col("is_whole")).select("channel")
    known = given_frame.select(
        "channel", "epoch", "given_to", "given_from", "given_upto",
        F.col("publisher").alias("given_publisher"), F.col("partition").alias("given_partition"),
    )  # fmt: skip
    return (
        began.join(F.broadcast(told), ["channel", "session"], "left_semi")
        .join(F.broadcast(whole), "channel")
        .join(known, ["channel", "epoch"], "left")
    )


def _stretches(frame: DataFrame) -> DataFrame:
    run = F.arrays_zip(
        F.col("epochs").alias("epoch"), F.col("firsts").alias("first"),
        F.col("counts").alias("count"), F.col("sequence_sums").alias("sequence_sum"),
    )  # fmt: skip
    return (
        _of(frame, "subscriber", "finished")
        .select(
            "channel", F.col("name").alias("subscriber"), "session", F.explode(run).alias("run")
        )
        .select("channel", "subscriber", "session", "run.*")
        .withColumn("last", F.col("first") + F.col("count") - 1)
    )


def finished(frame: DataFrame, given_frame: DataFrame) -> DataFrame:
    """The stretches that were finished, by line, with what the same session finished before."""
    place = given_frame.select("channel", "epoch", "session", *LINE[1:])
    before = (
        Window.partitionBy(*LINE, "session")
        .orderBy("first", "last")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    return (
        _stretches(frame)
        .join(place, ["channel", "epoch", "session"])
        .withColumn("finished_upto", F.coalesce(F.max("last").over(before), F.lit(0)))
    )


def handled(finished_frame: DataFrame, deliveries_frame: DataFrame) -> DataFrame:
    """Per epoch the sum of the sequences handled, by the subscriber and by the journal."""
    by_client = (
        finished_frame.groupBy("channel", "epoch", "session", "subscriber", *LINE[1:])
        .agg(
            F.min("first").alias("from"),
            F.max("last").alias("upto"),
            F.sum("count").alias("handled_count"),
            F.sum("sequence_sum").alias("sequences_handled"),
        )
        # Otherwise it handled something twice, or left something out: that has its own name.
        .where(F.col("handled_count") == F.col("upto") - F.col("from") + 1)
    )
    runs = deliveries_frame.where(kind_is("Delivered")).select(
        "channel", "epoch", "session", "first", "last", "message_first", "sequence"
    )
    low, high = F.greatest("first", "from"), F.least("last", "upto")
    size = F.greatest(high - low + 1, F.lit(0))
    start = F.col("message_first") + low - F.col("first")
    part = size * start + (size * (size - 1) / 2).cast("long")
    return (
        runs.join(by_client, ["channel", "epoch", "session"])
        .groupBy(
            *LINE, "epoch", "session", "subscriber", F.col("from").alias("first"),
            F.col("upto").alias("last"), "sequences_handled",
        )
        .agg(
            F.sum(part).alias("sequences_delivered"),
            F.sum(size).alias("delivered_count"),
            F.min("sequence").alias("sequence"),
        )
        # What the journal never gave is reported where it was started.
        .where(F.col("delivered_count") == F.col("last") - F.col("first") + 1)
    )  # fmt: skip


def unfinished(finished_frame: DataFrame, deliveries_frame: DataFrame) -> DataFrame:
    """Acked stretches that the same session did not finish, under this epoch or an earlier one."""
    acked = (
        deliveries_frame.where(kind_is("Acked"))
        .groupBy(*LINE, "epoch", "session", "subscriber")
        .agg(
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.sum("count").alias("acked_count"),
            F.min("sequence").alias("sequence"),
        )
    )
    same = finished_frame.groupBy("channel", "epoch", "session").agg(
        F.min("first").alias("_first"), F.max("last").alias("_last"), F.sum("count").alias("_count")
    )
    covered = F.coalesce(
        (F.col("_first") <= F.col("first"))
        & (F.col("_last") >= F.col("last"))
        & (F.col("_count") == F.col("_last") - F.col("_first") + 1),
        F.lit(False),
    )
    open_ones = acked.join(same, ["channel", "epoch", "session"], "left").where(~covered)
    other = finished_frame.select(
        *LINE, "session", F.col("first").alias("_low"), F.col("last").alias("_high")
    )
    common = F.least("last", "_high") - F.greatest("first", "_low") + 1
    # Both functions pass over NULL, which here means that there is nothing to overlap with.
    overlap = F.when(F.col("_low").isNull(), 0).otherwise(F.greatest(common, F.lit(0)))
    return (
        open_ones.drop("_first", "_last", "_count")
        .join(other, [*LINE, "session"], "left")
        .groupBy(
            *LINE, "epoch", "session", "subscriber", "first", "last", "acked_count", "sequence"
        )
        .agg(F.sum(overlap).alias("finished_count"))
        .where(F.col("finished_count") < F.col("acked_count"))
    )
