"""The frames of topics that the checks read, by name; what :mod:`spark.frames` is for channels.

The records of topics are gone through once; what is kept of them are the rows that some check
suspects and the end of each subscription. A client is judged up to its first suspect record: what
follows would be suspect for the same reason.
"""

from __future__ import annotations

from functools import cached_property, reduce
from operator import or_

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark import topic_frame, topic_history_frame
from spark.checks.check import Check
from spark.session import STORAGE
from spark.topic_frame import CLIENT


class TopicFrames:
    """All frames of topics of one audit. Each is described where it is made."""

    def __init__(
        self,
        records: DataFrame,
        judged: DataFrame,
        checks: tuple[Check, ...],
        histories: DataFrame | None,
        bodies: DataFrame | None,
        *,
        drained: bool,
        still: bool,
    ) -> None:
        """``bodies``: the Put records with their bodies; ``still``: no topic has grown."""
        self._all, self._judged, self._checks = records, judged, checks
        self._histories, self._bodies = histories, bodies
        self._drained, self._is_still = drained, still
        self._kept: list[DataFrame] = []

    def release(self) -> None:
        """Let go of what was kept."""
        for frame in self._kept:
            frame.unpersist()

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame)
        return frame.persist(STORAGE)

    @cached_property
    def records(self) -> DataFrame:
        """The records of topics that are judged: those before the first fault."""
        upto = self._judged.select("channel", "judged_upto", "known_upto", "is_trimmed")
        return (
            self._all.where(topic_frame.of_topic())
            .join(F.broadcast(upto), "channel")
            .where(F.col("sequence") <= F.col("judged_upto"))
        )

    @cached_property
    def _known(self) -> DataFrame:
        """Those that were there before the histories were read."""
        if self._is_still:
            return self.records
        return self.records.where(F.col("sequence") <= F.col("known_upto"))

    @cached_property
    def marked(self) -> DataFrame:
        """The records that are suspect, or the last word about a subscription."""
        conditions = [
            check.suspicious()
            for check in self._checks
            if check.suspicious and check.frame == "topic_timeline"
        ]
        suspect = F.coalesce(reduce(or_, conditions), F.lit(False))
        rows = topic_frame.events(self.records).withColumn("suspect", suspect)
        return self._keep(rows.where(F.col("suspect") | F.col("is_end")))

    @cached_property
    def topic_timeline(self) -> DataFrame:
        """The first suspect record of each client of a topic."""
        order = Window.partitionBy(*CLIENT).orderBy("sequence")
        suspects = self.marked.where("suspect").withColumn("place", F.row_number().over(order))
        return suspects.where(F.col("place") == 1)

    @cached_property
    def _ends(self) -> DataFrame:
        return topic_frame.ends(self.records)

    @cached_property
    def places(self) -> DataFrame:
        """The open subscriptions."""
        return topic_frame.places(self.marked, self._ends)

    @cached_property
    def topic_drained(self) -> DataFrame | None:
        """The same, if the run is said to be over."""
        return self.places if self._drained else None

    # With histories.

    @cached_property
    def _topics(self) -> DataFrame:
        """One row per topic: which life of that name it is, and what its records cover."""
        known = self._judged.where(topic_frame.of_topic()).select(
            "channel", "born", "is_trimmed", F.col("fault").isNotNull().alias("has_fault")
        )
        return known.join(F.broadcast(self._ends), "channel", "left")

    @cached_property
    def _lines(self) -> DataFrame:
        assert self._histories is not None
        return topic_history_frame.lines(self._histories)

    @cached_property
    def _lives(self) -> DataFrame:
        return self._keep(topic_history_frame.lives(self._lines))

    @cached_property
    def topic_answered(self) -> DataFrame | None:
        """Puts that clients were told are done."""
        if self._histories is None:
            return None
        return topic_history_frame.told(self._lines, topic_frame.puts(self.records), self._topics)

    @cached_property
    def topic_puts(self) -> DataFrame | None:
        """Accepted puts of clients with a history."""
        if self._histories is None:
            return None
        puts = topic_frame.puts(self._known)
        return self._keep(topic_history_frame.tried(self._lines, self._lives, puts))

    @cached_property
    def topic_gets(self) -> DataFrame | None:
        """What clients wrote of their gets."""
        if self._histories is None:
            return None
        return self._keep(topic_history_frame.gets(self._lines, self._lives))

    @cached_property
    def topic_got(self) -> DataFrame | None:
        """Stretches that were got, with the journal's word on the subscription."""
        if self._histories is None:
            return None
        tickets = topic_frame.tickets(self.records)
        return self._keep(topic_history_frame.got(self._lines, tickets, self._topics))

    @cached_property
    def topic_contents(self) -> DataFrame | None:
        """The same with what was put there."""
        if self.topic_got is None or self._bodies is None:
            return None
        return topic_history_frame.contents(self.topic_got, self._bodies)

    @cached_property
    def topic_confirmed(self) -> DataFrame | None:
        """What the journal says was confirmed by clients with a history."""
        if self._histories is None:
            return None
        tickets = topic_frame.tickets(self.records)
        return topic_history_frame.confirmed(self._lines, self._lives, self._known, tickets)
