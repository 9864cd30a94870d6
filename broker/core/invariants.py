"""Every invariant of a channel, stated once. ``check(channel)`` raises with a dump of the state.

These are statements about one state. What must hold between states (a watermark never falls, a
position never changes its message) is checked by ``History``, which watches the records as they are
applied. Both are used by the property tests and after every step of a simulation.
"""

from __future__ import annotations

from typing import Any

from broker.core import records as r
from broker.core.channel import Channel
from broker.core.message import BODY, PRIORITY, PartitionKey
from broker.core.partition import Line
from broker.core.subscription import Subscription


class InvariantBroken(AssertionError):
    """An invariant does not hold; the text names it and shows the state."""


def _demand(holds: bool, name: str, *shown: object) -> None:
    if not holds:
        raise InvariantBroken(f"{name}: {' '.join(repr(item) for item in shown)}")


def check(channel: Channel) -> None:
    """All invariants over one state of a channel."""
    for partition in channel.backup.partitions():
        _demand(
            len(partition.lines) == len(channel.subscriptions_list),
            "one line per subscription", partition.key,
        )  # fmt: skip
    count = sum(1 for _ in channel.backup.partitions())
    _demand(count == channel.backup.partition_count, "partition count", count)
    _demand(
        len(channel.delivered_ids) <= channel.policy.dedup_window_count_max, "dedup window bounded"
    )
    for index, subscription in enumerate(channel.subscriptions_list):
        _demand(subscription.index == index, "subscription index", subscription)
        _demand(
            channel.subscriptions.get(subscription.name) is subscription,
            "subscription by name", subscription,
        )  # fmt: skip
        _check_subscription(channel, subscription)


def _check_subscription(channel: Channel, subscription: Subscription) -> None:
    pending = size = 0
    for line in channel.backup.lines(subscription):
        _check_line(channel, line)
        pending += line.unsettled
        size += sum(len(entry[BODY]) for entry in line.messages[line.head :])
    counted = subscription.pending_count
    _demand(pending == counted, "conservation of messages", subscription, pending)
    _demand(size == subscription.pending_bytes, "conservation of bytes", subscription, size)
    # What is redriven was accepted before and may go over the limit for new messages.
    _demand(
        pending + len(subscription.parked)
        <= channel.policy.pending_count_max + channel.policy.parked_count_max,
        "pending bounded", subscription,
    )  # fmt: skip
    _demand(
        len(subscription.parked) <= channel.policy.parked_count_max, "parked bounded", subscription
    )
    if not channel.queues_down:
        _check_queues(channel, subscription)
    totals = subscription.totals
    open_queues = sum(1 for line in channel.backup.lines(subscription) if line.owner is not None)
    _demand(
        totals.queues_created - totals.queues_disposed == open_queues,
        "queues created and disposed of", totals.queues_created, totals.queues_disposed,
    )  # fmt: skip


def _check_line(channel: Channel, line: Line) -> None:
    _demand(
        0 <= line.settled <= line.delivered
        and max(line.handed, line.delivered) <= line.settled + line.unsettled,
        "positions in order", line,
    )  # fmt: skip
    _demand(
        (line.owner is not None) == (line.in_flight > 0),
        "a line has an owner exactly while messages of it are in flight", line,
    )  # fmt: skip
    _demand(line.epoch <= channel.epoch, "epochs come from one rising counter", line)
    waiting = line.messages[line.first_unfixed :]
    ordered = [entry for entry in waiting if entry[0] >= line.last_timestamp]
    _demand(ordered == sorted(ordered), "waiting messages are in order", line)
    sequences = [entry[1] for entry in line.messages[line.head :]]
    _demand(len(set(sequences)) == len(sequences), "no message twice in a line", line)
    if line.suspect_upto:
        _demand(line.suspect_upto > line.settled, "suspects are unsettled", line)
        _demand(line.in_flight <= 1, "suspects are handed out one at a time", line)
    else:
        _demand(line.attempt == line.later_attempt == 1, "attempts belong to suspects", line)
        _demand(not line.trial, "only suspects are on trial", line)
    if channel.policy.poison != "block":
        _demand(
            line.parked or line.attempt <= channel.policy.attempts_max, "attempts bounded", line
        )
    queued = line.messages[line.head + line.in_flight :]
    urgent = max((entry[PRIORITY] for entry in queued), default=0)
    _demand(line.level == urgent, "a line ranks by its most urgent waiting message", line, urgent)


