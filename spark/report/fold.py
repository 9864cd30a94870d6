"""Fold the rows that Spark answered for one channel into the plain values that the page draws.

Pure: rows (dicts) in, a JSON-able dict out. Every list over time has one number per bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from spark.figures.columns import Scale
from spark.figures.latency import OVERALL, Sample

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What Spark answered for one channel."""

    extent: dict[str, Any]
    scale: Scale
    timeline: Rows
    members: Rows
    withdrawals: Rows
    lanes: Rows
    segments: Rows
    lines_exact: bool
    latency: Rows
    sample: Sample | None
    failures: Rows
    parked: Rows


def channel(found: Gathered) -> dict[str, Any]:
    """All figures of one channel."""
    extent, scale = found.extent, found.scale
    return {
        "channel": extent["channel"],
        "records": extent["records"],
        "start_ms": extent["start_ms"],
        "end_ms": extent["end_ms"],
        "first_sequence": extent["first_sequence"],
        "last_sequence": extent["last_sequence"],
        "origin_ms": scale.origin_ms,
        "bucket_ms": scale.width_ms,
        "buckets": scale.count,
        "totals": _totals(found.timeline),
        "flow": {
            name: _series(found, kinds)
            for name, kinds in (
                ("published", ("Published",)), ("delivered", ("Delivered",)), ("acked", ("Acked",))
            )
        },
        "events": _events(found),
        "depth": _depth(found),
        "latency": _latency(found),
        "subscribers": _subscribers(found),
        "handovers": _handovers(found),
        "lanes": _lanes(found),
        "retries": _retries(found),
        "parked": _parked(found),
    }  # fmt: skip


def _series(
    found: Gathered, kinds: Iterable[str], column: str = "messages",
    where: Callable[[dict[str, Any]], bool] = lambda row: True,
) -> list[int]:  # fmt: skip
    values = [0] * found.scale.count
    wanted = frozenset(kinds)
    for row in found.timeline:
        if row["kind"] in wanted and where(row):
            values[row["bucket"]] += row[column]
    return values


def _totals(timeline: Rows) -> dict[str, dict[str, int]]:
    """Records and messages of each kind."""
    totals: dict[str, dict[str, int]] = {}
    for row in timeline:
        kind = totals.setdefault(row["kind"], {"records": 0, "messages": 0})
        kind["records"] += row["records"]
        kind["messages"] += row["messages"]
    return dict(sorted(totals.items()))


def _events(found: Gathered) -> list[list[Any]]:
    """[bucket, word, how often] of what touches the whole channel."""
    words = {
        "BrokerStarted": "broker started", "QueuesKilled": "queues killed",
        "QueuesRestored": "queues restored",
    }  # fmt: skip
    rows = [row for row in found.timeline if row["kind"] in words]
    return sorted([row["bucket"], words[row["kind"]], row["records"]] for row in rows)


# Depth: what a subscription is owed and has not settled.


def _depth(found: Gathered) -> dict[str, Any]:
    shown, left_out = _subscriptions(found)
    return {
        "subscriptions": [_depth_of(found, name) for name in shown],
        "left_out": left_out,
        "relative": found.extent["first_sequence"] > 1,
    }


def _subscriptions(found: Gathered) -> tuple[list[str], int]:
    """The subscriptions that are shown, busiest first, and how many of the others there are."""
    acked: dict[str, int] = {}
    for row in found.timeline:
        if row["subscription"] is not None:
            settled = row["messages"] if row["kind"] == "Acked" else 0
            acked[row["subscription"]] = acked.get(row["subscription"], 0) + settled
    made = {boundary["subscription"] for boundary in found.extent["boundaries"]}
    return sorted(acked, key=lambda name: (-acked[name], name)), len(made - acked.keys())


def _depth_of(found: Gathered, name: str) -> dict[str, Any]:
    def own(row: dict[str, Any]) -> bool:
        return bool(row["subscription"] == name)

    def settles(row: dict[str, Any]) -> bool:
        return own(row) and (row["kind"] != "Parked" or row["reason"] == "message")

    withdrawn, given_up = _corrections(found, name)
    owed = _owed(found, name)
    again = _series(found, ["Redriven"], where=lambda r: own(r) and r["reason"] == "sent again")
    settled = _series(found, ["Acked", "Parked", "SubscriptionDeleted"], where=settles)
    delivered = _series(found, ["Delivered"], where=own)
    returned = _series(found, ["Acked", "Reassigned"], where=own)
    waiting = [o + a - s - g for o, a, s, g in zip(owed, again, settled, given_up)]
    in_flight = [d - r - w for d, r, w in zip(delivered, returned, withdrawn)]
    return {
        "subscription": name,
        "depth": list(accumulate(waiting)),
        "in_flight": list(accumulate(in_flight)),
    }


