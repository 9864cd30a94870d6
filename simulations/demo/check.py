"""The judge: what publishers were told against what subscribers did. Pure, so that it can be tested
with made-up histories; a judge who cannot find a fault would prove nothing.

``find_anomalies`` compares message by message, ``figures`` counts. Neither asks the broker.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any, Collection, Iterable, NamedTuple, Sequence

from simulations.demo.history import History, Key, MessageId, Run

#: Every kind of anomaly, in the order in which they are told.
KINDS = ("lost", "unexpected", "duplicate", "out-of-order", "overlap")


class Anomaly(NamedTuple):
    """One broken promise."""

    kind: str
    text: str


@dataclass
class Told:
    """What the publishers of a channel were told, from their receipts and answers."""

    accepted: set[MessageId] = field(default_factory=set)
    sent_again: int = 0  # copies that were sent on purpose
    duplicates: int = 0  # of which the broker said that it dropped them
    errors: list[str] = field(default_factory=list)


@dataclass
class Figures:
    """A channel in numbers, as its clients saw it."""

    published: int
    delivered: int
    duplicates_dropped: int
    duplicates_handled: int
    reassigned: dict[str, int]
    redelivered: int
    parked: int
    in_order: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def name_of(message: MessageId) -> str:
    """A message in words."""
    publisher, partition, sequence = message
    return f"{publisher}/{partition} #{sequence}"


# What went wrong.


def find_anomalies(
    accepted: Collection[MessageId], histories: Sequence[History]
) -> list[Anomaly]:
    """Every broken promise of one channel."""
    runs = [run for history in histories for run in history.runs]
    died = {item.subscriber: item.died_at for item in histories if item.died_at is not None}
    by_key: dict[Key, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda item: item.start):
        by_key[run.key].append(run)
    found = [*_lost(accepted, runs), *_unexpected(accepted, runs), *_duplicate(runs, died)]
    for line in by_key.values():
        found += _out_of_order(line)
        found += _overlaps(line, died)
    return sorted(found, key=lambda anomaly: KINDS.index(anomaly.kind))


def _lost(accepted: Collection[MessageId], runs: Sequence[Run]) -> Iterable[Anomaly]:
    finished = {run.message for run in runs if run.finish is not None}
    for message in sorted(set(accepted) - finished):
        yield Anomaly("lost", f"{name_of(message)} was accepted and never finished")


def _unexpected(accepted: Collection[MessageId], runs: Sequence[Run]) -> Iterable[Anomaly]:
    """What no publisher was told to be in: a dropped copy, or something that nobody sent."""
    known = set(accepted)
    for run in runs:
        if run.copy:
            yield Anomaly("unexpected", f"a copy reached {run.subscriber}: {name_of(run.message)}")
        elif run.message not in known:
            text = f"{run.subscriber} was given {name_of(run.message)}, which was not accepted"
            yield Anomaly("unexpected", text)


def _duplicate(runs: Sequence[Run], died: dict[str, float]) -> Iterable[Anomaly]:
    """A message may be handled again only if whoever began it before has died."""
    counts: dict[MessageId, list[str]] = defaultdict(list)
    for run in runs:
        if run.subscriber not in died:
            counts[run.message].append(run.subscriber)
    for message, names in counts.items():
        if len(names) > 1:
            yield Anomaly("duplicate", f"{name_of(message)} was handled by {', '.join(names)}")
    of_the_dead = Counter((run.subscriber, run.message) for run in runs if run.subscriber in died)
    for (name, message), count in of_the_dead.items():
        if count > 1:
            yield Anomaly("duplicate", f"{name_of(message)} was handled {count} times by {name}")


def _out_of_order(line: Sequence[Run]) -> Iterable[Anomaly]:
    """First handlings of one partition, by the time of their start, must have rising numbers."""
    seen: set[int] = set()
    highest = 0
    for run in line:
        if run.sequence in seen:
            continue
        seen.add(run.sequence)
        if run.sequence < highest:
            text = f"{name_of(run.message)} was first started after #{highest}"
            yield Anomaly("out-of-order", text)
        highest = max(highest, run.sequence)


def _overlaps(line: Sequence[Run], died: dict[str, float]) -> Iterable[Anomaly]:
    """A run of one partition ends, or its owner dies, before the next one begins."""
    before: Run | None = None
    ended = 0.0
    for run in line:
        if before is not None and run.start < ended:
            text = (
                f"{name_of(run.message)} was started by {run.subscriber} while {before.subscriber} "
                f"had {name_of(before.message)} in hand"
            )
            yield Anomaly("overlap", text)
        end = _end(run, died)
        if before is None or end >= ended:
            before, ended = run, end


def _end(run: Run, died: dict[str, float]) -> float:
    if run.finish is not None:
        return run.finish
    return died.get(run.subscriber, float("inf"))


# What happened, in numbers.


def figures(
    told: Told, histories: Sequence[History], parked: int, long_s: float, long_count: int
) -> Figures:
    """A channel's numbers. ``parked`` is how many messages the channel lists as set aside.

    ``long_s`` and ``long_count``: what a long delay is, and how many make a subscriber slow.
    """
    anomalies = find_anomalies(told.accepted, histories)
    finished: set[MessageId] = set().union(*(history.finished() for history in histories))
    reassigned: Counter[str] = Counter()
    for history in histories:
        reassigned += _given_back(history, long_s, long_count)
        reassigned += _taken_from_the_dead(history, histories)
    return Figures(
        published=len(told.accepted),
        delivered=len(finished & told.accepted),
        duplicates_dropped=told.duplicates,
        duplicates_handled=sum(item.kind in ("unexpected", "duplicate") for item in anomalies),
        reassigned=dict(sorted(reassigned.items())),
        redelivered=sum(
            given.attempt > 1 for history in histories for given in history.given.values()
        ),
        parked=parked,
        in_order=not any(item.kind in ("out-of-order", "overlap") for item in anomalies),
    )


def _given_back(history: History, long_s: float, long_count: int) -> Counter[str]:
    """Messages that a live subscriber had in its buffer and gave back unstarted.

    It is not told why it is asked. After so many long delays it is because it is slow; otherwise
    somebody else had nothing to do ("join"). One bad spell is answered once.
    """
    ends = [run.finish or 0.0 for run in history.longer_than(long_s)]
    back = Counter(given.epoch for given in history.given_back())
    counts: Counter[str] = Counter()
    answered = 0.0  # the time of the last recall that a bad spell was answered with
    for at in sorted({recall.at for recall in history.recalls.values()}):
        slow = sum(answered < end <= at for end in ends) >= long_count
        answered = at if slow else answered
        for recall in history.recalls.values():
            if recall.at == at:
                counts["slow" if slow else "join"] += back[recall.epoch]
    return +counts


def _taken_from_the_dead(history: History, histories: Sequence[History]) -> Counter[str]:
    """Messages that had arrived at a subscriber who died and came to another one afterwards."""
    if history.died_at is None:
        return Counter()
    later: dict[MessageId, int] = {}
    for other in histories:
        if other is not history:
            for given in other.given.values():
                later[given.message] = max(given.epoch, later.get(given.message, 0))
    kept = set(history.given.values()) - set(history.given_back())
    moved = {given.message for given in kept if later.get(given.message, 0) > given.epoch}
    return Counter({"crash": len(moved)} if moved else {})

