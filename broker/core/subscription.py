"""Subscription: a durable named group; its subscribers compete. State only, no choices."""

from __future__ import annotations

from typing import NamedTuple

from broker.core.global_queue import GlobalQueue
from broker.core.message import Entry, PartitionKey
from broker.core.sub_queue import SubQueue


class ParkedMessage(NamedTuple):
    """A message that was set aside, and why."""

    entry: Entry
    attempt: int
    reason: str
    at_ms: int


class Subscription:
    """One group: its global queue, its subscribers' sub-queues, what it still owes."""

    __slots__ = (
        "name", "index", "born_ms", "queue", "subscribers", "pending_count", "pending_bytes",
        "parked", "parked_partitions", "totals",
    )  # fmt: skip

    def __init__(self, name: str, index: int, ageing_ms: int, born_ms: int) -> None:
        self.name = name
        self.born_ms = born_ms
        self.index = index
        self.queue = GlobalQueue(ageing_ms)
        self.subscribers: dict[str, SubQueue] = {}
        self.pending_count = 0
        self.pending_bytes = 0
        self.parked: dict[tuple[PartitionKey, int], ParkedMessage] = {}
        self.parked_partitions: dict[PartitionKey, str] = {}
        self.totals = Totals()

    def __repr__(self) -> str:
        return (
            f"<Subscription {self.name} ready={len(self.queue)} pending={self.pending_count} "
            f"subscribers={len(self.subscribers)}>"
        )


class Totals:
    """What has been counted since the channel was created; a fold of the records."""

    __slots__ = (
        "delivered", "redelivered", "acked", "nacked", "late", "stale_acks", "parked", "delays",
        "long_delays", "slowed", "handovers", "queues_created", "queues_disposed",
    )  # fmt: skip

    def __init__(self) -> None:
        self.delivered = 0
        self.redelivered = 0
        self.acked = 0
        self.nacked = 0
        self.late = 0
        self.stale_acks = 0
        self.parked = 0
        self.delays = 0
        self.long_delays = 0
        self.slowed = 0
        self.handovers: dict[str, int] = {}  # reason -> messages taken back
        self.queues_created = 0
        self.queues_disposed = 0
