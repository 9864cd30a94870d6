"""Ask Spark for the figures and fold the small answers into one plain dict. No HTML lives here.

What is collected is bounded by ``Limits``, whatever the size of the journal. One query finds out
what there is; the flows are aggregated once and kept while the figures that are sums of them are
made; the other figures are one query each, and are left out where nothing of the kind happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Row

from spark.figures import failures as failures_figure
from spark.figures import flows as flows_figure
from spark.figures import lanes as lanes_figure
from spark.figures.columns import Scale
from spark.figures.extent import extent
from spark.figures.latency import Sample, latency, sample_for
from spark.figures.parked import parked
from spark.figures.subscribers import subscribers
from spark.figures.withdrawals import withdrawals
from spark.report import fold
from spark.report.scale import scale_for

#: The columns that the figures read; a frame with more of them is welcome.
COLUMNS = (
    "channel", "sequence", "kind", "at_ms", "publisher", "subscriber", "subscription", "count",
    "epoch", "position", "attempt", "reason", "scope", "given_up", "partitions", "publishers",
    "firsts", "counts", "sequences", "epochs", "positions", "dropped", "delays",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is shown. All are per channel except the first and the number of lanes."""

    channels: int = 20
    buckets: int = 240
    lanes: int = 40
    segments: int = 240
    subscribers: int = 50
    subscriptions: int = 8
    parked: int = 200
    reasons: int = 20
    attempts: int = 10
    boundaries: int = 64
    sampled_messages: int = 200_000
    sampled_records: int = 50_000

    def lanes_each(self, channels: int) -> int:
        """With several channels each has fewer lanes: the page holds about two full sets."""
        return min(self.lanes, max(10, 2 * self.lanes // max(1, channels)))


def collect_figures(records: DataFrame, limits: Limits | None = None) -> dict[str, Any]:
    """All figures of the report over a frame of records (at least ``COLUMNS``), as plain values.

    At most nine queries, which pass over the frame about fourteen times (each over a few columns
    and kinds), so it should be persisted or come from Parquet.
    """
    limits = limits or Limits()
    found = [row.asDict(True) for row in extent(records, limits.boundaries).collect()]
    found.sort(key=lambda row: (-(row["published"] or 0), -row["records"], str(row["channel"])))
    known = [row for row in found if row["channel"] is not None and row["start_ms"] is not None]
    busiest, others = known[: limits.channels], known[limits.channels :]
    return {
        "channels": _channels(records, busiest, limits) if busiest else [],
        "channels_left_out": {
            "channels": len(others), "records": sum(row["records"] for row in others),
            "messages": sum(row["published"] or 0 for row in others),
        },
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Asked:
    """What every query is given: the records, the channels shown, their axes, the limits."""

    records: DataFrame
    extents: dict[str, dict[str, Any]]
    scales: dict[str, Scale]
    limits: Limits

    def with_any(self, *kinds: str) -> list[str]:
        """The channels in which one of these kinds of record occurs."""
        return [
            name for name, row in self.extents.items() if any(row[kind] for kind in kinds)
        ]


def _channels(
    records: DataFrame, busiest: list[dict[str, Any]], limits: Limits
) -> list[dict[str, Any]]:
    extents = {row["channel"]: row for row in busiest}
    scales = {
        name: scale_for(row["start_ms"], row["end_ms"], limits.buckets)
        for name, row in extents.items()
    }
    asked = _Asked(records, extents, scales, limits)
    timelines, members = _flows(asked)
    choice, segments = _lanes(asked)
    samples = _samples(asked, timelines, choice)
    latencies = _latency(asked, samples)
    corrections, failed, set_aside = _withdrawals(asked), _failures(asked), _parked(asked)
    return [
        fold.channel(
            fold.Gathered(
                extent=extents[name], scale=scales[name], timeline=timelines.get(name, []),
                members=members.get(name, []), withdrawals=corrections.get(name, []),
                lanes=choice.get(name, []), segments=segments.get(name, []),
                lines_exact=_step(asked, name) == 1, latency=latencies.get(name, []),
                sample=samples.get(name), failures=failed.get(name, []),
                parked=set_aside.get(name, []),
            )
        )
        for name in extents
    ]  # fmt: skip


def _by_channel(rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["channel"], []).append(row.asDict(True))
    return found


def _flows(asked: _Asked) -> tuple[dict[str, Any], dict[str, Any]]:
    eras = {
        name: [boundary["sequence"] for boundary in row["boundaries"]]
        for name, row in asked.extents.items()
    }
    flows = flows_figure.flows(asked.records, asked.scales, eras).persist()
    try:
        timeline = flows_figure.timeline(flows, asked.limits.subscriptions)
        members = subscribers(flows, asked.limits.subscribers)
        return _by_channel(timeline.collect()), _by_channel(members.collect())
    finally:
        flows.unpersist()


def _step(asked: _Asked, channel: str) -> int:
    """One in how many Delivered records is looked at to find the busy partitions."""
    return max(1, int(asked.extents[channel]["Delivered"]) // asked.limits.sampled_records)


def _lanes(asked: _Asked) -> tuple[dict[str, Any], dict[str, Any]]:
    names = asked.with_any("Delivered")
    if not names:
        return {}, {}
    each = asked.limits.lanes_each(len(asked.extents))
    steps = {name: _step(asked, name) for name in names}
    rows = lanes_figure.lane_choice(asked.records, steps, each).collect()
    choice = _by_channel(sorted(rows, key=lambda row: (row["channel"], row["rank"])))
    flat = [row for rows in choice.values() for row in rows]
    for lane, row in enumerate(flat):
        row["lane"] = lane
    if not flat:
        return {}, {}
    lines = [
        (row["channel"], row["subscription"], row["publisher"], row["partition"]) for row in flat
    ]
    segments = lanes_figure.lane_segments(
        asked.records, asked.scales, lines, asked.limits.segments
    )
    return choice, _by_channel(segments.collect())


def _samples(
    asked: _Asked, timelines: dict[str, Any], choice: dict[str, Any]
) -> dict[str, Sample]:
    """Which messages the latencies are taken of, from how many were delivered on how many lines."""
    samples = {}
    for name in asked.with_any("Delivered"):
        given = sum(
            row["messages"] for row in timelines.get(name, []) if row["kind"] == "Delivered"
        )
        lines = choice[name][0]["lines"] if name in choice else 1
        samples[name] = sample_for(given, lines, asked.limits.sampled_messages)
    return samples


def _latency(asked: _Asked, samples: dict[str, Sample]) -> dict[str, Any]:
    if not samples:
        return {}
    scales = {name: asked.scales[name] for name in samples}
    return _by_channel(latency(asked.records, scales, samples).collect())


def _withdrawals(asked: _Asked) -> dict[str, Any]:
    names = asked.with_any("Nacked", "Redriven")
    if not names:
        return {}
    scales = {name: asked.scales[name] for name in names}
    return _by_channel(withdrawals(asked.records, scales).collect())


def _failures(asked: _Asked) -> dict[str, Any]:
    names = asked.with_any("Nacked", "Parked")
    if not names:
        return {}
    limits = asked.limits
    frame = failures_figure.failures(asked.records, names, limits.reasons, limits.attempts)
    return _by_channel(frame.collect())


def _parked(asked: _Asked) -> dict[str, Any]:
    names = asked.with_any("Parked")
    if not names:
        return {}
    return _by_channel(parked(asked.records, names, asked.limits.parked).collect())
