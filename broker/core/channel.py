"""Channel: the deterministic state machine. It routes; what is decided lives in the files it names.

``decide(command, now_ms)`` returns a Decision and changes nothing. ``apply(record)`` is the only
state change. The host appends a decision's records to the journal and applies them, in that order.
"""

from __future__ import annotations

from typing import Any, Callable, Protocol

from broker.core import assignment, membership, publishing, settling
from broker.core import commands as c
from broker.core import records as r
from broker.core.backup_queue import BackupQueue
from broker.core.delivered_ids import DeliveredIds
from broker.core.message import PartitionKey
from broker.core.policy import Policy
from broker.core.sub_queue import SubQueue
from broker.core.subscription import Subscription
from broker.errors import NotSubscribed, QueuesDown, SubscriberReplaced, SubscriptionNotFound

DEFAULT_SUBSCRIPTION = "default"


class Membership(Protocol):
    """What every command of a subscriber carries."""

    subscription: str
    subscriber: str
    session: str


class Channel:
    """A named channel: partitions, a global queue, subscriptions, one journal."""

    def __init__(self, name: str, policy: Policy | None = None) -> None:
        self.name = name
        self.policy = policy or Policy()
        self.backup = BackupQueue()
        self.subscriptions: dict[str, Subscription] = {}
        self.publisher_epochs: dict[str, int] = {}
        self.delivered_ids = DeliveredIds(self.policy.dedup_window_count_max)
        self.epoch = 0  # the newest assignment; each gets the next one, so it rises per partition
        self.queues_down = False
        self.published_total = 0
        self.published_bytes_total = 0
        self.duplicates_total = 0

    def __repr__(self) -> str:
        groups = ", ".join(repr(item) for item in self.subscriptions.values())
        return f"<Channel {self.name} partitions={self.backup.partition_count} {groups}>"

    @staticmethod
    def birth(name: str, policy: Policy, now_ms: int) -> list[r.Record]:
        """The first records of a new channel: it is born with the subscription ``default``."""
        return [
            r.ChannelCreated(now_ms, name, policy.to_dict()),
            r.SubscriptionCreated(now_ms, DEFAULT_SUBSCRIPTION),
        ]

    @property
    def subscriptions_list(self) -> list[Subscription]:
        """The subscriptions in the order of the lines of each partition."""
        return self.backup.subscriptions

    # What follows from a command, and what a record changes.

    def decide(self, command: c.Command, now_ms: int) -> c.Decision:
        """What follows from ``command``. Changes nothing; raises BrokerError to refuse."""
        return _DECIDE[type(command)](self, command, now_ms)

    def apply(self, record: r.Record) -> None:
        """Take a fact into the state. The only way in which the state changes."""
        _APPLY[type(record)](self, record)

    # Looking things up.

    def subscription(self, name: str) -> Subscription:
        """The subscription of that name, or an error that says which ones exist."""
        found = self.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(
                f"channel {self.name} has no subscription {name!r}; it has "
                f"{', '.join(sorted(self.subscriptions)) or 'none'}; create it first"
            )
        return found

    def member(self, command: Membership) -> tuple[Subscription, SubQueue]:
        """The sub-queue of the session that sent ``command``."""
        subscription = self.subscription(command.subscription)
        queue = subscription.subscribers.get(command.subscriber)
        if queue is None:
            raise NotSubscribed(
                f"subscriber {command.subscriber} is not subscribed to {subscription.name} of "
                f"channel {self.name}: it never was, it left, or it was declared dead; subscribe "
                "again"
            )
        if queue.session != command.session:
            raise SubscriberReplaced(
                f"subscriber {command.subscriber} of channel {self.name} was taken over by a newer "
                "session with the same id; stop this one or give it an id of its own"
            )
        return subscription, queue

    def refuse_without_queues(self) -> None:
        """While the queues are being restored nothing can be taken or settled."""
        if self.queues_down:
            raise QueuesDown(
                f"channel {self.name} can take and settle nothing for the moment: its queues "
                "crashed and are being restored from the backup queue; nothing was changed, "
                "repeat the same call",
                retry_after_ms=self.policy.send_backoff_ms,
            )

    def room(self) -> tuple[int, int]:
        """How many messages, and bytes of bodies, may still be accepted."""
        policy = self.policy
        count, size = policy.pending_count_max, policy.pending_bytes_max
        groups = self.subscriptions_list
        if len(groups) == 1:
            return count - groups[0].pending_count, size - groups[0].pending_bytes
        return (
            count - max((group.pending_count for group in groups), default=0),
            size - max((group.pending_bytes for group in groups), default=0),
        )

    def next_sequences(self, publisher: str, partitions: list[str]) -> list[int]:
        """The next sequence of each of a publisher's partitions."""
        known = self.backup.publishers.get(publisher, {})
        found = [known.get(partition) for partition in partitions]
        return [1 if item is None else item.next_sequence for item in found]

    def unsettled(self) -> int:
        """Messages that wait or are in flight, over all subscriptions."""
        return sum(group.pending_count for group in self.subscriptions_list)

    def in_flight(self, subscription: str, subscriber: str, now_ms: int) -> c.Send | None:
        """Everything in a subscriber's sub-queue, to be sent again to the same session."""
        group = self.subscriptions[subscription]
        queue = group.subscribers.get(subscriber)
        if queue is None or not queue.held:
            return None
        share = assignment.resend(queue)
        return share.send(group, now_ms)

    def joined(self, subscription: str, subscriber: str) -> int:
        """The newest epoch when a subscriber joined: none of its assignments is that old."""
        return self.subscriptions[subscription].subscribers[subscriber].joined

    def recalled(self, subscription: str, subscriber: str, now_ms: int) -> r.Recalled | None:
        """What a subscriber was asked to hand back and still holds, to be asked for again."""
        group = self.subscriptions[subscription]
        queue = group.subscribers.get(subscriber)
        lines = [line for line in queue.held.values() if line.recalled] if queue else []
        if queue is None or not lines:
            return None
        return assignment.recall_of(group, queue, lines, lines[0].recalled, now_ms)

    def line(self, key: PartitionKey, subscription: str = DEFAULT_SUBSCRIPTION) -> Any:
        """The line under a key, for tests and for explanations."""
        return self.backup.line(key, self.subscriptions[subscription])


