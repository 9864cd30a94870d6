"""A snapshot is the whole state: a channel made from one cannot be told from the original.

Seeded random driving, with the same commands going to the original and to its copy from a random
point on. Equal fingerprints would not be enough: what a fingerprint does not show must give equal
decisions too.
"""

from __future__ import annotations

import random
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from broker.core import commands as c
from broker.core import snapshot
from broker.core.backup_queue import BackupQueue
from broker.core.channel import Channel
from broker.core.delivered_ids import DeliveredIds
from broker.core.global_queue import GlobalQueue
from broker.core.invariants import check
from broker.core.partition import Line, Partition
from broker.core.sub_queue import SubQueue
from broker.core.subscription import Subscription
from broker.errors import BrokerError
from tests.builders import Driven, fingerprint, publish_command

STEPS = 220
PUBLISHERS = ["p", "q"]
PARTITIONS = ["a", "b", "c", "d"]
SUBSCRIBERS = ["s1", "s2", "s3"]


def copy_of(channel: Channel) -> Channel:
    """Through bytes, as the journal keeps it."""
    packed = msgpack.packb(snapshot.dump(channel), unicode_errors="surrogatepass")
    state = msgpack.unpackb(packed, unicode_errors="surrogatepass", strict_map_key=False)
    return snapshot.load(channel.name, state)


def outcome(channel: Channel, command: c.Command, now_ms: int) -> Any:
    """Decide and apply; what came of it as comparable values."""
    try:
        decision = channel.decide(command, now_ms)
    except BrokerError as error:
        return error.to_dict()
    for record in decision.records:
        channel.apply(record)
    sends = [(send.subscription, send.subscriber, send.entries) for send in decision.sends]
    return [(record.kind, record) for record in decision.records], decision.reply, sends