def _owed(found: Gathered, name: str) -> list[int]:
    """What was published while the subscription existed; the era says after which changes."""
    alive = [False]
    for boundary in found.extent["boundaries"]:
        now = alive[-1]
        if boundary["subscription"] == name:
            now = boundary["kind"] == "SubscriptionCreated"
        alive.append(now)
    if not any(b["subscription"] == name for b in found.extent["boundaries"]):
        alive = [True] * len(alive)  # the record of its making is not in this journal
    return _series(found, ["Published"], where=lambda row: alive[row["era"]])


def _corrections(found: Gathered, name: str) -> tuple[list[int], list[int]]:
    withdrawn, given_up = [0] * found.scale.count, [0] * found.scale.count
    for row in found.withdrawals:
        if row["subscription"] == name:
            withdrawn[row["bucket"]] += row["withdrawn"]
            given_up[row["bucket"]] += row["given_up"]
    return withdrawn, given_up


# Latency.


def _latency(found: Gathered) -> dict[str, Any]:
    sample = found.sample
    return {
        "one_in": sample.partitions * sample.blocks if sample else 1,
        "delivery": _measure(found, "delivery"),
        "handling": _measure(found, "handling"),
    }


def _measure(found: Gathered, measure: str) -> dict[str, Any]:
    names = ("p50", "p90", "p99", "max")
    over_time: dict[str, list[float | None]] = {n: [None] * found.scale.count for n in names}
    overall: dict[str, Any] = {"messages": 0}
    for row in found.latency:
        if row["measure"] != measure:
            continue
        values = [*(round(value, 1) for value in row["quantiles"]), row["max_ms"]]
        if row["bucket"] == OVERALL:
            overall = {"messages": row["messages"], **dict(zip(names, values))}
        else:
            for name, value in zip(names, values):
                over_time[name][row["bucket"]] = value
    return {"overall": overall, **over_time}


# Subscribers.

_SUMMED = (
    "members", "squares", "delivered", "acked", "taken_back", "nacked", "stale", "slowed", "slow",
    "joined", "resumed", "left",
)  # fmt: skip


def _subscribers(found: Gathered) -> dict[str, Any]:
    grouped: dict[tuple[Any, ...], Rows] = {}
    for row in found.members:
        key = (row["rest"], row["subscription"], row["subscriber"])
        grouped.setdefault(key, []).append(row)
    summed = [_subscriber(found, rows) for rows in grouped.values()]
    summed.sort(key=lambda row: (row["rest"], row["rank"]))
    fairness = _fairness(summed)
    for row in summed:
        del row["squares"], row["rank"]
    return {
        "rows": [row for row in summed if not row["rest"]],
        "rest": [row for row in summed if row["rest"]],
        "fairness": fairness,
        "joined": _series(found, ["Subscribed"], "records"),
        "left": _series(found, ["SubscriberLeft"], "records"),
        "left_reasons": _reasons(found, "SubscriberLeft"),
    }


def _subscriber(found: Gathered, rows: Rows) -> dict[str, Any]:
    rows.sort(key=lambda row: int(row["bucket"]))
    values: dict[str, Any] = {name: sum(row[name] for row in rows) for name in _SUMMED}
    acked = [0] * found.scale.count
    for row in rows:
        acked[row["bucket"]] += row["acked"]
    values.update(
        subscription=rows[0]["subscription"],
        subscriber=rows[0]["subscriber"],
        rest=rows[0]["rest"],
        rank=min(row["rank"] for row in rows),
        slowest_ms=max((row["slowest_ms"] or 0 for row in rows), default=0),
        first_ms=min(row["first_ms"] for row in rows),
        last_ms=max(row["last_ms"] for row in rows),
    )
    if not values["rest"]:
        values.update(over_time=acked, present=_present(found, rows), marks=_marks(rows))
    return values


def _present(found: Gathered, rows: Rows) -> list[list[int]]:
    """[first, last] buckets in which the subscriber was there, as far as the journal tells."""
    spans: list[list[int]] = []
    since: int | None = None
    for row in rows:
        came, left = row["came_sequence"], row["left_sequence"]
        if since is None:
            since = int(row["bucket"])
        if left is not None and (came is None or left > came):
            spans.append([since, row["bucket"]])
            since = None
    if since is not None:
        spans.append([since, found.scale.count - 1])
    return spans


def _marks(rows: Rows) -> list[list[Any]]:
    """[bucket, joined, resumed, left, reason of the last leave], where anything of it happened."""
    return [
        [row["bucket"], row["joined"], row["resumed"], row["left"], row["left_reason"]]
        for row in rows
        if row["joined"] or row["resumed"] or row["left"]
    ]


def _fairness(rows: Rows) -> list[dict[str, Any]]:
    """Jain's index per subscription: 1 when all did the same work, 1/n when one did it all."""
    groups: dict[str, Rows] = {}
    for row in rows:
        groups.setdefault(row["subscription"], []).append(row)
    found = []
    for name, members in groups.items():
        count = sum(row["members"] for row in members)
        acked = sum(row["acked"] for row in members)
        squares = sum(row["squares"] for row in members)
        index = round(acked * acked / (count * squares), 4) if squares else None
        found.append(
            {"subscription": name, "subscribers": count, "acked": acked, "index": index}
        )
    return sorted(found, key=lambda row: (-row["acked"], str(row["subscription"])))


