"""publisher-gap: the sequences accepted of a partition are 1, 2, 3 ... with none left out."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark.checks.check import of_kind, over_rows


def _gap() -> Column:
    return of_kind("Published") & (F.col("first") > F.col("accepted_upto") + 1)


CHECKS = (
    over_rows(
        "sendings", "publisher-gap", ("Published",), _gap,
        "accepted {first} to {last}, but the partition had come to {accepted_upto}",
    ),
)  # fmt: skip