def _check_queues(channel: Channel, subscription: Subscription) -> None:
    ready = subscription.queue
    for line in channel.backup.lines(subscription):
        should = line.owner is None and line.unsettled > 0 and not line.parked
        _demand((line in ready) == should, "ready exactly when waiting and unowned", line)
        if line.owner is not None:
            _demand(
                line.owner.held.get(line.epoch) is line, "the owner's sub-queue holds it", line
            )
            _demand(
                subscription.subscribers.get(line.owner.subscriber) is line.owner,
                "the owner is subscribed", line,
            )  # fmt: skip
            hungry = line.waiting > 0 and not line.recalled
            _demand((line in line.owner.hungry) == hungry, "hungry exactly with more to come", line)
            _demand(
                (line in line.owner.pressing) == (hungry and line.level > 0),
                "pressing exactly when hungry and urgent", line,
            )  # fmt: skip
    listed = [*ready.ranked(1 << 62), *ready.trials()]
    _demand(len(listed) == len(set(listed)) == len(ready), "each ready line is queued once", ready)
    for queue in subscription.subscribers.values():
        in_flight = sum(line.in_flight for line in queue.held.values())
        _demand(queue.unsettled == in_flight, "a sub-queue counts what is in flight", queue)
        _demand(queue.unsettled <= queue.prefetch, "prefetch bounds a sub-queue", queue)
        if queue.trial is not None:
            alone = list(queue.held.values()) == [queue.trial] and queue.unsettled == 1
            _demand(alone, "a message on trial is alone in its sub-queue", queue)
        for epoch, line in queue.held.items():
            _demand(
                not line.trial or queue.trial is line, "a line on trial is its queue's trial", line
            )
            _demand(line.epoch == epoch and line.owner is queue, "one owner per line", line)


