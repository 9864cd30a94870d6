"""Who gets what: the ready line that ranks first goes to the subscriber with the lowest load.

A subscriber owns a line exactly as long as messages of it are in its sub-queue. So an assignment is
always made together with a delivery and ends with the ack (or the loss) of the last message: there
is no owner that must be asked, and no rebalancing that stops the world. While a line is owned, its
owner is topped up from it as room allows, after the ready lines have had their turn.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Iterable

from broker.core.commands import Decision, Dispatch, Send
from broker.core.message import Entry
from broker.core.partition import Line
from broker.core.records import Delivered, Recalled, Record
from broker.core.sub_queue import SubQueue
from broker.core.subscription import Subscription

if TYPE_CHECKING:
    from broker.core.channel import Channel

#: How many queued messages a held partition weighs in a subscriber's load.
PARTITION_WEIGHT = 16


class _Share:
    """What one subscriber gets out of one dispatch."""

    __slots__ = ("queue", "load", "room", "runs", "late", "entries", "topped")

    def __init__(self, queue: SubQueue) -> None:
        self.queue = queue
        self.load = queue.unsettled + PARTITION_WEIGHT * len(queue.held)
        self.room = queue.prefetch - queue.unsettled
        #: (line, first position, first sequence, count, epoch, attempt)
        self.runs: list[tuple[Line, int, int, int, int, int]] = []
        self.late: list[int] = []
        self.entries: list[Entry] = []
        self.topped: set[Line] = set()

    def take(self, line: Line, epoch: int, count_max: int) -> None:
        """Add as much of a line as fits."""
        messages = line.messages
        first = line.delivered + 1
        start = line.head + first - line.settled - 1
        count = len(messages) - start
        if first <= line.suspect_upto:
            count = 1
        elif count > 1:
            count = min(count, self.room, count_max)
        entry = messages[start]
        # What came back has its place already; only what is handed out for the first time is late.
        back = line.handed - first + 1 if line.handed >= first else 0
        if back < count and messages[start + back][0] < line.last_timestamp:
            self._note_late(line, start, back, count)
        # Only the first unsettled message can have been tried before; see Line.
        attempt = line.attempt if first == line.settled + 1 else line.later_attempt
        if count == 1:
            self.runs.append((line, first, entry[1], 1, epoch, attempt))
            self.entries.append(entry)
        else:
            run = messages[start : start + count]
            self.entries += run
            if line.irregular:
                self.split(line, first, epoch, attempt, run)
            else:
                self.runs.append((line, first, entry[1], count, epoch, attempt))
        self.room -= count
        self.load += count

    def top_up(self, lines: Iterable[Line], count_max: int) -> None:
        """Add more of lines that the subscriber owns already."""
        for line in lines:
            if self.room < 1:
                break
            # A line with suspects has one message in flight at a time; see Line.
            if not line.suspect_upto and line not in self.topped:
                self.topped.add(line)
                self.take(line, line.epoch, count_max)

    def _note_late(self, line: Line, start: int, back: int, count: int) -> None:
        offset = len(self.entries) + back
        for index, entry in enumerate(line.messages[start + back : start + count]):
            if entry[0] < line.last_timestamp:
                self.late.append(offset + index)

    def split(self, line: Line, first: int, epoch: int, attempt: int, run: list[Entry]) -> None:
        """Add a run cut wherever its sequences are not contiguous."""
        begin = 0
        for index in range(1, len(run) + 1):
            if index < len(run) and run[index][1] == run[index - 1][1] + 1:
                continue
            self.runs.append((line, first + begin, run[begin][1], index - begin, epoch, attempt))
            begin, attempt = index, line.later_attempt

    def send(self, subscription: Subscription, now_ms: int) -> Send:
        """The record and the messages of this share."""
        name = self.queue.subscriber
        lines, firsts, sequences, counts, epochs, attempts = map(list, zip(*self.runs))
        delivered = Delivered(
            now_ms, subscription.name, name, [line.key for line in lines], firsts, sequences,
            counts, epochs, attempts, self.late, lines,
        )  # fmt: skip
        return Send(subscription.name, name, delivered, self.entries)


def decide_dispatch(channel: Channel, command: Dispatch, now_ms: int) -> Decision:
    """Give out what waits, as far as subscribers have room; one Delivered per subscriber."""
    sends: list[Send] = []
    if not channel.queues_down:
        epoch = channel.epoch
        for subscription in channel.subscriptions_list:
            shares, epoch = _share_out(channel, subscription, epoch, now_ms)
            sends += [share.send(subscription, now_ms) for share in shares if share.runs]
    return Decision([send.delivered for send in sends], {}, sends)


def _share_out(
    channel: Channel, subscription: Subscription, epoch: int, now_ms: int
) -> tuple[Iterable[_Share], int]:
    shares = {
        queue: _Share(queue) for queue in subscription.subscribers.values() if queue.room > 0
    }
    if not shares:
        return (), epoch
    trial = subscription.queue.next_trial()
    if trial is not None:
        epoch = _give_trial(channel, trial, shares, epoch, now_ms)
    count_max = channel.policy.run_count_max
    for queue, share in shares.items():
        if queue.pressing:
            rank_ready = subscription.queue.rank_max(now_ms)
            urgent = [line for line in queue.pressing if line.level > rank_ready]
            share.top_up(sorted(urgent, key=_by_level), count_max)
    if subscription.queue:
        epoch = _give_ready(channel, subscription, shares, epoch, now_ms)
    for queue, share in shares.items():
        share.top_up(queue.hungry, count_max)
    return shares.values(), epoch


def _give_trial(
    channel: Channel, line: Line, shares: dict[SubQueue, _Share], epoch: int, now_ms: int
) -> int:
    """A message at its last attempt after a crash goes to a subscriber that has nothing else.

    The least loaded one is kept free for it, rather one that makes progress: it gets nothing more,
    and when it has settled what it has, it gets this message alone. The others go on.
    """

    def order(share: _Share) -> tuple[bool, int, str]:
        queue = share.queue
        stuck = queue.unsettled and now_ms - queue.progress_ms >= channel.policy.recall_after_ms
        return bool(stuck), share.load, queue.subscriber

    share = min(shares.values(), key=order)
    if not share.queue.unsettled:
        epoch += 1
        share.take(line, epoch, 1)
    share.room = 0
    return epoch


def _by_level(line: Line) -> int:
    return -line.level


def _give_ready(
    channel: Channel,
    subscription: Subscription,
    shares: dict[SubQueue, _Share],
    epoch: int,
    now_ms: int,
) -> int:
    """Walk the ready lines in rank order and give each to the least loaded; return the last epoch.

    The heap may hold an outdated load of a share that was served out of turn (its entry is too
    low); such an entry is corrected when it comes to the top.
    """
    count_max = channel.policy.run_count_max
    alone = len(subscription.subscribers) == 1
    heap = [(share.load, queue.given, queue.subscriber, share) for queue, share in shares.items()]
    heapify(heap)
    for line in subscription.queue.ranked(now_ms):
        while True:
            load, given, name, share = heap[0]
            if share.room < 1:
                heapreplace(heap, (_FULL, given, name, share))
                if heap[0][0] >= _FULL:
                    return epoch
            elif load != share.load:
                heapreplace(heap, (share.load, given, name, share))
            else:
                break
        previous = line.previous
        if previous is not None and previous is not share.queue:
            sticky = shares.get(previous)
            if sticky is not None and sticky.room > 0 and sticky.load <= load:
                share = sticky
        if line.avoid is share.queue and not alone:
            other = _least_loaded_but(shares.values(), share)
            if other is not None:
                share = other
            elif share.queue.held:
                continue
        epoch += 1
        messages = line.messages
        entry = messages[-1]
        if line.head + 1 == len(messages) and line.attempt == 1 and entry[0] >= line.last_timestamp:
            # One fresh message, as with a partition per customer: what take would do, in short.
            share.runs.append((line, line.settled + 1, entry[1], 1, epoch, 1))
            share.entries.append(entry)
            share.room -= 1
            share.load += 1
        else:
            share.take(line, epoch, count_max)
        share.load = load = share.load + PARTITION_WEIGHT
        if share is heap[0][3]:
            heapreplace(heap, (load, epoch, name, share))
    return epoch


_FULL = 1 << 60


def _least_loaded_but(shares: Iterable[_Share], avoided: _Share) -> _Share | None:
    others = [share for share in shares if share is not avoided and share.room > 0]
    return min(others, key=lambda share: share.load, default=None)


def apply_delivered(channel: Channel, record: Delivered) -> None:
    """The runs are in the subscriber's sub-queue now; a new epoch makes it their owner."""
    subscription = channel.subscriptions[record.subscription]
    queue = subscription.subscribers[record.subscriber]
    lines: list[Line] | None = record.lines
    if lines is None:
        find = channel.backup.line
        lines = [find(key, subscription) for key in record.keys]
    held, hungry, totals = queue.held, queue.hungry, subscription.totals
    subscription.queue.discard_all([line for line in lines if line.owner is None])
    opened = len(held)
    if not opened:
        queue.progress_ms = record.at_ms
    for line, first, count, epoch in zip(lines, record.firsts, record.counts, record.epochs):
        if line.owner is None:
            assert epoch > line.epoch, (line, epoch)
            held[epoch] = line
            line.epoch = epoch
            line.owner = line.previous = queue
            line.avoid = None
            line.not_before_ms = 0  # waited for; the clock may run behind it after a restart
            if line.trial:
                queue.trial = line
        assert first == line.delivered + 1 and line.epoch == epoch, (line, first, epoch)
        line.delivered = upto = first + count - 1
        end = line.head + upto - line.settled
        messages = line.messages
        timestamp = messages[end - 1][0]
        if timestamp > line.last_timestamp:
            line.last_timestamp = timestamp
        if line.urgent is not None:
            line.remove_urgent(messages[end - count : end])
        if end < len(messages) or line in hungry:
            # Out and in again: the lines of a sub-queue take turns.
            hungry.pop(line, None)
            queue.settle_hunger(line)
    total = sum(record.counts)
    totals.queues_created += len(held) - opened
    totals.redelivered += len(record.attempts) - record.attempts.count(1)
    # The shares of one dispatch take their epochs in turns.
    queue.given = max(queue.given, max(record.epochs))
    channel.epoch = max(channel.epoch, queue.given)
    queue.unsettled += total
    queue.delivered_total += total
    totals.delivered += total
    totals.late += len(record.late)


