"""log-integrity: the records are dense and each continues the checksum of the one before it.

What follows the first fault of a channel is not judged by the other checks: a record that is
missing or changed would show up there under other names.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.checks.check import Check, violations

NAME = "log-integrity"


def _faults(frame: DataFrame) -> DataFrame:
    """``frame``: one row per channel with a fault, at its first one."""
    return violations(frame, NAME, F.col("fault"))


CHECKS = (Check(NAME, "faults", ("records",), _faults),)
