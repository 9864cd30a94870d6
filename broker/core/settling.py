"""How work ends: acks, nacks, hand-backs, parking. Each decision with its apply beside it.

The fence is in one place, ``_held``: what carries an epoch that its sender does not hold any more
changes nothing and is recorded as stale.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, Iterable, Sequence

from broker.core.assignment import recall_of
from broker.core.commands import Ack, Decision, HandBack, Nack, Redrive
from broker.core.message import BODY, PRIORITY, PartitionKey
from broker.core.partition import Line
from broker.core.records import (
    Acked,
    Nacked,
    Parked,
    Reassigned,
    Record,
    Redriven,
    Slowed,
    StaleAcked,
)
from broker.core.sub_queue import SubQueue
from broker.core.subscription import ParkedMessage, Subscription

if TYPE_CHECKING:
    from broker.core.channel import Channel


def decide_ack(channel: Channel, command: Ack, now_ms: int) -> Decision:
    """Settle what is held under its epoch; all else is stale. Repeating an ack is harmless."""
    channel.refuse_without_queues()
    subscription, queue = channel.member(command)
    keys: list[PartitionKey] = []
    firsts: list[int] = []
    counts: list[int] = []
    epochs: list[int] = []
    lines: list[Line] = []
    stale: dict[int, int] = {}
    held = queue.held
    for epoch, upto in _one_per_epoch(command.epochs, command.uptos):
        line = held.get(epoch)
        if line is None or upto > line.delivered:
            stale[epoch] = upto
            continue
        settled = line.settled
        if upto > settled:
            keys.append(line.key)
            firsts.append(settled + 1)
            counts.append(upto - settled)
            epochs.append(epoch)
            lines.append(line)
    records: list[Record] = []
    if lines:
        delays = _delays(command, epochs) if command.delays else []
        records.append(
            Acked(
                now_ms, subscription.name, queue.subscriber, keys, firsts, counts, epochs,
                delays, lines,
            )
        )  # fmt: skip
        if delays:
            records += _decide_slow(channel, subscription, queue, delays, epochs, counts, now_ms)
    if stale:
        records.append(
            StaleAcked(
                now_ms, subscription.name, queue.subscriber, list(stale), list(stale.values())
            )
        )
    reply = {"acked": sum(counts), "stale": list(stale), "fence": queue.joined}
    return Decision(records, reply)


def _one_per_epoch(epochs: list[int], uptos: list[int]) -> Iterable[tuple[int, int]]:
    """The pairs of a call; where an epoch stands more than once, its highest position counts."""
    if len(set(epochs)) == len(epochs):
        return zip(epochs, uptos)
    highest: dict[int, int] = {}
    for epoch, upto in zip(epochs, uptos):
        highest[epoch] = max(upto, highest.get(epoch, 0))
    return highest.items()


def _delays(command: Ack, epochs: list[int]) -> list[list[int]]:
    run_of = {epoch: index for index, epoch in enumerate(epochs)}
    return [
        [run_of[epoch], position, delay_ms]
        for epoch, position, delay_ms in command.delays
        if epoch in run_of
    ]


def _decide_slow(
    channel: Channel,
    subscription: Subscription,
    queue: SubQueue,
    delays: list[list[int]],
    epochs: list[int],
    counts: list[int],
    now_ms: int,
) -> list[Record]:
    """Too many long delays in the window: what the subscriber has not started moves to others."""
    policy = channel.policy
    long = [delay_ms for _, _, delay_ms in delays if delay_ms >= policy.long_delay_ms]
    recent = [
        delay_ms
        for at_ms, delay_ms in queue.long_delays
        if at_ms > now_ms - policy.long_delay_window_ms
    ]
    if not long or len(recent) + len(long) < policy.long_delays_max:
        return []
    records: list[Record] = [
        Slowed(now_ms, subscription.name, queue.subscriber, recent + long)
    ]
    settled = dict(zip(epochs, counts))
    lines = [
        line
        for epoch, line in queue.held.items()
        if not line.recalled and line.in_flight > settled.get(epoch, 0)
    ]
    if lines and queue.can_recall and len(subscription.subscribers) > 1:
        records.append(recall_of(subscription, queue, lines, "slow", now_ms))
    return records


def apply_acked(channel: Channel, record: Acked) -> None:
    """Forget the messages; a line whose last message in flight is settled has no owner any more."""
    subscription = channel.subscriptions[record.subscription]
    queue = subscription.subscribers[record.subscriber]
    held = queue.held
    lines: list[Line] = record.lines
    if lines is None:
        lines = [held[epoch] for epoch in record.epochs]
    size = 0
    totals = subscription.totals
    for line, count in zip(lines, record.counts):
        messages = line.messages
        if count == 1 == len(messages) and not line.suspect_upto and not line.recalled:
            # The only message of its line, as with a partition per customer: what settle and
            # release would do, in short.
            size += len(messages[0][BODY])
            messages.clear()
            line.settled += 1
            line.irregular = False
            line.owner = None
            del held[line.epoch]
            totals.queues_disposed += 1
            continue
        size += line.settle(count)
        if line.settled == line.delivered:
            release(line, queue, record.at_ms)
    total = sum(record.counts)
    queue.unsettled -= total
    queue.acked_total += total
    queue.seen_ms = queue.progress_ms = record.at_ms
    subscription.pending_count -= total
    subscription.pending_bytes -= size
    totals.acked += total
    if record.delays:
        _apply_delays(channel, subscription, queue, record)


def _apply_delays(
    channel: Channel, subscription: Subscription, queue: SubQueue, record: Acked
) -> None:
    policy, totals = channel.policy, subscription.totals
    totals.delays += len(record.delays)
    since = record.at_ms - policy.long_delay_window_ms
    queue.long_delays = [item for item in queue.long_delays if item[0] > since]
    for _, _, delay_ms in record.delays:
        if delay_ms >= policy.long_delay_ms:
            totals.long_delays += 1
            queue.long_delays.append((record.at_ms, delay_ms))


def release(line: Line, queue: SubQueue, now_ms: int) -> None:
    """End the assignment; the line is ready again if messages wait in it."""
    del queue.held[line.epoch]
    if queue.hungry:
        queue.forget_hunger(line)
    line.owner = None
    line.recalled = ""
    if queue.trial is line:
        queue.trial = None
    line.subscription.totals.queues_disposed += 1
    if line.messages and not line.parked:
        line.subscription.queue.add(line, now_ms)


def apply_slowed(channel: Channel, record: Slowed) -> None:
    """The window starts anew, so that one bad spell is answered once."""
    subscription = channel.subscriptions[record.subscription]
    subscription.subscribers[record.subscriber].long_delays.clear()
    subscription.totals.slowed += 1


def apply_stale_acked(channel: Channel, record: StaleAcked) -> None:
    """Nothing changes; it is only counted."""
    subscription = channel.subscriptions.get(record.subscription)
    if subscription is not None:
        subscription.totals.stale_acks += len(record.epochs)


def decide_nack(channel: Channel, command: Nack, now_ms: int) -> Decision:
    """Retry a failed message in its place, later; after its last attempt the policy applies."""
    channel.refuse_without_queues()
    subscription, queue = channel.member(command)
    line = queue.held.get(command.epoch)
    position = command.position
    if line is None or not line.settled < position <= line.delivered:
        record = StaleAcked(
            now_ms, subscription.name, queue.subscriber, [command.epoch], [position]
        )
        return Decision([record], {"stale": [command.epoch], "fence": queue.joined})
    records: list[Record] = []
    attempt = line.attempt
    before = position - line.settled - 1
    if before:
        records.append(
            Acked(
                now_ms, subscription.name, queue.subscriber, [line.key], [line.settled + 1],
                [before], [command.epoch], [],
            )
        )  # fmt: skip
        attempt = line.later_attempt
    policy = channel.policy
    delay_ms = policy.backoff(attempt) if command.delay_ms is None else command.delay_ms
    records.append(
        Nacked(
            now_ms, subscription.name, queue.subscriber, line.key, position, command.epoch,
            attempt, now_ms + min(delay_ms, policy.backoff_ms_max), command.reason,
        )
    )  # fmt: skip
    parked = command.final or (attempt >= policy.attempts_max and policy.poison != "block")
    if parked:
        records.append(
            park(channel, subscription, line.key, position, attempt, command.reason, now_ms)
        )
    reply = {"stale": [], "attempt": attempt, "parked": parked, "fence": queue.joined}
    return Decision(records, reply)


def park(
    channel: Channel,
    subscription: Subscription,
    key: PartitionKey,
    position: int,
    attempt: int,
    reason: str,
    now_ms: int,
    before: Sequence[Record] = (),
) -> Parked:
    """The record that sets a message aside; its whole partition when there is no room for more.

    ``before`` are the records of the same decision so far: they may park messages, too.
    """
    policy = channel.policy
    parking = sum(
        isinstance(record, Parked)
        and record.subscription == subscription.name
        and record.scope == "message"
        for record in before
    )
    full = len(subscription.parked) + parking >= policy.parked_count_max
    scope = "partition" if full or policy.poison == "park_partition" else "message"
    return Parked(now_ms, subscription.name, key, position, attempt, scope, reason)


def apply_nacked(channel: Channel, record: Nacked) -> None:
    """The line is withdrawn from its owner and waits for the back-off to end."""
    subscription = channel.subscriptions[record.subscription]
    queue = subscription.subscribers[record.subscriber]
    line = queue.held[record.epoch]
    assert record.position == line.settled + 1, (line, record)
    queue.unsettled -= line.in_flight
    line.withdraw(record.position)
    line.attempt = record.attempt + 1
    line.trial = False  # it failed without a crash: no doubt about who did it
    line.suspect_upto = max(line.suspect_upto, record.position)
    line.not_before_ms = record.not_before_ms
    release(line, queue, record.at_ms)
    queue.seen_ms = record.at_ms
    subscription.totals.nacked += 1


def apply_parked(channel: Channel, record: Parked) -> None:
    """Take the message out of its line (or the line out of the queue) and keep the reason."""
    subscription = channel.subscriptions[record.subscription]
    line = channel.backup.line(record.key, subscription)
    assert line.owner is None and record.position == line.settled + 1, (line, record)
    subscription.queue.discard(line)
    subscription.totals.parked += 1
    if record.scope == "partition":
        line.parked = True
        subscription.parked_partitions[record.key] = record.reason
        return
    entry = line.messages[line.head]
    subscription.parked[(record.key, record.position)] = ParkedMessage(
        entry, record.attempt, record.reason, record.at_ms
    )
    _drop_head(subscription, line)
    line.not_before_ms = 0
    if line.messages:
        subscription.queue.add(line, record.at_ms)


def _drop_head(subscription: Subscription, line: Line) -> None:
    """Settle the first message of a line that nobody owns; its position is used up."""
    entry = line.messages[line.head]
    if line.urgent is not None and entry[PRIORITY]:
        line.remove_urgent([entry])
    line.delivered += 1
    subscription.pending_bytes -= line.settle(1)
    subscription.pending_count -= 1


def decide_hand_back(channel: Channel, command: HandBack, now_ms: int) -> Decision:
    """Take back what the subscriber has not started; what it has started stays its own."""
    channel.refuse_without_queues()
    subscription, queue = channel.member(command)
    returned: dict[str, list[tuple[Line, int]]] = {}
    for epoch, upto in _one_per_epoch(command.epochs, command.uptos):
        line = queue.held.get(epoch)
        if line is not None:
            keep = max(line.settled, min(upto, line.delivered))
            if keep < line.delivered:
                returned.setdefault(line.recalled or "left", []).append((line, keep + 1))
    records = [
        taken_back(subscription, queue, items, reason, now_ms)
        for reason, items in returned.items()
    ]
    total = sum(sum(record.counts) for record in records)
    return Decision([*records], {"returned": total})


def taken_back(
    subscription: Subscription,
    queue: SubQueue,
    items: list[tuple[Line, int]],
    reason: str,
    now_ms: int,
) -> Reassigned:
    """The record that takes each line back from a position on."""
    return Reassigned(
        now_ms, subscription.name, queue.subscriber, [line.key for line, _ in items],
        [first for _, first in items], [line.delivered - first + 1 for line, first in items],
        [line.epoch for line, _ in items], reason,
    )  # fmt: skip


def apply_reassigned(channel: Channel, record: Reassigned) -> None:
    """Messages wait again. After a crash they count as tried; otherwise they do not."""
    subscription = channel.subscriptions[record.subscription]
    queue = subscription.subscribers[record.subscriber]
    total = 0
    for epoch, first, count in zip(record.epochs, record.firsts, record.counts):
        line = queue.held[epoch]
        if record.reason == "crash":
            line.blame(channel.policy.attempts_max)
        line.withdraw(first)
        queue.unsettled -= count
        total += count
        if record.reason in ("slow", "join"):
            line.avoid = queue
        if line.settled == line.delivered:
            release(line, queue, record.at_ms)
        else:
            queue.settle_hunger(line)
    handovers = subscription.totals.handovers
    handovers[record.reason] = handovers.get(record.reason, 0) + total


def decide_redrive(channel: Channel, command: Redrive, now_ms: int) -> Decision:
    """Everything parked under a key (or all of it) goes back to its line, or is given up."""
    channel.refuse_without_queues()
    subscription = channel.subscription(command.subscription)
    positions: dict[PartitionKey, list[int]] = {}
    for key, position in subscription.parked:
        if command.key in (None, key):
            positions.setdefault(key, []).append(position)
    for key in subscription.parked_partitions:
        if command.key in (None, key):
            found = positions.setdefault(key, [])
            if command.drop:
                # What is given up of a parked partition is the message that it was parked for.
                found.append(channel.backup.line(key, subscription).settled + 1)
    records: list[Record] = [
        Redriven(now_ms, subscription.name, key, sorted(found), command.drop)
        for key, found in positions.items()
    ]
    messages = sum(len(found) for found in positions.values())
    return Decision(records, {"partitions": len(positions), "messages": messages})


def apply_redriven(channel: Channel, record: Redriven) -> None:
    """Redriven messages are next in their line, with their attempts forgotten."""
    subscription = channel.subscriptions[record.subscription]
    line = channel.backup.line(record.key, subscription)
    keys = [(record.key, position) for position in record.positions]
    entries = [subscription.parked.pop(key).entry for key in keys if key in subscription.parked]
    if not record.dropped and entries:
        start = line.first_unfixed
        for entry in entries:
            insort(line.messages, entry, start)
        line.irregular = True
        line.add_urgent(entries)
        subscription.pending_count += len(entries)
        subscription.pending_bytes += sum(len(entry[4]) for entry in entries)
    if subscription.parked_partitions.pop(record.key, None) is not None:
        line.parked = False
        line.not_before_ms = 0
        if record.dropped:
            _drop_head(subscription, line)
        else:
            line.forget_attempts()
    if line.owner is not None:
        line.owner.settle_hunger(line)
    elif line.messages and not line.parked:
        subscription.queue.add(line, record.at_ms)
