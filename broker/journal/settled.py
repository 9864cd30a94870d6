"""How far a channel's journal is settled: what may be archived for good, and trimmed.

A record may go when every message published at or before it is settled or parked in every
subscription, as of the journal's end. Messages of a parked partition count as parked: nobody gets
them before a person decides. Reads a store, changes nothing, and asks nothing of a broker.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

from broker.core.channel import Channel
from broker.core.message import SEQUENCE, PartitionKey
from broker.core.topics import Topic
from broker.core.topics.records import Put
from broker.journal import codec
from broker.journal.bases import Base, machine_of, start_of
from broker.journal.faults import corrupt
from broker.journal.recovery import fold
from broker.journal.sqlite_reader import read_published, read_raw
from broker.journal.sqlite_schema import Head

#: A channel is cut where it held no more than this unsettled: the bodies go into the base's state.
UNSETTLED_BYTES_MAX = 64 * 1024 * 1024


class Unsettled(NamedTuple):
    """A message that somebody is still owed; ``record`` published it, 0 if that was trimmed."""

    record: int
    key: PartitionKey
    sequence: int
    subscription: str


class Settled(NamedTuple):
    """How far a channel is settled, why not further, and where it held much.

    ``changes`` are (sequence, whether the channel held more than UNSETTLED_BYTES_MAX from there
    on), in order.
    """

    upto: int
    oldest: Unsettled | None
    changes: list[tuple[int, bool]]

    def cut_at(self, wanted: int) -> int:
        """The last sequence up to ``wanted`` at which the channel held little; 0 if there is none.
        """
        cut = wanted
        for sequence, heavy in reversed(self.changes):
            if sequence <= cut:
                if not heavy:
                    return cut
                cut = sequence - 1
        return cut


def find_settled(
    path: str, name: str, base: Base, head: Head, on_records: Callable[[int], None]
) -> Settled:
    """Fold the journal from ``base`` to ``head`` and see what is left; raises JournalCorrupt."""
    channel = machine_of(name, base)
    owed: dict[int, int] = {}  # of a topic: the first position in each record
    changes: list[tuple[int, bool]] = []
    heavy, checksum = False, base.checksum
    for row in read_raw(path, name, base.sequence + 1, head.sequence, base.checksum):
        record = codec.restore(row)
        fold(channel, row[codec.SEQUENCE], record)
        if isinstance(record, Put):
            owed[row[codec.SEQUENCE]] = record.position
        checksum = row[codec.CHECKSUM]
        if heavy != (_pending_bytes(channel) > UNSETTLED_BYTES_MAX):
            heavy = not heavy
            changes.append((row[codec.SEQUENCE], heavy))
        on_records(1)
    if checksum != head.checksum:
        reason = f"the journal ended with checksum {head.checksum}, not {checksum}"
        raise corrupt(name, head.sequence, reason)
    if isinstance(channel, Topic):
        return _settled_topic(channel, owed, base, head, changes)
    oldest = _find_oldest(path, base, head, channel)
    if oldest is None:
        return Settled(head.sequence, None, changes)
    return Settled(max(base.sequence, oldest.record - 1), oldest, changes)


def _settled_topic(
    topic: Topic,
    owed: dict[int, int],
    base: Base,
    head: Head,
    changes: list[tuple[int, bool]],
) -> Settled:
    """Everything before the record that has the first message which somebody is still owed."""
    if not len(topic.log):
        return Settled(head.sequence, None, changes)
    record = max(
        (sequence for sequence, position in owed.items() if position <= topic.log.first), default=0
    )
    ((_, _, publisher, number, _, _),) = topic.log.after(0, 1, 0)
    client = min(topic.places, key=lambda name: topic.places[name].confirmed)
    oldest = Unsettled(record, PartitionKey(publisher, topic.name), number, client)
    return Settled(max(base.sequence, record - 1), oldest, changes)


def _pending_bytes(channel: Channel | Topic) -> int:
    if isinstance(channel, Topic):
        return channel.log.size
    return sum([group.pending_bytes for group in channel.subscriptions_list])


def _find_oldest(path: str, base: Base, head: Head, channel: Channel) -> Unsettled | None:
    """The unsettled message whose record comes first in the journal.

    The sequences of a partition rise with the records, so only the first unsettled one of each
    partition can be it.
    """
    firsts = _first_unsettled(channel)
    if not firsts:
        return None
    before = start_of(channel.name, base)
    for item in firsts.values():
        partition = before.backup.find(item.key)
        if partition is not None and item.sequence < partition.next_sequence:
            return item  # published before the base, parked then and redriven since
    for sequence, publisher, runs in read_published(
        path, channel.name, base.sequence + 1, head.sequence
    ):
        for partition_id, first, count in zip(*codec.published_runs(runs)):
            found = firsts.get(PartitionKey(publisher, partition_id))
            if found is not None and first <= found.sequence < first + count:
                return found._replace(record=sequence)
    raise corrupt(channel.name, head.sequence, "an unsettled message was never published")


def _first_unsettled(channel: Channel) -> dict[PartitionKey, Unsettled]:
    found: dict[PartitionKey, Unsettled] = {}
    for group in channel.subscriptions_list:
        for line in channel.backup.lines(group):
            if line.parked or not line.messages:
                continue
            sequence = min(entry[SEQUENCE] for entry in line.messages[line.head :])
            known = found.get(line.key)
            if known is None or sequence < known.sequence:
                found[line.key] = Unsettled(0, line.key, sequence, group.name)
    return found
