"""What a check is, and the columns that every violation has. No anomaly is defined here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from broker.core.anomalies import ANOMALIES

#: The columns of a violation. What a check does not know stays NULL.
VIOLATION: Final = {
    "anomaly": "string", "channel": "string", "sequence": "long", "subscription": "string",
    "publisher": "string", "partition": "string", "subscriber": "string", "first": "long",
    "last": "long", "detail": "string",
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One way to find one anomaly.

    ``frame`` names the frame that ``violations`` is given (see :mod:`spark.frames`). A check that
    looks at single rows also has ``suspicious``: the audit goes through the frame once for all such
    checks and keeps only the rows that one of them suspects.

    ``compares`` names what is counted as compared.
    """

    anomaly: str
    frame: str
    compares: tuple[str, ...]
    violations: Callable[[DataFrame], DataFrame]
    suspicious: Callable[[], Column] | None = None

    def __post_init__(self) -> None:
        assert self.anomaly in ANOMALIES, self.anomaly


def violations(frame: DataFrame, anomaly: str, detail: Column) -> DataFrame:
    """The rows of ``frame`` as violations: the columns it has, under their names."""
    known = {name: F.col(name) for name in frame.columns}
    known |= {"anomaly": F.lit(anomaly), "detail": detail}
    return frame.select(
        *(
            known.get(name, F.lit(None)).cast(kind).alias(name)
            for name, kind in VIOLATION.items()
        )
    )


def over_rows(
    frame: str,
    anomaly: str,
    compares: tuple[str, ...],
    suspicious: Callable[[], Column],
    detail: str,
) -> Check:
    """A check that looks at one row of a frame: ``detail`` is a format of its columns."""
    return Check(
        anomaly,
        frame,
        compares,
        lambda rows: violations(rows.where(suspicious()), anomaly, text(detail)),
        suspicious,
    )


def over_timeline(
    anomaly: str, compares: tuple[str, ...], suspicious: Callable[[], Column], detail: str
) -> Check:
    """A check that looks at one row of the timeline."""
    return over_rows("timeline", anomaly, compares, suspicious, detail)


def text(template: str) -> Column:
    """A text with columns in braces, NULL shown as a dash.

    >>> parts("from {first} to {last}")
    [('from ', 'first'), (' to ', 'last'), ('', None)]
    """
    pieces: list[Column] = []
    for literal, name in parts(template):
        pieces.append(F.lit(literal))
        if name is not None:
            pieces.append(F.coalesce(F.col(name).cast("string"), F.lit("-")))
    return F.concat(*pieces)


def parts(template: str) -> list[tuple[str, str | None]]:
    """A template cut into (text, column after it)."""
    found: list[tuple[str, str | None]] = []
    rest = template
    while "{" in rest:
        literal, _, rest = rest.partition("{")
        name, _, rest = rest.partition("}")
        found.append((literal, name))
    return [*found, (rest, None)]


def of_kind(*kinds: str) -> Column:
    """Whether a row is of one of these kinds."""
    return F.col("kind").isin(*kinds)


def wrong_owner() -> Column:
    """Whether an event speaks for another subscriber or epoch than the one that holds the line."""
    same = (F.col("subscriber") == F.col("owner")) & (F.col("epoch") == F.col("owner_epoch"))
    return ~F.coalesce(same, F.lit(False))


def stolen() -> Column:
    """Whether an event gives away a line that somebody else holds."""
    return F.col("in_flight") & wrong_owner()


def within_batch() -> Column:
    """Whether the event before is of the same record."""
    return F.coalesce(F.col("sequence_before") == F.col("sequence"), F.lit(False))


def at_position(frame: DataFrame) -> DataFrame:
    """``frame`` with its position as the range of the violation."""
    return frame.withColumn("first", F.col("position")).withColumn("last", F.col("position"))