class Script:
    """Random commands that fit the state of a channel often enough to get anywhere."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.driven = Driven(
            checked=False, poison=rng.choice(["park_message", "park_partition", "block"]),
            pending_count_max=rng.choice([8, 60, 1000]), run_count_max=rng.choice([1, 3, 256]),
            lease_ms=1_000, dedup_window_count_max=5, long_delay_ms=100, delay_ms=10,
            parked_count_max=2, subscription_count_max=2, ageing_ms=50, attempts_max=2,
        )  # fmt: skip
        self.now_ms = 1_000
        self.sessions = dict.fromkeys(SUBSCRIBERS, 0)
        self.sent: list[tuple[str, str, str, int, int, int]] = []

    def remember(self, channel: Channel, outcome: Any) -> None:
        """What subscribers hold or held, so that acks of both kinds come."""
        if isinstance(outcome, dict):
            return
        for kind, record in outcome[0]:
            if kind == "Delivered":
                group = channel.subscriptions[record.subscription]
                session = group.subscribers[record.subscriber].session
                self.sent += [
                    (record.subscription, record.subscriber, session, epoch, first, first + n - 1)
                    for epoch, first, n in zip(record.epochs, record.firsts, record.counts)
                ]
        del self.sent[:-40]

    def next_command(self, channel: Channel) -> c.Command:
        rng = self.rng
        self.now_ms += rng.choice([0, 0, 1, 10, 60, 300, rng.choice([0, 1_500])])
        make = rng.choices(
            [self.publish, self.join, self.ack, self.nack, self.leave, self.hand_back, self.other],
            [5, 3, 7, 3, 1, 2, 4],
        )[0]
        # Many commands give out work: without work nothing else means much.
        return c.Dispatch() if rng.random() < 0.35 else make(channel)

    def publish(self, channel: Channel) -> c.Command:
        rng = self.rng
        publisher = rng.choice(PUBLISHERS)
        names = rng.sample(PARTITIONS, rng.randint(1, 3))
        count = rng.randint(1, 4)
        shift = rng.choice([0, 0, 0, 0, 0, -1, 1])
        firsts = channel.next_sequences(publisher, names)
        runs = {
            name: (max(1, first + shift), [rng.randbytes(3) for _ in range(count)])
            for name, first in zip(names, firsts)
        }
        total = count * len(names)
        stamps = [1_000 * self.now_ms + rng.randint(0, 50) for _ in range(total)]
        priorities = ids = None
        if rng.random() < 0.4:
            priorities = [rng.choice([0, 0, 1, 3]) for _ in range(total)]
        if rng.random() < 0.3:
            ids = [rng.choice([None, *"uvwxyz"]) for _ in range(total)]
        return publish_command(publisher, runs, None, stamps, priorities, ids)

    def join(self, channel: Channel) -> c.Command:
        name = self.rng.choice(SUBSCRIBERS)
        if self.rng.random() < 0.4:
            self.sessions[name] += 1
        group = self.rng.choice(list(channel.subscriptions))
        prefetch = self.rng.choice([1, 2, 7, 100])
        session = f"{name}-{self.sessions[name]}"
        return c.Subscribe(group, name, session, prefetch, "", self.rng.random() < 0.8)

    def leave(self, channel: Channel) -> c.Command:
        name = self.rng.choice(SUBSCRIBERS)
        group = self.rng.choice(list(channel.subscriptions))
        reason = self.rng.choice(["left", "crashed"])
        return c.Leave(group, name, f"{name}-{self.sessions[name]}", reason)

    def ack(self, channel: Channel) -> c.Command:
        if not self.sent:
            return c.Dispatch()
        group, name, session, epoch, first, last = self.rng.choice(self.sent[-12:])
        delay = self.rng.choice([0, 0, 20, 200])
        delays = [[epoch, first, delay]] if delay else []
        return c.Ack(group, name, session, [epoch], [self.rng.randint(first, last)], delays)

    def nack(self, channel: Channel) -> c.Command:
        if not self.sent:
            return c.Dispatch()
        group, name, session, epoch, first, last = self.rng.choice(self.sent[-12:])
        position, final = self.rng.randint(first, last), self.rng.random() < 0.2
        return c.Nack(group, name, session, epoch, position, "test", None, final)

    def hand_back(self, channel: Channel) -> c.Command:
        for name, group in channel.subscriptions.items():
            for queue in group.subscribers.values():
                lines = [line for line in queue.held.values() if line.recalled]
                if lines:
                    line = self.rng.choice(lines)
                    upto = line.settled + self.rng.randint(0, 2)
                    return c.HandBack(name, queue.subscriber, queue.session, [line.epoch], [upto])
        return c.Tick()

    def other(self, channel: Channel) -> c.Command:
        name = self.rng.choice(SUBSCRIBERS)
        return self.rng.choice(
            [
                c.Tick(), c.Tick(), c.OpenPublisher(self.rng.choice(PUBLISHERS)),
                c.Heartbeat("default", name, f"{name}-{self.sessions[name]}"),
                c.CreateSubscription("other"), c.CreateSubscription("other"),
                c.DeleteSubscription("other"), c.Redrive("default", None, False),
                c.Redrive("default", None, True), c.KillQueues(), c.RestoreQueues(),
                c.RestoreQueues(), c.RestoreQueues(), c.Start("boot"),
            ]
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_a_copy_from_a_snapshot_decides_and_ends_like_the_original(seed: int) -> None:
    script = Script(seed)
    original = script.driven.channel
    copies: list[Channel] = []
    for step in range(STEPS):
        if script.rng.random() < 0.03 or step == 100:
            copies.append(copy_of(original))
            check(copies[-1])
            assert fingerprint(copies[-1]) == fingerprint(original), f"seed {seed} step {step}"
        command = script.next_command(original)
        expected = outcome(original, command, script.now_ms)
        script.remember(original, expected)
        for copy in copies:
            assert outcome(copy, command, script.now_ms) == expected, f"seed {seed} step {step}"
    for copy in copies:
        assert fingerprint(copy) == fingerprint(original)
        assert snapshot.dump(copy) == snapshot.dump(original), "what no fingerprint shows"


def test_the_random_driving_reaches_every_part_of_the_state() -> None:
    """A script that never parks or recalls would prove nothing about parking or recalls."""
    reached: set[str] = set()
    for seed in range(60):
        script = Script(seed)
        channel = script.driven.channel
        for _ in range(STEPS):
            script.remember(
                channel, outcome(channel, script.next_command(channel), script.now_ms)
            )
            reached |= parts_in_use(channel)
    assert reached >= {
        "parked", "parked_partitions", "delayed", "trials", "levels", "ghost", "avoid", "recalled",
        "suspect_upto", "irregular", "queue.trial", "long_delays", "away", "queues_down", "ids",
        "second subscription", "hungry", "pressing", "urgent", "later_trial",
    }  # fmt: skip


def parts_in_use(channel: Channel) -> set[str]:
    found = {"queues_down"} if channel.queues_down else set()
    found |= {"ids"} if len(channel.delivered_ids) else set()
    found |= {"second subscription"} if len(channel.subscriptions) > 1 else set()
    for group in channel.subscriptions_list:
        queue = group.queue
        shown: dict[str, Any] = {
            "parked": group.parked, "parked_partitions": group.parked_partitions,
            "delayed": queue._waiting, "trials": queue._trials, "levels": len(queue._levels) > 1,
        }  # fmt: skip
        for member in group.subscribers.values():
            shown["queue.trial"] = shown.get("queue.trial") or member.trial
            for name in ("long_delays", "away", "hungry", "pressing"):
                shown[name] = shown.get(name) or getattr(member, name)
        for line in channel.backup.lines(group):
            for name in ("recalled", "avoid", "suspect_upto", "irregular", "urgent", "later_trial"):
                shown[name] = shown.get(name) or getattr(line, name)
            gone = line.previous and line.previous not in group.subscribers.values()
            shown["ghost"] = shown.get("ghost") or gone
        found |= {name for name, value in shown.items() if value}
    return found


@pytest.mark.parametrize(
    ("slots", "covered"),
    [
        (
            Line.__slots__,
            {*snapshot.LINE_FIELDS, *snapshot.LINE_QUEUES, "urgent", "messages", "head", "key",
             "subscription", "queued_level"},
        ),
        (
            SubQueue.__slots__,
            {*snapshot.SUB_QUEUE_FIELDS, "subscriber", "session", "held", "hungry", "pressing",
             "trial", "long_delays"},
        ),
        (
            Subscription.__slots__,
            {*snapshot.SUBSCRIPTION_FIELDS, "name", "index", "queue", "subscribers", "parked",
             "parked_partitions", "totals"},
        ),
        (
            GlobalQueue.__slots__,
            {"ageing_ms", "_levels", "_count", "_delayed", "_waiting", "_trials"},
        ),
        (Partition.__slots__, {"key", "next_sequence", "lines"}),
        (BackupQueue.__slots__, {"publishers", "partition_count", "subscriptions"}),
        (DeliveredIds.__slots__, {"count_max", "_ids"}),
        (
            tuple(vars(Channel("orders"))),
            {*snapshot.CHANNEL_FIELDS, "name", "policy", "backup", "subscriptions",
             "publisher_epochs", "delivered_ids"},
        ),
    ],
    ids=["Line", "SubQueue", "Subscription", "GlobalQueue", "Partition", "BackupQueue",
         "DeliveredIds", "Channel"],
)  # fmt: skip
def test_no_piece_of_state_is_forgotten(slots: tuple[str, ...], covered: set[str]) -> None:
    """Whoever adds an attribute has to say here, and in the snapshot, how it is kept."""
    assert set(slots) == covered


def test_a_message_that_two_subscriptions_need_is_in_the_snapshot_once() -> None:
    driven = Driven()
    driven.do(c.CreateSubscription("other"))
    driven.publish("a", b"body-of-this-message")
    packed = msgpack.packb(snapshot.dump(driven.channel))
    assert packed.count(b"body-of-this-message") == 1
    copy = copy_of(driven.channel)
    first, second = (next(copy.backup.lines(group)) for group in copy.subscriptions_list)
    assert first.messages[0] is second.messages[0], "and in memory once as well"


def test_a_snapshot_of_another_version_is_refused() -> None:
    state = snapshot.dump(Driven().channel)
    with pytest.raises(ValueError, match="version 3"):
        snapshot.load("orders", {**state, "version": 3})


def test_a_snapshot_of_version_1_is_read() -> None:
    """It did not say when a subscriber had joined."""
    driven = Driven()
    driven.publish("a", b"1")
    driven.subscribe("s")
    driven.dispatch()
    state = snapshot.dump(driven.channel)
    state["version"] = 1
    for group in state["subscriptions"]:
        for queue in group["subscribers"]:
            queue["fields"].pop()
    loaded = snapshot.load("orders", state)
    assert fingerprint(loaded) == fingerprint(driven.channel)
    assert loaded.joined("default", "s") == 0