class History:
    """What must hold between states: watches the records of a channel in journal order.

    Kept independent of the channel's own state, so that a wrong fold cannot hide a wrong record.
    """

    def __init__(self, attempts_max: int) -> None:
        self.attempts_max = attempts_max
        self.next_sequence: dict[PartitionKey, int] = {}
        self.publisher_epoch: dict[str, int] = {}
        self.settled: dict[tuple[str, PartitionKey], int] = {}
        self.delivered: dict[tuple[str, PartitionKey], int] = {}
        self.sequence_at: dict[tuple[str, PartitionKey, int], int] = {}
        self.owner: dict[tuple[str, PartitionKey], tuple[str, int]] = {}
        self.epoch: dict[tuple[str, PartitionKey], int] = {}
        self.attempt: dict[tuple[str, PartitionKey, int], int] = {}
        self.compared = 0

    def watch(self, record: r.Record) -> None:
        """Check one record against all that came before it."""
        handler = getattr(self, "_" + record.kind, None)
        if handler is not None:
            self.compared += 1
            handler(record)

    def _PublisherOpened(self, record: r.PublisherOpened) -> None:
        _demand(
            record.epoch > self.publisher_epoch.get(record.publisher, 0), "publisher epochs rise",
            record,
        )  # fmt: skip
        self.publisher_epoch[record.publisher] = record.epoch

    def _Published(self, record: r.Published) -> None:
        _demand(
            record.epoch >= self.publisher_epoch.get(record.publisher, 0), "producer fencing",
            record
        )
        for partition, first, count in zip(record.partitions, record.firsts, record.counts):
            key = PartitionKey(record.publisher, partition)
            expected = self.next_sequence.get(key, 1)
            _demand(first == expected, "publisher gap or duplicate", record, expected)
            self.next_sequence[key] = first + count

    def _Delivered(self, record: r.Delivered) -> None:
        columns = zip(
            record.keys, record.firsts, record.sequences, record.counts, record.epochs,
            record.attempts,
        )  # fmt: skip
        for key, first, sequence, count, epoch, attempt in columns:
            line = (record.subscription, key)
            owner = self.owner.get(line)
            if owner is None:
                _demand(epoch > self.epoch.get(line, 0), "epochs rise", record, key)
                self.owner[line] = (record.subscriber, epoch)
                self.epoch[line] = epoch
            else:
                _demand(owner == (record.subscriber, epoch), "single owner", record, owner)
            expected = self.delivered.get(line, self.settled.get(line, 0)) + 1
            _demand(first == expected, "poll-skip or nonmonotonic-poll", record, key, expected)
            self.delivered[line] = first + count - 1
            for offset in range(count):
                place = (record.subscription, key, first + offset)
                known = self.sequence_at.setdefault(place, sequence + offset)
                _demand(known == sequence + offset, "inconsistent-offsets", record, place)
            self._check_attempt(record, (record.subscription, key, first), attempt)

    def _check_attempt(self, record: Any, place: tuple[str, PartitionKey, int], value: int) -> None:
        _demand(value <= self.attempts_max, "delivery limit", record)
        _demand(value >= self.attempt.get(place, 1), "attempts never fall", record, place)
        self.attempt[place] = value

    def _Acked(self, record: r.Acked) -> None:
        for key, first, count, epoch in zip(
            record.keys, record.firsts, record.counts, record.epochs
        ):
            line = (record.subscription, key)
            _demand(
                self.owner.get(line) == (record.subscriber, epoch), "fenced ack", record, key
            )
            _demand(first == self.settled.get(line, 0) + 1, "no resurrection", record, key)
            self.settled[line] = first + count - 1
            _demand(self.settled[line] <= self.delivered[line], "ack within delivery", record)
            self._end_if_drained(line)

    def _end_if_drained(self, line: tuple[str, PartitionKey]) -> None:
        if self.settled.get(line, 0) == self.delivered.get(line, 0):
            self.owner.pop(line, None)

    def _Nacked(self, record: r.Nacked) -> None:
        line = (record.subscription, record.key)
        _demand(
            self.owner.get(line) == (record.subscriber, record.epoch), "fenced nack", record
        )
        _demand(record.position == self.settled.get(line, 0) + 1, "nack of the head", record)
        self.delivered[line] = record.position - 1
        del self.owner[line]

    def _Reassigned(self, record: r.Reassigned) -> None:
        for key, first, epoch in zip(record.keys, record.firsts, record.epochs):
            line = (record.subscription, key)
            _demand(
                self.owner.get(line) == (record.subscriber, epoch), "reassign from owner", record
            )
            _demand(first > self.settled.get(line, 0), "nothing settled is taken back", record)
            self.delivered[line] = first - 1
            self._end_if_drained(line)

    def _Parked(self, record: r.Parked) -> None:
        line = (record.subscription, record.key)
        _demand(line not in self.owner, "parked without an owner", record)
        _demand(record.position == self.settled.get(line, 0) + 1, "parked at the head", record)
        if record.scope == "message":
            self.settled[line] = self.delivered[line] = record.position

    def _Redriven(self, record: r.Redriven) -> None:
        line = (record.subscription, record.key)
        if record.dropped and self.settled.get(line, 0) + 1 in record.positions:
            # The message that a whole partition was parked for is given up.
            self.settled[line] = self.delivered[line] = self.settled.get(line, 0) + 1
        # Attempts start anew.
        for place in [item for item in self.attempt if item[1] == record.key]:
            del self.attempt[place]
