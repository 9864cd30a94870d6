"""From records to runs: the frames that the checks read. Only column functions and windows here.

- ``records``: one row per record, as the source gives it;
- ``lifetimes``: one row per life of a subscription; positions start anew with each;
- ``sendings``: one row per run that a publisher sent, with what its partition had before;
- ``timeline``: one row per (line, event): everything that happened to one subscription's way
  through one partition, in the journal's order, each with the state of the line before it.

The state is a fold of the events before: how far the line was settled and delivered, who owned it.
Each part of it is set by the event itself (a Delivered run ends at its last position, a Nacked one
goes back to before it), so "the last value that was set" is all the fold there is, and one window
over one sort gives it for every line at once.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

#: What identifies a line.
LINE = ("channel", "subscription", "generation", "publisher", "partition")
#: What identifies a partition.
KEY = ("channel", "publisher", "partition")

#: What the audit needs of a record; timestamps one by one only where a line is irregular.
AUDIT_COLUMNS = (
    "channel", "sequence", "kind", "at_ms", "publisher", "subscriber", "subscription", "count",
    "intact", "epoch", "position", "attempt", "session", "reason", "scope", "policy", "given_up",
    "partitions", "publishers", "firsts", "counts", "sequences", "epochs", "attempts", "positions",
    "late", "dropped", "kept", "offsets", "timestamps", "oldest", "newest", "rising", "bodies_crc",
    "ids", "number", "stamp", "crc", "first", "ticket", "request", "instance",
)  # fmt: skip

LINE_KINDS = ("Published", "Delivered", "Acked", "Nacked", "Reassigned", "Parked", "Redriven")


def kind_is(*kinds: str) -> Column:
    """Whether a row is of one of these kinds."""
    return F.col("kind").isin(*kinds)


def lifetimes(records: DataFrame) -> DataFrame:
    """(channel, subscription, generation, born, ended): sequences; NULL: it has not ended."""
    life = Window.partitionBy("channel", "subscription").orderBy("sequence")
    events = records.where(kind_is("SubscriptionCreated", "SubscriptionDeleted"))
    return (
        events.select("channel", "subscription", "kind", "sequence")
        .withColumn("ended", F.lead("sequence").over(life))
        .where(kind_is("SubscriptionCreated"))
        .select(
            "channel", "subscription", F.col("sequence").alias("generation"),
            F.col("sequence").alias("born"), "ended",
        )
    )  # fmt: skip


def policies(records: DataFrame) -> DataFrame:
    """(channel, attempts_max, dedup_window): what a channel's own policy promises."""
    limit = F.get_json_object("policy", "$.attempts_max").cast("long")
    blocks = F.get_json_object("policy", "$.poison") == "block"
    return records.where(kind_is("ChannelCreated")).select(
        "channel",
        F.when(~blocks, limit).alias("attempts_max"),
        F.get_json_object("policy", "$.dedup_window_count_max").cast("long").alias("dedup_window"),
    )


def runs(records: DataFrame) -> DataFrame:
    """One row per run; of the kinds that speak of one message, one row per record."""
    firsts = F.coalesce("firsts", F.array("position"))
    counts = F.coalesce("counts", F.array(F.when(F.col("position").isNotNull(), F.lit(1))))
    zipped = F.arrays_zip(
        F.col("partitions").alias("partition"),
        firsts.alias("first"),
        counts.alias("count"),
        *(_some(name).alias(alias) for name, alias in _RUN_ARRAYS),
        F.coalesce("epochs", F.array("epoch")).alias("epoch"),
        F.coalesce("attempts", F.array("attempt")).alias("attempt"),
        _some("publishers").alias("publisher"),
    )
    kept = [name for name in records.columns if name not in _EXPLODED]
    exploded = records.select(
        *kept, F.col("publisher").alias("_publisher"), F.element_at("publishers", 1).alias("_same"),
        F.posexplode(zipped).alias("index", "run"),
    )  # fmt: skip
    return exploded.select(
        *kept, "index",
        F.coalesce("_publisher", "run.publisher", "_same").alias("publisher"),
        "run.partition", "run.first", "run.count",
        (F.col("run.first") + F.col("run.count") - 1).alias("last"),
        *(F.col(f"run.{alias}").alias(alias) for _, alias in _RUN_ARRAYS),
        "run.epoch", "run.attempt",
    )  # fmt: skip


_RUN_ARRAYS = (
    ("sequences", "message_first"), ("kept", "kept"), ("oldest", "oldest"), ("newest", "newest"),
    ("rising", "rising"), ("offsets", "offset"),
)  # fmt: skip
_EXPLODED = {
    "publisher", "partitions", "publishers", "firsts", "counts", "sequences", "epochs", "attempts",
    "kept", "oldest", "newest", "rising", "offsets", "count", "epoch", "attempt", "position",
}  # fmt: skip


