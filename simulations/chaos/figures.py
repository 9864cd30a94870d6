"""What happened in a chaos run, in numbers, out of the journal and the clients' histories.

Pure: records and lines in, numbers out. These are figures to read, not a judgement; the only rule
here is which messages are poison.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Iterable

from broker.core import records as r
from broker.core.message import BODY, SEQUENCE, PartitionKey
from simulations.chaos.actors import KILLS, RAISES

#: (publisher, partition, sequence)
MessageId = tuple[str, str, int]

POISON = (RAISES.encode(), KILLS.encode())


@dataclass
class Figures:
    """A run in numbers. ``handled`` is the subscribers' own word, ``acknowledged`` the journal's.

    ``handed out``: every time that a message was given to a subscriber; ``again``: those after its
    first. The longest stops are times in which nothing was acknowledged, or accepted, while
    messages were to come.
    """

    published: int = 0
    duplicates_dropped: int = 0
    copies_dropped: int = 0
    handled: int = 0
    failed: int = 0
    acknowledged: int = 0
    parked: int = 0
    handed_out: int = 0
    handed_out_again: int = 0
    late: int = 0
    stale_acks: int = 0
    broker_restarts: int = 0
    queue_crashes: int = 0
    longest_stop_handling_s: float = 0.0
    longest_stop_publishing_s: float = 0.0
    records: int = 0
    subscribers_left: Counter[str] = field(default_factory=Counter)
    reassigned: Counter[str] = field(default_factory=Counter)
    poison: set[MessageId] = field(default_factory=set)

    def to_dict(self) -> dict[str, Any]:
        """As plain values; the poison is only counted."""
        return {**vars(self), "poison": len(self.poison)}


def count(records: Iterable[r.Record], lines: Iterable[dict[str, Any]]) -> Figures:
    """The figures of one channel."""
    found = Figures()
    handed: set[tuple[PartitionKey, int]] = set()
    times: dict[str, list[int]] = {"Acked": [], "Published": []}
    for record in records:
        found.records += 1
        if record.kind in times:
            times[record.kind].append(record.at_ms)
        _take(found, handed, record)
    found.handed_out_again = found.handed_out - len(handed)
    found.longest_stop_handling_s = _longest_gap_s(times["Acked"])
    found.longest_stop_publishing_s = _longest_gap_s(times["Published"])
    for line in lines:
        if line["client"] == "subscriber":
            found.handled += sum(line["counts"]) if line["event"] == "finished" else 0
            found.failed += line["event"] == "failed"
    return found


def _take(
    found: Figures, handed: set[tuple[PartitionKey, int]], record: r.Record
) -> None:
    if isinstance(record, r.Published):
        found.published += len(record.entries)
        found.copies_dropped += len(record.dropped)
        found.poison |= set(_poison_in(record))
    elif isinstance(record, r.DuplicatesDropped):
        found.duplicates_dropped += sum(record.counts)
    elif isinstance(record, r.Delivered):
        found.handed_out += sum(record.counts)
        found.late += len(record.late)
        for key, first, number in zip(record.keys, record.firsts, record.counts):
            handed.update((key, first + step) for step in range(number))
    elif isinstance(record, r.Acked):
        found.acknowledged += sum(record.counts)
    elif isinstance(record, r.StaleAcked):
        found.stale_acks += 1
    elif isinstance(record, r.Parked):
        found.parked += 1
    elif isinstance(record, r.SubscriberLeft):
        found.subscribers_left[record.reason] += 1
    elif isinstance(record, r.Reassigned):
        found.reassigned[record.reason] += sum(record.counts)
    elif isinstance(record, r.BrokerStarted):
        found.broker_restarts += 1
    elif isinstance(record, r.QueuesKilled):
        found.queue_crashes += 1


def _poison_in(record: r.Published) -> Iterable[MessageId]:
    """The entries are those that are kept, run after run; a poisonous one is never dropped."""
    if not any(entry[BODY].startswith(POISON) for entry in record.entries):
        return
    partitions = [
        partition
        for index, partition in enumerate(
            partition
            for partition, number in zip(record.partitions, record.counts)
            for _ in range(number)
        )
        if index not in record.dropped
    ]
    for partition, entry in zip(partitions, record.entries):
        if entry[BODY].startswith(POISON):
            yield (record.publisher, partition, entry[SEQUENCE])


def _longest_gap_s(times_ms: list[int]) -> float:
    """The clock may have been set back: then there is no gap."""
    gaps = [after - before for before, after in zip(times_ms, times_ms[1:])]
    return round(max(gaps, default=0) / 1000, 2)
