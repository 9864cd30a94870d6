"""duplicate: each message is accepted once, has one place in a line, and one living subscriber does
not handle it twice."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.checks.check import Check, at_position, of_kind, over_rows, text, violations

NAME = "duplicate"


def _accepted_again() -> Column:
    return of_kind("Published") & (F.col("first") <= F.col("accepted_upto"))


def _two_places(frame: DataFrame) -> DataFrame:
    twice = frame.where(F.col("places") > 1)
    return violations(
        at_position(twice).withColumn("sequence", F.col("at")),
        NAME,
        text("message {message} has {places} places, the last of them {position}"),
    )


def _same_id(frame: DataFrame) -> DataFrame:
    """``frame``: messages with an id of the user's choice, in the order of acceptance."""
    of_id = Window.partitionBy("channel", "id").orderBy("rank")
    again = frame.withColumn("rank_before", F.lag("rank").over(of_id)).where(
        F.col("rank") - F.col("rank_before") <= F.col("dedup_window")
    )
    return violations(again, NAME, text("id {id} was accepted again inside the window"))


def _handled_again(frame: DataFrame) -> DataFrame:
    """``frame``: stretches that were finished, with what the same session had of the line."""
    again = frame.where(F.col("first") <= F.col("finished_upto"))
    return violations(
        again, NAME,
        text("{subscriber} handled {first} to {last} in session {session}, which had handled up "
             "to {finished_upto}"),
    )  # fmt: skip


CHECKS = (
    over_rows(
        "sendings", NAME, ("Published",), _accepted_again,
        "accepted {first} to {last}, but {accepted_upto} were accepted before",
    ),
    Check(NAME, "placed", ("irregular messages",), _two_places),
    Check(NAME, "ids", ("ids",), _same_id),
    Check(NAME, "finished", ("finished lines",), _handled_again),
)  # fmt: skip
