"""aborted-read: a batch whose every try was refused is not in the journal."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.checks.check import Check, text, violations

NAME = "aborted-read"


def _refused(frame: DataFrame) -> DataFrame:
    """``frame``: accepted batches of publishers with a history, with what became of their tries."""
    return violations(
        frame.where(F.col("was_tried") & F.col("only_refused")), NAME,
        text("{publisher} was told that {partition} from {first}, {count} messages, is refused"),
    )  # fmt: skip


CHECKS = (Check(NAME, "batches", ("refused lines",), _refused),)