def resend(queue: SubQueue) -> _Share:
    """All that a subscriber holds, as a share with the epochs it has already. Changes nothing."""
    share = _Share(queue)
    for epoch, line in queue.held.items():
        first = line.settled + 1
        run = line.entries(first, line.in_flight)
        share.entries += run
        if line.irregular:
            share.split(line, first, epoch, line.attempt, run)
        else:
            share.runs.append((line, first, run[0][1], len(run), epoch, line.attempt))
    return share


def decide_recall(
    channel: Channel, subscription: Subscription, now_ms: int
) -> list[Record]:
    """When a subscriber has nothing and others hold several lines, share.

    Only what would wait: a donor must have more than one message per line, or have acknowledged
    nothing for a while. Each assignment is asked for at most once; the owner answers with what it
    has not started.
    """
    ready = subscription.queue.level_max() >= 0
    if len(subscription.subscribers) < 2 or ready or channel.queues_down:
        return []
    queues = subscription.subscribers.values()
    idle = [queue for queue in queues if not queue.held and queue.room > 0]
    if not idle:
        return []
    held_total = sum(len(queue.held) for queue in queues)
    fair = max(1, held_total // len(subscription.subscribers))
    wanted = fair * len(idle)
    records: list[Record] = []
    for donor in sorted(queues, key=lambda queue: (-len(queue.held), queue.subscriber)):
        spare = min(len(donor.held) - fair, wanted)
        stuck = now_ms - donor.progress_ms >= channel.policy.recall_after_ms
        if spare < 1 or not donor.can_recall or not (stuck or donor.unsettled > len(donor.held)):
            continue
        # The newest assignments are the least likely to have been started.
        lines = [line for line in reversed(donor.held.values()) if not line.recalled][:spare]
        if lines:
            records.append(recall_of(subscription, donor, lines, "join", now_ms))
            wanted -= len(lines)
    return records


def recall_of(
    subscription: Subscription, queue: SubQueue, lines: list[Line], reason: str, now_ms: int
) -> Recalled:
    """The record that asks ``queue`` to hand ``lines`` back as far as they are not started."""
    return Recalled(
        now_ms, subscription.name, queue.subscriber, [line.key for line in lines],
        [line.epoch for line in lines], reason,
    )  # fmt: skip


def apply_recalled(channel: Channel, record: Recalled) -> None:
    """The lines get no more messages under this assignment."""
    queue = channel.subscriptions[record.subscription].subscribers[record.subscriber]
    for epoch in record.epochs:
        line = queue.held[epoch]
        line.recalled = record.reason
        queue.forget_hunger(line)