def _some(name: str) -> Column:
    """An array that is never NULL, since zipping with NULL would lose the row."""
    return F.coalesce(F.col(name), F.array())


def sendings(records: DataFrame) -> DataFrame:
    """The runs of publishers, each with the last sequence accepted of its partition before it."""
    before = (
        Window.partitionBy(*KEY)
        .orderBy("sequence", "index")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    accepted = F.when(kind_is("Published"), F.col("last"))
    return _sent(records, "Published", "DuplicatesDropped").withColumn(
        "accepted_upto", F.coalesce(F.max(accepted).over(before), F.lit(0))
    )


def accepted_runs(records: DataFrame) -> DataFrame:
    """The runs that were accepted."""
    return _sent(records, "Published")


def _sent(records: DataFrame, *kinds: str) -> DataFrame:
    run = F.arrays_zip(
        F.col("partitions").alias("partition"), F.col("firsts").alias("first"),
        F.col("counts").alias("count"),
    )  # fmt: skip
    return (
        records.where(kind_is(*kinds))
        .select("channel", "publisher", "sequence", "kind", F.posexplode(run).alias("index", "run"))
        .select("channel", "publisher", "sequence", "kind", "index", "run.*")
        .withColumn("last", F.col("first") + F.col("count") - 1)
    )


_ARRAYS = (
    "partitions", "publishers", "firsts", "counts", "sequences", "epochs", "attempts", "kept",
    "oldest", "newest", "rising", "offsets",
)  # fmt: skip


def line_events(records: DataFrame, lives: DataFrame, *more: str) -> DataFrame:
    """One row per (line, run): what a publisher sent is there once per living subscription.

    ``more`` are further columns of the record that each of its runs is to carry.
    """
    wanted = records.where(kind_is(*LINE_KINDS)).select(
        "channel", "sequence", "kind", "publisher", "subscriber", "subscription", "position",
        "epoch", "attempt", "reason", "scope", "given_up", "positions", *_ARRAYS,
        F.coalesce(F.size("late") > 0, F.lit(False)).alias("has_late"), *more,
    )  # fmt: skip
    # What was published to nobody has no line.
    alive = _in_life(wanted, lives).where(~kind_is("Published") | F.col("generation").isNotNull())
    return runs(alive)


def _in_life(rows: DataFrame, lives: DataFrame) -> DataFrame:
    """Each row with the life of its subscription; of no subscription: once for each that lives."""
    life = lives.select(
        F.col("channel").alias("_channel"), F.col("subscription").alias("_subscription"),
        "generation", "born", "ended",
    )  # fmt: skip
    joined = rows.join(
        F.broadcast(life),
        (F.col("channel") == F.col("_channel"))
        & (F.col("subscription").isNull() | (F.col("subscription") == F.col("_subscription")))
        & (F.col("born") < F.col("sequence"))
        & (F.col("ended").isNull() | (F.col("sequence") <= F.col("ended"))),
        "left",
    )
    return joined.withColumn("subscription", F.coalesce("subscription", "_subscription")).drop(
        "_channel", "_subscription", "born", "ended"
    )


def timeline(events: DataFrame) -> DataFrame:
    """The events of each line in order, each with the state of the line before it."""
    return _with_segments(_with_state(_with_ends(events)))


def _order() -> WindowSpec:
    """A line up to the row."""
    return Window.partitionBy(*LINE).orderBy("sequence", "index")


def _before() -> WindowSpec:
    """A line before the row."""
    return _order().rowsBetween(Window.unboundedPreceding, -1)


def _with_ends(events: DataFrame) -> DataFrame:
    """What each event settles and delivers by itself: ``_settles`` and ``_delivers``."""
    by_itself = F.when(kind_is("Acked"), F.col("last")).when(
        kind_is("Parked") & (F.col("scope") == "message"), F.col("first")
    )
    # A partition that was parked whole and is given up loses the message it was parked for.
    blocked = F.when(kind_is("Parked") & (F.col("scope") == "partition"), F.col("first")).when(
        kind_is("Redriven"), F.lit(0)
    )
    rows = (
        events.withColumn("_settles", by_itself)
        .withColumn("_blocked_at", F.last(blocked, ignorenulls=True).over(_before()))
        .withColumn("blocked_at", F.last(blocked, ignorenulls=True).over(_order()))
        .withColumn("_settled", F.coalesce(F.max("_settles").over(_before()), F.lit(0)))
    )
    gives_up = (
        kind_is("Redriven")
        & F.col("given_up")
        & (F.col("_blocked_at") > F.col("_settled"))
        & F.array_contains("positions", F.col("_blocked_at"))
    )
    delivers = (
        F.when(kind_is("Delivered"), F.col("last"))
        .when(kind_is("Nacked", "Reassigned"), F.col("first") - 1)
        .when(kind_is("Parked", "Redriven"), F.col("_settles"))
    )
    return (
        rows.withColumn("_gives_up", F.coalesce(gives_up, F.lit(False)))
        .withColumn(
            "_settles", F.coalesce("_settles", F.when(F.col("_gives_up"), F.col("_blocked_at")))
        )
        .withColumn("_delivers", delivers)
    )


def _with_state(rows: DataFrame) -> DataFrame:
    """The state of the line before each event."""
    delivered, published = kind_is("Delivered"), kind_is("Published")
    state = rows.select(
        *LINE, "sequence", "index", "kind", "subscriber", "first", "count", "last",
        "message_first", "epoch", "attempt", "reason", "scope", "given_up", "positions", "has_late",
        "rising", "oldest", "newest", "kept", "offset", "blocked_at",
        F.coalesce("_blocked_at", F.lit(0)).alias("blocked_before"),
        F.coalesce(F.max("_settles").over(_before()), F.lit(0)).alias("settled"),
        F.max("_settles").over(_order()).alias("settled_after"),
        F.coalesce(F.last("_delivers", True).over(_before()), F.lit(0)).alias("delivered"),
        F.last(F.when(delivered, F.struct("subscriber", "epoch")), True).over(_before()).alias(
            "_owner"
        ),
        F.max(F.when(delivered, F.col("last"))).over(_before()).alias("handed"),
        F.max(F.when(delivered, F.col("epoch"))).over(_before()).alias("epoch_max"),
        F.max(F.when(published, F.col("last"))).over(_before()).alias("published_upto"),
        F.max("newest").over(_before()).alias("newest_before"),
        F.last(_tried(), True).over(_before()).alias("tried"),
        F.last(_happened(), True).over(_before()).alias("previous"),
        F.lag("sequence").over(_order()).alias("sequence_before"),
        F.lead("sequence").over(_order()).isNull().alias("is_last"),
        F.sum(_owed()).over(_order()).alias("owed"),
        F.coalesce(F.sum(_owed()).over(_before()), F.lit(0)).alias("_owed"),
        F.coalesce(F.sum(_set_aside()).over(_before()), F.lit(0)).alias("_set_aside"),
    )  # fmt: skip
    return state.select(
        "*",
        F.col("_owner.subscriber").alias("owner"),
        F.col("_owner.epoch").alias("owner_epoch"),
        (F.col("delivered") > F.col("settled")).alias("in_flight"),
        (F.col("message_first") + F.col("count") - 1).alias("message_last"),
    ).drop("_owner")


def _with_segments(rows: DataFrame) -> DataFrame:
    """Each row with the segment of its line, and whether the segment is irregular.

    A segment starts with a message that comes when nothing else is owed or set aside: what was
    before has its place by then, so segments can be compared one by one. In a regular segment
    positions and sequences run in parallel, and the runs show all there is to show. Timestamps that
    fall, ids that were dropped, redriven and late messages break that, and so does any fault in the
    order: such a segment is compared message by message (:mod:`spark.message_frame`).
    """
    begins = (
        (kind_is("Published") | (kind_is("Redriven") & ~F.col("given_up")))
        & (F.col("_owed") == F.col("settled"))
        & (F.col("_set_aside") == 0)
    )
    start = F.struct(
        F.col("sequence").alias("start"), F.col("first").alias("message"),
        F.col("settled").alias("position"), F.col("newest_before").alias("newest"),
    )  # fmt: skip
    located = rows.withColumn(
        "segment", F.last(F.when(begins, start), ignorenulls=True).over(_order())
    )
    whole = Window.partitionBy(*LINE, "segment.start")
    return located.withColumn("irregular", F.max(_is_irregular()).over(whole)).drop(
        "_owed", "_set_aside"
    )


def _is_irregular() -> Column:
    """Whether an event makes its segment irregular."""
    place = F.col("first") - F.col("segment.position")
    shifted = F.col("message_first") - F.col("segment.message") + 1 != place
    delivered = kind_is("Delivered") & (F.coalesce(shifted, F.lit(True)) | F.col("has_late"))
    published = kind_is("Published") & (
        ~F.col("rising")
        | (F.col("oldest") < F.col("newest_before"))
        | (F.coalesce("kept", "count") < F.col("count"))
    )
    redriven = kind_is("Redriven") & ~F.col("given_up")
    return F.coalesce(delivered | published | redriven, F.lit(False))


def _set_aside() -> Column:
    """By how much an event changes the number of parked messages."""
    head = F.when(F.col("_gives_up"), 1).otherwise(0)
    return (
        F.when(kind_is("Parked") & (F.col("scope") == "message"), F.lit(1))
        .when(kind_is("Redriven"), head - F.size("positions"))
        .otherwise(0)
    )


def _happened() -> Column:
    """What happened to a line last, apart from new messages and redrives."""
    return F.when(
        kind_is("Delivered", "Acked", "Nacked", "Reassigned", "Parked"),
        F.struct("kind", "first", "reason", "attempt"),
    )


def _owed() -> Column:
    """What an event adds to the number of positions that a line will come to have."""
    return (
        F.when(kind_is("Published"), F.coalesce("kept", "count"))
        .when(kind_is("Redriven") & ~F.col("given_up"), F.size("positions"))
        .otherwise(0)
    )


def _tried() -> Column:
    """The last attempt at a message; after a redrive attempts start anew."""
    fresh = kind_is("Redriven")
    return F.when(
        kind_is("Delivered", "Nacked", "Redriven"),
        F.struct(
            F.when(~fresh, F.col("first")).alias("position"),
            F.when(~fresh, F.col("attempt")).alias("attempt"),
            kind_is("Nacked").alias("failed"),
        ),
    )


def members(records: DataFrame, lives: DataFrame) -> DataFrame:
    """Who came, who left, and who was given something, by life of the subscription."""
    wanted = records.where(kind_is("Subscribed", "SubscriberLeft", "Delivered")).select(
        "channel", "subscription", "subscriber", "sequence", "kind"
    )
    return _in_life(wanted, lives)


def ledger(records: DataFrame, lives: DataFrame) -> DataFrame:
    """(channel, subscription, generation, sequence, change, claim), at the level of records.

    ``change`` is by how much the record changes what the subscription is owed, ``claim`` what the
    record says is owed (to all subscriptions, unless it speaks of one).
    """
    change = (
        F.when(kind_is("Published"), F.col("count") - F.size("dropped"))
        .when(kind_is("Acked"), -F.col("count"))
        .when(kind_is("Parked") & (F.col("scope") == "message"), F.lit(-1))
        .when(kind_is("Redriven") & ~F.col("given_up"), F.size("positions"))
    )
    claims = kind_is("SubscriptionDeleted", "QueuesKilled", "QueuesRestored")
    wanted = records.where(claims | change.isNotNull()).select(
        "channel", "sequence", "subscription", change.alias("change"),
        F.when(claims, F.col("count")).alias("claim"),
    )  # fmt: skip
    joined = _in_life(wanted.unionByName(_given_up(records), allowMissingColumns=True), lives)
    known = F.col("generation").isNotNull() | F.col("claim").isNotNull()
    return joined.where(known).select(
        "channel", "subscription", "generation", "sequence", "change", "claim"
    )


def redrives(records: DataFrame, lives: DataFrame) -> DataFrame:
    """Each position that was parked or redriven, with what happened to it before."""
    wanted = records.where(kind_is("Parked", "Redriven")).select(
        "channel", "subscription", "sequence", "kind", "scope",
        F.element_at("publishers", 1).alias("publisher"),
        F.element_at("partitions", 1).alias("partition"),
        F.explode(F.coalesce("positions", F.array("position"))).alias("first"),
    )  # fmt: skip
    place = Window.partitionBy(*LINE, "first").orderBy("sequence")
    return _in_life(wanted, lives).withColumn("kind_before", F.lag("kind").over(place))


def _given_up(records: DataFrame) -> DataFrame:
    """What a drop takes from a line: the message that its whole partition was parked for."""
    wanted = records.where(
        kind_is("Parked") | (kind_is("Redriven") & F.col("given_up"))
    ).select(
        "channel", "subscription", "sequence", "kind", "scope",
        F.element_at("publishers", 1).alias("publisher"),
        F.element_at("partitions", 1).alias("partition"),
        F.explode(F.coalesce("positions", F.array("position"))).alias("position"),
    )  # fmt: skip
    place = Window.partitionBy(
        "channel", "subscription", "publisher", "partition", "position"
    ).orderBy("sequence")
    dropped = wanted.withColumn("parked_as", F.lag("scope").over(place)).where(
        kind_is("Redriven") & (F.col("parked_as") == "partition")
    )
    return dropped.select("channel", "sequence", "subscription", F.lit(-1).alias("change"))
