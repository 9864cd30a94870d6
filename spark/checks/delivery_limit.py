"""delivery-limit: attempts count up with failures and end at the policy's limit.

A nack at attempt k is followed by attempt k+1; after the loss of a subscriber the attempt counts
one up or stays, never back. A first attempt is never a later one. Only what has failed is parked,
and what is parked is not handed out.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark.checks.check import of_kind, over_timeline, stolen, wrong_owner


def _in_place() -> Column:
    """A delivery that is otherwise as it should be: other faults have other names."""
    return of_kind("Delivered") & (F.col("first") == F.col("delivered") + 1) & ~stolen()


def _miscounted() -> Column:
    attempt, tried = F.col("attempt"), F.col("tried.attempt")
    same = F.coalesce(F.col("tried.position") == F.col("first"), F.lit(False))
    after_nack = same & F.col("tried.failed") & (attempt != tried + 1)
    after_loss = same & ~F.col("tried.failed") & ~attempt.between(tried, tried + 1)
    fresh = (attempt > 1) & (F.col("first") > F.coalesce("handed", F.lit(0)))
    over = attempt > F.col("attempts_max")
    wrong = after_nack | after_loss | fresh | F.coalesce(over, F.lit(False)) | (attempt < 1)
    return _in_place() & F.coalesce(wrong, F.lit(False))


def _parked_in_flight() -> Column:
    held = F.col("in_flight") | (F.col("first") != F.col("settled") + 1)
    return of_kind("Parked") & (F.col("first") > F.col("settled")) & held


def _delivered_while_parked() -> Column:
    """Handed out, though its whole partition was parked and not redriven since."""
    return of_kind("Delivered") & (F.col("blocked_before") > F.col("settled"))


def _parked_unfailed() -> Column:
    """Parked, though the last thing that happened to it was no failure."""
    was = F.col("previous")
    failed = (was["first"] == F.col("first")) & (
        ((was["kind"] == "Nacked") & (was["attempt"] == F.col("attempt")))
        | ((was["kind"] == "Reassigned") & (was["reason"] == "crash"))
    )
    return (
        of_kind("Parked")
        & (F.col("first") == F.col("settled") + 1)
        & ~F.col("in_flight")
        & ~F.coalesce(failed, F.lit(False))
    )


def _nack_miscounted() -> Column:
    """Nacked as another attempt than the one it was given as."""
    same = F.col("tried.position") == F.col("first")
    return (
        of_kind("Nacked")
        & (F.col("first") == F.col("settled") + 1)
        & F.col("in_flight")
        & ~wrong_owner()
        & F.coalesce(same & (F.col("attempt") != F.col("tried.attempt")), F.lit(False))
    )


CHECKS = (
    over_timeline(
        "delivery-limit", ("Parked",), _parked_unfailed,
        "parked at {first}, attempt {attempt}, without a failure before it",
    ),
    over_timeline(
        "delivery-limit", ("Nacked",), _nack_miscounted,
        "nacked at {first} as attempt {attempt}, which was not the one it was given as",
    ),
    over_timeline(
        "delivery-limit", ("Delivered",), _delivered_while_parked,
        "position {first} was handed out while its partition was parked at {blocked_before}",
    ),
    over_timeline(
        "delivery-limit", ("Delivered",), _miscounted,
        "attempt {attempt} at position {first}, of at most {attempts_max}",
    ),
    over_timeline(
        "delivery-limit", ("Parked",), _parked_in_flight,
        "parked at {first} when settled up to {settled} and delivered up to {delivered}",
    ),
)  # fmt: skip
