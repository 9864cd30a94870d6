"""poll-skip, int-poll-skip: the next position handed out of a line is the next one, none beyond it.

Inside one batch the same fault has its own name: there no rebalancing can have come between.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark.checks.check import of_kind, over_timeline, stolen, within_batch


def _skips() -> Column:
    return of_kind("Delivered") & (F.col("first") > F.col("delivered") + 1) & ~stolen()


_DETAIL = "position {first} was handed out when the line had come to {delivered}"

CHECKS = (
    over_timeline("poll-skip", ("Delivered",), lambda: _skips() & ~within_batch(), _DETAIL),
    over_timeline("int-poll-skip", ("Delivered",), lambda: _skips() & within_batch(), _DETAIL),
)
