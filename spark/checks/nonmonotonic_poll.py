"""nonmonotonic-poll, int-nonmonotonic-poll: what is in flight is not handed out once more.

Handing it out again to the same session after a broken connection is no new delivery and is not
in the journal. To another owner it is single-owner; once it was settled it is no-resurrection.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark.checks.check import of_kind, over_timeline, within_batch, wrong_owner


def _again() -> Column:
    in_flight = (F.col("first") > F.col("settled")) & (F.col("first") <= F.col("delivered"))
    return of_kind("Delivered") & in_flight & ~wrong_owner()


_DETAIL = "position {first} was handed out again when the line had come to {delivered}"

CHECKS = (
    over_timeline(
        "nonmonotonic-poll", ("Delivered",), lambda: _again() & ~within_batch(), _DETAIL
    ),
    over_timeline(
        "int-nonmonotonic-poll", ("Delivered",), lambda: _again() & within_batch(), _DETAIL
    ),
)