# Hand-overs, swim lanes, retries, parked messages.


def _reasons(found: Gathered, kind: str) -> list[dict[str, Any]]:
    reasons: dict[str, dict[str, Any]] = {}
    for row in found.timeline:
        if row["kind"] == kind:
            word = row["reason"] or "no reason"
            one = reasons.setdefault(
                word, {"reason": word, "records": 0, "partitions": 0, "messages": 0}
            )
            one["records"] += row["records"]
            one["partitions"] += row["runs"]
            one["messages"] += row["messages"]
    return sorted(reasons.values(), key=lambda one: (-one["messages"], -one["records"]))


def _handovers(found: Gathered) -> dict[str, Any]:
    reasons = _reasons(found, "Reassigned")
    over_time = {}
    for one in reasons:
        word = one["reason"]

        def of_reason(row: dict[str, Any], word: str = word) -> bool:
            return (row["reason"] or "no reason") == word

        over_time[word] = _series(found, ["Reassigned"], "messages", of_reason)
    return {
        "reasons": reasons,
        "over_time": over_time,
        "recalls": _reasons(found, "Recalled"),
        "stale_acks": sum(_series(found, ["StaleAcked"], "records")),
    }


def _lanes(found: Gathered) -> dict[str, Any]:
    owners: dict[str, int] = {}
    by_lane: dict[int, Rows] = {}
    for row in sorted(found.segments, key=lambda row: (row["start_ms"], row["rank"])):
        by_lane.setdefault(row["lane"], []).append(row)
    lines = found.lanes[0]["lines"] if found.lanes else 0
    rows = []
    for lane in found.lanes:
        own = by_lane.get(lane["lane"], [])
        rows.append(
            {
                "subscription": lane["subscription"],
                "publisher": lane["publisher"],
                "partition": lane["partition"],
                "handovers": lane["handovers"],
                "nacks": lane["nacks"],
                "assignments": own[0]["all_assignments"] if own else 0,
                "segments": _segments(found, own, owners),
            }
        )
    return {
        "rows": rows,
        "owners": list(owners),
        "left_out": lines - len(rows),
        "exact": found.lines_exact,
    }


def _segments(found: Gathered, rows: Rows, owners: dict[str, int]) -> list[list[Any]]:
    """[start, end, owner, assignments, messages, ended]; times from the axis' start, -1 is open.

    Stretches of one owner with a gap that the eye could not see are joined.
    """
    origin, gap = found.scale.origin_ms, found.scale.width_ms // 2
    joined: list[list[Any]] = []
    for row in rows:
        owner = owners.setdefault(row["owner"], len(owners))
        end = -1 if row["end_ms"] is None else row["end_ms"] - origin
        start = row["start_ms"] - origin
        last = joined[-1] if joined else None
        close = last is not None and last[2] == owner and last[1] >= 0 and start - last[1] <= gap
        if last is not None and close and last[5] == "done":
            last[1] = end if end < 0 else max(end, last[1])
            last[3] += row["assignments"]
            last[4] += row["messages"]
            last[5] = row["ended"]
        else:
            joined.append([start, end, owner, row["assignments"], row["messages"], row["ended"]])
    return joined


def _retries(found: Gathered) -> dict[str, Any]:
    attempts: dict[int, int] = {}
    reasons: dict[str, dict[str, int]] = {"Nacked": {}, "Parked": {}}
    for row in found.failures:
        if row["kind"] == "Nacked":
            attempts[row["attempt"]] = attempts.get(row["attempt"], 0) + row["records"]
        word = "(all other reasons)" if row["rest"] else row["reason"] or "no reason"
        of_kind = reasons[row["kind"]]
        of_kind[word] = of_kind.get(word, 0) + row["records"]
    return {
        "over_time": _series(found, ["Nacked"]),
        "attempts": sorted([key, value] for key, value in attempts.items() if key is not None),
        "reasons": {
            kind: sorted(([k, v] for k, v in found.items()), key=lambda pair: -pair[1])
            for kind, found in reasons.items()
        },
    }


def _parked(found: Gathered) -> dict[str, Any]:
    total = sum(row["records"] for row in found.timeline if row["kind"] == "Parked")
    names = (
        "sequence", "at_ms", "subscription", "publisher", "partition", "position", "attempt",
        "scope", "reason", "fate",
    )  # fmt: skip
    rows = [{name: row[name] for name in names} for row in found.parked]
    rows.sort(key=lambda row: -int(row["sequence"]))
    return {
        "total": total,
        "rows": rows,
        "left_out": total - len(rows),
        "over_time": _series(found, ["Parked"], "records"),
        "fates": _reasons(found, "Redriven"),
    }
