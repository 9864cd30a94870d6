"""Counts for people and programs, read off a channel. It only looks; the host holds the lock."""

from __future__ import annotations

from itertools import islice
from typing import Any

from broker.core.channel import Channel
from broker.core.subscription import Subscription
from broker.wire import plain_message


def of_channel(channel: Channel, now_ms: int) -> dict[str, Any]:
    """A channel's state in numbers, with a dict per subscription."""
    groups = {
        group.name: of_subscription(group, now_ms) for group in channel.subscriptions_list
    }
    return {
        "channel": channel.name,
        "partitions": channel.backup.partition_count,
        "publishers": len(channel.backup.publishers),
        "published_total": channel.published_total,
        "published_bytes_total": channel.published_bytes_total,
        "dedup_dropped_total": channel.duplicates_total,
        "queues_down": channel.queues_down,
        "policy": channel.policy.to_dict(),
        "subscriptions": groups,
    }


def of_subscription(group: Subscription, now_ms: int) -> dict[str, Any]:
    """What a subscription owes, has done, and who works for it."""
    totals = group.totals
    unacknowledged = sum(queue.unsettled for queue in group.subscribers.values())
    return {
        "backup": group.pending_count,
        "backup_bytes": group.pending_bytes,
        "messages_ready": group.pending_count - unacknowledged,
        "messages_unacknowledged": unacknowledged,
        "global_queue": len(group.queue),
        "sub_queues": sum(len(queue.held) for queue in group.subscribers.values()),
        "consumers": len(group.subscribers),
        "delivered_total": totals.delivered,
        "redelivered_total": totals.redelivered,
        "acked_total": totals.acked,
        "nacked_total": totals.nacked,
        "late_total": totals.late,
        "fenced_ack_total": totals.stale_acks,
        "parked_total": totals.parked,
        "parked": len(group.parked),
        "parked_partitions": len(group.parked_partitions),
        "delays_total": totals.delays,
        "long_delays_total": totals.long_delays,
        "slowed_total": totals.slowed,
        "handover_total": dict(totals.handovers),
        "queues_created_total": totals.queues_created,
        "queues_disposed_total": totals.queues_disposed,
        "subscribers": {
            name: {
                "prefetch": queue.prefetch,
                "unacknowledged": queue.unsettled,
                "partitions": len(queue.held),
                "delivered_total": queue.delivered_total,
                "acked_total": queue.acked_total,
                "away": queue.away,
                "seen_ms_ago": max(0, now_ms - queue.seen_ms),
                "session": queue.session,
            }
            for name, queue in group.subscribers.items()
        },
    }


def of_partitions(
    channel: Channel, subscription: str, limit: int, now_ms: int
) -> list[dict[str, Any]]:
    """The partitions with unsettled messages: owner, in flight, lag, attempt."""
    group = channel.subscription(subscription)
    busy = (line for line in channel.backup.lines(group) if line.messages)
    return [
        {
            "publisher": line.key.publisher,
            "partition": line.key.partition,
            "owner": line.owner.subscriber if line.owner else None,
            "epoch": line.epoch,
            "in_flight": line.in_flight,
            "lag": line.unsettled,
            "settled": line.settled,
            "attempt": line.attempt,
            "priority": line.level,
            "parked": line.parked,
            "oldest_ms": max(0, now_ms - line.messages[line.head][0] // 1000),
        }
        for line in islice(busy, limit)
    ]


def of_parked(channel: Channel, subscription: str, limit: int) -> list[dict[str, Any]]:
    """Parked messages with their reasons, and parked partitions."""
    group = channel.subscription(subscription)
    rows = [
        {
            "scope": "message",
            "reason": parked.reason,
            "parked_at_ms": parked.at_ms,
            **plain_message(key, position, 0, parked.attempt, parked.entry),
        }
        for (key, position), parked in islice(group.parked.items(), limit)
    ]
    rows += [
        {
            "scope": "partition",
            "reason": reason,
            "publisher": key.publisher,
            "partition": key.partition,
        }
        for key, reason in islice(group.parked_partitions.items(), limit)
    ]
    return rows[:limit]
