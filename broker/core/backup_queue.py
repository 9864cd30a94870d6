"""BackupQueue: every accepted message that is not yet acknowledged; it owns the bodies.

The global queue and the sub-queues hold lines and positions, never messages, so they can be lost
and rebuilt from here (``QueuesKilled``, ``QueuesRestored``). The messages themselves hang on the
lines, one line per subscription; a message is shared by all lines that still need it and freed
with the last.
"""

from __future__ import annotations

from typing import Iterator

from broker.core.message import PartitionKey
from broker.core.partition import Line, Partition
from broker.core.subscription import Subscription


class BackupQueue:
    """The partitions of a channel, by publisher and partition id."""

    __slots__ = ("publishers", "partition_count", "subscriptions")

    def __init__(self) -> None:
        self.publishers: dict[str, dict[str, Partition]] = {}
        self.partition_count = 0
        self.subscriptions: list[Subscription] = []

    def partitions_of(self, publisher: str) -> dict[str, Partition]:
        """A publisher's partitions by id; made for writing when there are none yet."""
        partitions = self.publishers.get(publisher)
        if partitions is None:
            partitions = self.publishers[publisher] = {}
        return partitions

    def open_partition(self, publisher: str, partition_id: str) -> Partition:
        """The partition under that key, which must be new."""
        partitions = self.partitions_of(publisher)
        assert partition_id not in partitions
        partition = Partition(PartitionKey(publisher, partition_id), self.subscriptions)
        partitions[partition_id] = partition
        self.partition_count += 1
        return partition

    def find(self, key: PartitionKey) -> Partition | None:
        """The partition under ``key``."""
        partitions = self.publishers.get(key[0])
        return partitions.get(key[1]) if partitions is not None else None

    def line(self, key: PartitionKey, subscription: Subscription) -> Line:
        """The line of a subscription under ``key``, which must exist."""
        return self.publishers[key[0]][key[1]].lines[subscription.index]

    def partitions(self) -> Iterator[Partition]:
        """All partitions, in order of publisher and then of creation."""
        for partitions in self.publishers.values():
            yield from partitions.values()

    def lines(self, subscription: Subscription) -> Iterator[Line]:
        """All lines of a subscription."""
        index = subscription.index
        for partition in self.partitions():
            yield partition.lines[index]

    def add_subscription(self, subscription: Subscription) -> None:
        """Give every partition a line for a new subscription; it starts empty."""
        assert subscription.index == len(self.subscriptions)
        self.subscriptions.append(subscription)
        for partition in self.partitions():
            partition.lines.append(Line(partition.key, subscription))

    def remove_subscription(self, subscription: Subscription) -> None:
        """Drop a subscription's lines, and with them the messages that only it still needed."""
        del self.subscriptions[subscription.index]
        for partition in self.partitions():
            del partition.lines[subscription.index]
        for index, other in enumerate(self.subscriptions):
            other.index = index
