"""Who is there: subscriptions, subscribers, leases, and the crash of the queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from broker.core.assignment import decide_recall
from broker.core.commands import (
    CreateSubscription,
    Decision,
    DeleteSubscription,
    Heartbeat,
    KillQueues,
    Leave,
    RestoreQueues,
    Start,
    Subscribe,
    Tick,
)
from broker.core.records import (
    BrokerStarted,
    QueuesKilled,
    QueuesRestored,
    Record,
    Resumed,
    Seen,
    Subscribed,
    SubscriberLeft,
    SubscriptionCreated,
    SubscriptionDeleted,
)
from broker.core.settling import park, taken_back
from broker.core.sub_queue import SubQueue
from broker.core.subscription import Subscription
from broker.errors import BadRequest, LimitReached, NotSubscribed

if TYPE_CHECKING:
    from broker.core.channel import Channel


def decide_create_subscription(
    channel: Channel, command: CreateSubscription, now_ms: int
) -> Decision:
    """A new group; creating one that exists says so and changes nothing."""
    if command.subscription in channel.subscriptions:
        return Decision([], {"created": False})
    limit = channel.policy.subscription_count_max
    if len(channel.subscriptions) >= limit:
        raise LimitReached(
            f"subscription {command.subscription} cannot be created on channel {channel.name}: it "
            f"has {limit} subscriptions, which is the limit; delete one first",
            limit=limit,
        )
    return Decision([SubscriptionCreated(now_ms, command.subscription)], {"created": True})


def apply_subscription_created(channel: Channel, record: SubscriptionCreated) -> None:
    """The group gets what is published from here on."""
    index = len(channel.subscriptions_list)
    subscription = Subscription(
        record.subscription, index, channel.policy.ageing_ms, record.at_ms
    )
    channel.subscriptions[record.subscription] = subscription
    channel.backup.add_subscription(subscription)


def decide_delete_subscription(
    channel: Channel, command: DeleteSubscription, now_ms: int
) -> Decision:
    """Remove a group with what it is owed; nobody may be subscribed to it."""
    subscription = channel.subscription(command.subscription)
    if subscription.subscribers:
        raise BadRequest(
            f"subscription {subscription.name} of channel {channel.name} cannot be deleted: "
            f"{', '.join(sorted(subscription.subscribers))} is subscribed; stop them first"
        )
    count = subscription.pending_count
    return Decision(
        [SubscriptionDeleted(now_ms, subscription.name, count)], {"dropped": count}
    )


def apply_subscription_deleted(channel: Channel, record: SubscriptionDeleted) -> None:
    """The lines go, and the messages that only they still held."""
    subscription = channel.subscriptions.pop(record.subscription)
    channel.backup.remove_subscription(subscription)


def decide_subscribe(channel: Channel, command: Subscribe, now_ms: int) -> Decision:
    """Join. The same session again comes back with its work; another one replaces the old."""
    channel.refuse_without_queues()
    policy = channel.policy
    subscription = channel.subscription(command.subscription)
    if not 1 <= command.prefetch <= policy.prefetch_count_max:
        raise BadRequest(
            f"subscriber {command.subscriber} asked for prefetch={command.prefetch} on channel "
            f"{channel.name}: it must lie between 1 and {policy.prefetch_count_max}"
        )
    # Positions start anew when a subscription is deleted and made again; ``generation`` tells.
    reply: dict[str, Any] = {
        "policy": policy.to_dict(),
        "resumed": False,
        "generation": subscription.born_ms,
        # Whoever joins anew holds nothing of an assignment up to this one.
        "epoch": channel.epoch,
    }
    known = subscription.subscribers.get(command.subscriber)
    if known is not None and known.session == command.session:
        reply["resumed"] = True
        reply["epoch"] = known.joined
        record: Record = Resumed(
            now_ms, subscription.name, command.subscriber, command.session, command.callback
        )
        return Decision([record], reply)
    records: list[Record] = []
    if known is not None:
        records += _gone(channel, subscription, known, "replaced", now_ms)
    elif len(subscription.subscribers) >= policy.subscriber_count_max:
        raise LimitReached(
            f"subscriber {command.subscriber} cannot join subscription {subscription.name} of "
            f"channel {channel.name}: it has {policy.subscriber_count_max} subscribers, which is "
            "the limit; try again when one has left",
            limit=policy.subscriber_count_max,
        )
    records.append(
        Subscribed(
            now_ms, subscription.name, command.subscriber, command.session, command.prefetch,
            command.callback, command.can_recall,
        )
    )  # fmt: skip
    return Decision(records, reply)


def apply_subscribed(channel: Channel, record: Subscribed) -> None:
    """An empty sub-queue for a new subscriber."""
    queue = SubQueue(
        record.subscriber, record.session, record.prefetch, record.callback, record.can_recall,
        record.at_ms,
    )  # fmt: skip
    # The newest comes last among equals.
    queue.given = queue.joined = channel.epoch
    channel.subscriptions[record.subscription].subscribers[record.subscriber] = queue


def apply_resumed(channel: Channel, record: Resumed) -> None:
    """The same sub-queue goes on, perhaps reached under another address."""
    queue = channel.subscriptions[record.subscription].subscribers[record.subscriber]
    queue.callback = record.callback
    queue.seen_ms = record.at_ms
    queue.away = False


def decide_leave(channel: Channel, command: Leave, now_ms: int) -> Decision:
    """Hand everything back and go."""
    channel.refuse_without_queues()
    subscription, queue = channel.member(command)
    returned = queue.unsettled
    records = _gone(channel, subscription, queue, command.reason, now_ms)
    return Decision(records, {"returned": returned})


def _gone(
    channel: Channel,
    subscription: Subscription,
    queue: SubQueue,
    reason: str,
    now_ms: int,
    before: Sequence[Record] = (),
) -> list[Record]:
    """Take all lines back; after anything but a clean leave their messages count as tried.

    One that was handled alone is the proven killer and is parked.
    """
    records: list[Record] = []
    policy = channel.policy
    tried = reason != "left"
    items = [(line, line.settled + 1) for line in queue.held.values()]
    if items:
        cause = "crash" if tried else "left"
        records.append(taken_back(subscription, queue, items, cause, now_ms))
    records.append(
        SubscriberLeft(now_ms, subscription.name, queue.subscriber, queue.session, reason)
    )
    if tried and queue.trial is not None and policy.poison != "block":
        line = queue.trial
        records.append(
            park(
                channel, subscription, line.key, line.settled + 1, line.attempt,
                "its subscriber died on each attempt, the last time with nothing else to do",
                now_ms, before,
            )
        )  # fmt: skip
    return records


def apply_subscriber_left(channel: Channel, record: SubscriberLeft) -> None:
    """The sub-queue is empty by now and disposed of."""
    subscription = channel.subscriptions[record.subscription]
    queue = subscription.subscribers.pop(record.subscriber)
    assert not queue.held and not queue.unsettled, queue


def decide_heartbeat(channel: Channel, command: Heartbeat, now_ms: int) -> Decision:
    """Renew the lease. Whom a restarted broker cannot reach any more has to subscribe again.

    This answer, like those to acks and nacks, says when its subscriber joined (``fence``): who has
    missed that it was given up and joined anew must not go on, with its lease renewed, with what it
    has lost.
    """
    subscription, queue = channel.member(command)
    if queue.away:
        raise NotSubscribed(
            f"subscriber {queue.subscriber} of channel {channel.name} has to subscribe again: the "
            "broker was restarted and cannot reach it; with the same session it keeps its work"
        )
    record = Seen(now_ms, subscription.name, queue.subscriber)
    return Decision([record], {"fence": queue.joined})


def apply_seen(channel: Channel, record: Seen) -> None:
    """The lease runs from here."""
    queue = channel.subscriptions[record.subscription].subscribers[record.subscriber]
    queue.seen_ms = record.at_ms


def decide_tick(channel: Channel, command: Tick, now_ms: int) -> Decision:
    """Declare dead whose lease has run out; let idle subscribers share in what others hold."""
    records: list[Record] = []
    if channel.queues_down:
        return Decision(records)
    deadline = now_ms - channel.policy.lease_ms
    for subscription in channel.subscriptions_list:
        expired = [
            queue for queue in subscription.subscribers.values() if queue.seen_ms < deadline
        ]
        for queue in expired:
            records += _gone(channel, subscription, queue, "expired", now_ms, records)
        if not expired:
            records += decide_recall(channel, subscription, now_ms)
    return Decision(records)


def decide_start(channel: Channel, command: Start, now_ms: int) -> Decision:
    """After recovery: every lease starts anew, and crashed queues are restored."""
    records: list[Record] = [BrokerStarted(now_ms, command.boot)]
    if channel.queues_down:
        records.append(QueuesRestored(now_ms, channel.unsettled()))
    return Decision(records)


def apply_broker_started(channel: Channel, record: BrokerStarted) -> None:
    """Everybody gets a full lease to come back with what they hold; clocks may have jumped."""
    longest = record.at_ms + channel.policy.backoff_ms_max
    for subscription in channel.subscriptions_list:
        for queue in subscription.subscribers.values():
            queue.seen_ms = record.at_ms
            queue.away = True
        subscription.queue.bound_delays(longest)
        if channel.queues_down:
            for line in channel.backup.lines(subscription):
                line.not_before_ms = min(line.not_before_ms, longest)


def decide_kill_queues(channel: Channel, command: KillQueues, now_ms: int) -> Decision:
    """The fault hook: lose the global queue and the sub-queues at once."""
    if channel.queues_down:
        return Decision([], {"killed": 0})
    count = channel.unsettled()
    return Decision([QueuesKilled(now_ms, count)], {"killed": count})


def apply_queues_killed(channel: Channel, record: QueuesKilled) -> None:
    """Only what the backup queue and the assignments know is left."""
    channel.queues_down = True
    for subscription in channel.subscriptions_list:
        subscription.queue.clear()
        for queue in subscription.subscribers.values():
            queue.held.clear()
            queue.hungry.clear()
            queue.pressing.clear()
            queue.trial = None
            queue.unsettled = 0


def decide_restore_queues(channel: Channel, command: RestoreQueues, now_ms: int) -> Decision:
    """Rebuild both kinds of queue from the backup queue."""
    if not channel.queues_down:
        return Decision([], {"restored": 0})
    count = channel.unsettled()
    return Decision([QueuesRestored(now_ms, count)], {"restored": count})


def apply_queues_restored(channel: Channel, record: QueuesRestored) -> None:
    """Each line goes back to where its assignment says it is."""
    channel.queues_down = False
    for subscription in channel.subscriptions_list:
        owned = []
        for line in channel.backup.lines(subscription):
            if line.owner is not None:
                owned.append(line)
            elif line.messages and not line.parked:
                subscription.queue.add(line, record.at_ms)
        for line in sorted(owned, key=lambda item: item.epoch):
            queue = line.owner
            assert queue is not None
            queue.held[line.epoch] = line
            queue.unsettled += line.in_flight
            if line.trial:
                queue.trial = line
            queue.settle_hunger(line)