def _apply_channel_created(channel: Channel, record: r.ChannelCreated) -> None:
    assert record.name == channel.name
    channel.policy = Policy.from_dict(record.policy)
    channel.delivered_ids = DeliveredIds(channel.policy.dedup_window_count_max)


_DECIDE: dict[type[Any], Callable[[Channel, Any, int], c.Decision]] = {
    c.Publish: publishing.decide_publish,
    c.Dispatch: assignment.decide_dispatch,
    c.Ack: settling.decide_ack,
    c.Nack: settling.decide_nack,
    c.HandBack: settling.decide_hand_back,
    c.Redrive: settling.decide_redrive,
    c.OpenPublisher: publishing.decide_open_publisher,
    c.CreateSubscription: membership.decide_create_subscription,
    c.DeleteSubscription: membership.decide_delete_subscription,
    c.Subscribe: membership.decide_subscribe,
    c.Leave: membership.decide_leave,
    c.Heartbeat: membership.decide_heartbeat,
    c.Tick: membership.decide_tick,
    c.Start: membership.decide_start,
    c.KillQueues: membership.decide_kill_queues,
    c.RestoreQueues: membership.decide_restore_queues,
}

_APPLY: dict[type[Any], Callable[[Channel, Any], None]] = {
    r.ChannelCreated: _apply_channel_created,
    r.BrokerStarted: membership.apply_broker_started,
    r.SubscriptionCreated: membership.apply_subscription_created,
    r.SubscriptionDeleted: membership.apply_subscription_deleted,
    r.PublisherOpened: publishing.apply_publisher_opened,
    r.Published: publishing.apply_published,
    r.DuplicatesDropped: publishing.apply_duplicates_dropped,
    r.Subscribed: membership.apply_subscribed,
    r.Resumed: membership.apply_resumed,
    r.SubscriberLeft: membership.apply_subscriber_left,
    r.Delivered: assignment.apply_delivered,
    r.Acked: settling.apply_acked,
    r.StaleAcked: settling.apply_stale_acked,
    r.Nacked: settling.apply_nacked,
    r.Recalled: assignment.apply_recalled,
    r.Reassigned: settling.apply_reassigned,
    r.Slowed: settling.apply_slowed,
    r.Parked: settling.apply_parked,
    r.Redriven: settling.apply_redriven,
    r.QueuesKilled: membership.apply_queues_killed,
    r.QueuesRestored: membership.apply_queues_restored,
    r.Seen: membership.apply_seen,
}
