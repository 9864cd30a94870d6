"""Columns that several figures share: time buckets, literals per channel, runs. No figure is here.

``Scale`` says for each channel that is shown where its time axis starts and how wide a bucket is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

#: Kinds whose ``reason`` is one of a few words; elsewhere it is free text.
REASONED = ("Reassigned", "Recalled", "SubscriberLeft")


@dataclass(frozen=True, slots=True)
class Scale:
    """The time axis of one channel: ``count`` buckets of ``width_ms`` from ``origin_ms`` on."""

    origin_ms: int
    width_ms: int
    count: int


def kind_is(*kinds: str) -> Column:
    """Whether a record is of one of these kinds."""
    return F.col("kind").isin(*kinds)


def by_channel(values: Mapping[str, int]) -> Column:
    """A number per channel, as a literal that is looked up; NULL for channels that have none."""
    pairs = chain.from_iterable((F.lit(name), F.lit(value)) for name, value in values.items())
    return F.create_map(*pairs)[F.col("channel")]


def shown(records: DataFrame, scales: Mapping[str, Scale]) -> DataFrame:
    """The records of the channels that have a scale; a damaged one may lack its time."""
    return records.filter(F.col("channel").isin(*scales) & F.col("at_ms").isNotNull())


def bucket(at_ms: Column, scales: Mapping[str, Scale]) -> Column:
    """The index of the time bucket in which ``at_ms`` lies."""
    origin = by_channel({name: scale.origin_ms for name, scale in scales.items()})
    width = by_channel({name: scale.width_ms for name, scale in scales.items()})
    return F.floor((at_ms - origin) / width).cast("int")


def reason() -> Column:
    """The reason in one of a few words: of a hand-over, a leave, a parking or a redrive."""
    return (
        F.when(kind_is(*REASONED), F.col("reason"))
        .when(kind_is("Parked"), F.col("scope"))
        .when(kind_is("Redriven"), F.when(F.col("given_up"), "given up").otherwise("sent again"))
    )


def kept() -> Column:
    """How many messages a record speaks of; what Published dropped as known is not counted."""
    dropped = F.when(kind_is("Published"), F.size("dropped"))
    return F.coalesce("count", F.lit(0)) - F.coalesce(F.greatest(dropped, F.lit(0)), F.lit(0))


def runs(records: DataFrame, *columns: str | Column) -> DataFrame:
    """One row per run: ``columns``, then ``publisher``, ``partition`` and the run's ``index``.

    The other arrays are read with ``item(name)`` by that index, in the same select or a later one.
    """
    return records.select("*", F.posexplode("partitions").alias("index", "partition")).select(
        *columns, _publisher().alias("publisher"), "partition", "index"
    )


def item(name: str) -> Column:
    """What the array ``name`` holds for the run at ``index``; NULL where there is no array."""
    return F.get(F.col(name), F.col("index"))


def _publisher() -> Column:
    alone = F.size("publishers") == 1
    several = F.get(F.col("publishers"), F.when(alone, 0).otherwise(F.col("index")))
    return F.coalesce(F.col("publisher"), several)
