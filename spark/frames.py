"""The frames that the checks read, by name, made from one pass over the records.

The expensive part is the timeline: every run of the journal sorted by line. It is gone through
once; what is kept of it are the rows that some check suspects, those of irregular segments, and
the last row of each line. A line is judged up to its first suspect row: after that its state cannot
be trusted, and every later row would be suspect for the same reason.
"""

from __future__ import annotations

from functools import cached_property, reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark import history_frame, journal_frame, message_frame
from spark.checks.check import Check
from spark.journal_frame import LINE, kind_is
from spark.session import STORAGE
from spark.topic_frame import of_topic
from spark.topic_frames import TopicFrames


class Frames:
    """All frames of one audit. Each is described where it is made; those of topics in ``topics``.

    Without topics, ``topics`` is None, and so are the frames of that kind.
    """

    def __init__(
        self,
        records: DataFrame,
        judged: DataFrame,
        checks: tuple[Check, ...],
        histories: DataFrame | None,
        topics: TopicFrames | None,
        *,
        drained: bool,
        whole: bool,
        still: bool,
    ) -> None:
        """``whole``: no channel has a fault or lacks its beginning; ``still``: none has grown."""
        self._all = records if topics is None else records.where(~of_topic())
        self.topics = topics
        #: One row per channel: judged_upto, fault (NULL when there is none), is_whole, known_upto.
        self.judged = judged
        self._checks = checks
        self.histories = histories
        self._drained, self._is_whole, self._is_still = drained, whole, still
        self._kept: list[DataFrame] = []

    def named(self, name: str) -> DataFrame | None:
        """A frame by its name; None when this audit does not have it."""
        home = self.topics if name.startswith("topic_") else self
        if home is None:
            return None
        frame: DataFrame | None = getattr(home, name)
        return frame

    def release(self) -> None:
        """Let go of what was kept."""
        for frame in self._kept:
            frame.unpersist()
        if self.topics is not None:
            self.topics.release()

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame)
        return frame.persist(STORAGE)

    @cached_property
    def faults(self) -> DataFrame:
        """One row per channel whose records are not whole, at the first fault."""
        broken = self.judged.where(F.col("fault").isNotNull())
        return broken.withColumn("sequence", F.col("judged_upto") + 1)

    @cached_property
    def records(self) -> DataFrame:
        """The records that are judged: those before the first fault of their channel."""
        if self._is_whole:
            return self._all
        upto = self.judged.select("channel", "judged_upto")
        return self._all.join(F.broadcast(upto), "channel").where(
            F.col("sequence") <= F.col("judged_upto")
        )

    def _known(self, frame: DataFrame) -> DataFrame:
        """Rows of records that were there before the histories were read."""
        if self._is_still:
            return frame
        known = self.judged.select("channel", "known_upto")
        return frame.join(F.broadcast(known), "channel").where(
            F.col("sequence") <= F.col("known_upto")
        )

    @cached_property
    def lifetimes(self) -> DataFrame:
        """One row per life of a subscription."""
        return self._keep(journal_frame.lifetimes(self.records))

    @cached_property
    def events(self) -> DataFrame:
        """One row per (line, run)."""
        return journal_frame.line_events(self.records, self.lifetimes)

    @cached_property
    def sendings(self) -> DataFrame:
        """The runs of publishers that do not continue what their partition had before."""
        rows = journal_frame.sendings(self.records)
        return self._keep(rows.where(self._suspect("sendings")))

    @cached_property
    def marked(self) -> DataFrame:
        """The rows of the timeline that are suspect, irregular, or the last of their line."""
        policies = F.broadcast(journal_frame.policies(self.records))
        rows = journal_frame.timeline(self.events).join(policies, "channel", "left")
        flagged = rows.withColumn("suspect", self._suspect("timeline"))
        return self._keep(flagged.where(F.col("suspect") | F.col("is_last") | F.col("irregular")))

    def _suspect(self, frame: str) -> Column:
        """Whether any check over this frame suspects a row."""
        conditions = [
            check.suspicious()
            for check in self._checks
            if check.suspicious and check.frame == frame
        ]
        return F.coalesce(reduce(or_, conditions), F.lit(False))

    @cached_property
    def timeline(self) -> DataFrame:
        """The first suspect row of each line."""
        order = Window.partitionBy(*LINE).orderBy("sequence", "index")
        suspects = self.marked.where("suspect").withColumn("place", F.row_number().over(order))
        return self._keep(suspects.where(F.col("place") == 1))

    @cached_property
    def lines(self) -> DataFrame:
        """The end of each line: what it was owed, how far it was settled, what is pending."""
        ends = self.marked.where("is_last").select(
            *LINE, "sequence", "owed", F.coalesce("settled_after", F.lit(0)).alias("settled_after"),
            "blocked_at",
        )  # fmt: skip
        pending = F.greatest(F.col("owed") - F.col("settled_after"), F.lit(0))
        living = self.lifetimes.where(F.col("ended").isNull()).select(
            "channel", "subscription", "generation"
        )
        return ends.withColumn("pending", pending).join(
            F.broadcast(living.withColumn("is_alive", F.lit(True))),
            ["channel", "subscription", "generation"],
            "left",
        )

    @cached_property
    def drained(self) -> DataFrame | None:
        """The living lines, if the run is said to be over; a parked partition is parked."""
        if not self._drained:
            return None
        parked = F.coalesce(F.col("blocked_at") == F.col("settled_after") + 1, F.lit(False))
        return self.lines.where(F.col("is_alive") & ~parked)

    @cached_property
    def _messages(self) -> DataFrame:
        """The runs of irregular segments, but of no line whose state is in doubt already."""
        irregular, doubtful = self.marked.where("irregular"), self.timeline.select(*LINE)
        # A line of a subscription that does not exist has no generation.
        same = [irregular[name].eqNullSafe(doubtful[name]) for name in LINE]
        runs = irregular.join(doubtful, same, "left_anti")
        return message_frame.runs_of(runs, self.records)

    @cached_property
    def _accepted(self) -> DataFrame:
        """One row per message of an irregular segment."""
        return self._keep(message_frame.accepted(self._messages))

    @cached_property
    def handed(self) -> DataFrame:
        """One row per position in an irregular segment."""
        return self._keep(message_frame.handed(self._messages))

    @cached_property
    def placed(self) -> DataFrame:
        """One row per message of an irregular segment, with its place."""
        return self._keep(
            message_frame.placed(
                self._accepted,
                self.handed,
                message_frame.redriven(self._messages),
            )
        )

    @cached_property
    def positions(self) -> DataFrame:
        """One row per position in an irregular segment, with the timestamp of its message."""
        stamps = self._accepted.select(*LINE, "start", "message", "timestamp")
        return self.handed.join(stamps, [*LINE, "start", "message"])

    @cached_property
    def members(self) -> DataFrame:
        """Who came, who left, and who was given something."""
        return journal_frame.members(self.records, self.lifetimes)

    @cached_property
    def redrives(self) -> DataFrame:
        """Each position that was parked or redriven, with what happened to it before."""
        return journal_frame.redrives(self.records, self.lifetimes)

    @cached_property
    def ids(self) -> DataFrame:
        """Messages with an id of the user's choice, numbered in the order of acceptance."""
        order = Window.partitionBy("channel").orderBy("sequence", "index")
        chosen = self.records.where(kind_is("Published") & F.col("ids").isNotNull()).select(
            "channel", "sequence", "publisher", F.posexplode("ids").alias("index", "id")
        )
        policies = journal_frame.policies(self.records).select("channel", "dedup_window")
        return (
            chosen.where(F.col("id").isNotNull())
            .withColumn("rank", F.row_number().over(order))
            .join(F.broadcast(policies), "channel")
        )

    @cached_property
    def ledger(self) -> DataFrame:
        """Each change of what a subscription is owed, and each claim about it."""
        return journal_frame.ledger(self.records, self.lifetimes)

    # With histories.

    @cached_property
    def answered(self) -> DataFrame | None:
        """What publishers were told is accepted."""
        if self.histories is None:
            return None
        return history_frame.answered(self.histories, self.records, self.judged)

    @cached_property
    def batches(self) -> DataFrame | None:
        """Accepted batches of publishers with a history."""
        if self.histories is None:
            return None
        return history_frame.batches(self.histories, self._known(self.records))

    @cached_property
    def _deliveries(self) -> DataFrame:
        assert self.histories is not None
        sessions = history_frame.sessions(self.records)
        return self._keep(history_frame.deliveries(self.histories, self.events, sessions))

    @cached_property
    def started(self) -> DataFrame | None:
        """What subscribers started."""
        if self.histories is None:
            return None
        given = history_frame.given(self._deliveries)
        return history_frame.started(self.histories, given, self.judged)

    @cached_property
    def finished(self) -> DataFrame | None:
        """What subscribers finished."""
        if self.histories is None:
            return None
        return self._keep(
            history_frame.finished(self.histories, history_frame.given(self._deliveries))
        )

    @cached_property
    def handled(self) -> DataFrame | None:
        """What subscribers finished per epoch, against what they were given."""
        if self.finished is None:
            return None
        return history_frame.handled(self.finished, self._deliveries)

    @cached_property
    def unfinished(self) -> DataFrame | None:
        """What was acknowledged without having been finished."""
        if self.finished is None:
            return None
        return history_frame.unfinished(self.finished, self._known(self._deliveries))
