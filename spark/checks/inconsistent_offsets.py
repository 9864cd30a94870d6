"""inconsistent-offsets: a position stands for one message, however often it is handed out.

With histories also: what a subscriber handled under an epoch is what the journal says it was given.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.checks.check import Check, at_position, text, violations

NAME = "inconsistent-offsets"


def _two_messages(frame: DataFrame) -> DataFrame:
    differs = frame.where(F.col("message_min") != F.col("message_max"))
    return violations(
        at_position(differs),
        NAME, text("position {position} was message {message_min}, then {message_max}"),
    )  # fmt: skip


def _other_messages(frame: DataFrame) -> DataFrame:
    """``frame``: per epoch, what the journal delivered and what the subscriber says it handled."""
    differs = frame.where(F.col("sequences_handled") != F.col("sequences_delivered"))
    return violations(
        differs, NAME,
        text(
            "{subscriber} handled positions {first} to {last} under epoch {epoch}, and the sum of "
            "their sequences is {sequences_handled} by its history, {sequences_delivered} by the "
            "journal"
        ),
    )  # fmt: skip


CHECKS = (
    Check(NAME, "handed", ("irregular messages",), _two_messages),
    Check(NAME, "handled", ("finished lines",), _other_messages),
)
