"""A Hypothesis state machine drives the core through everything that can happen to a channel.

After each step every invariant is checked, the record history is checked, and at each restart the
replayed channel must equal the live one. Subscribers are modelled as buffers that handle in order,
so that late acks, acks of lost work and answers to recalls all occur.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.core import commands as c
from broker.core.invariants import check
from broker.errors import BrokerError
from tests.builders import Driven, fingerprint, publish_command

PUBLISHERS = ["p", "q"]
PARTITIONS = ["a", "b", "c"]
SUBSCRIBERS = ["s1", "s2", "s3"]

picks = st.integers(min_value=0, max_value=10_000)


class ChannelMachine(RuleBasedStateMachine):
    """The rules are what may happen; the model is only what a subscriber remembers."""

    @initialize(
        poison=st.sampled_from(["park_message", "park_partition", "block"]),
        limit=st.sampled_from([5, 30, 1000]),
        run=st.sampled_from([1, 3, 256]),
    )
    def born(self, poison: str, limit: int, run: int) -> None:
        self.driven = Driven(
            poison=poison, pending_count_max=limit, run_count_max=run, lease_ms=1_000,
            dedup_window_count_max=5, long_delay_ms=100, delay_ms=10, parked_count_max=2,
            subscription_count_max=2, ageing_ms=50,
        )  # fmt: skip
        self.sessions: dict[str, int] = {}
        # Everything ever sent: (subscriber, session, epoch, first, last), old ones included.
        self.sent: list[tuple[str, str, int, int, int]] = []
        self.acked: list[bytes] = []

    def attempt(self, command: c.Command) -> c.Decision | None:
        before = fingerprint(self.driven.channel)
        try:
            decision = self.driven.do(command)
        except BrokerError:
            assert fingerprint(self.driven.channel) == before, "a refusal changed the state"
            return None
        for send in decision.sends:
            session = self.driven.channel.subscriptions[send.subscription].subscribers[
                send.subscriber
            ].session
            record = send.delivered
            assert sum(record.counts) == len(send.entries)
            for epoch, first, count in zip(record.epochs, record.firsts, record.counts):
                self.sent.append((send.subscriber, session, epoch, first, first + count - 1))
            del self.sent[:-60]
        return decision

    @rule(
        publisher=st.sampled_from(PUBLISHERS),
        names=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3, unique=True),
        count=st.integers(1, 4),
        shift=st.sampled_from([0, 0, 0, 0, -1, -2, 1]),
        stamps=st.lists(st.integers(0, 50), min_size=12, max_size=12),
        priorities=st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=12, max_size=12)),
        ids=st.one_of(
            st.none(),
            st.lists(st.one_of(st.none(), st.sampled_from("uvwxyz")), min_size=12, max_size=12),
        ),
        epoch=st.sampled_from([None, None, 0, 1]),
    )
    def publish(
        self,
        publisher: str,
        names: list[str],
        count: int,
        shift: int,
        stamps: list[int],
        priorities: list[int] | None,
        ids: list[Any] | None,
        epoch: int | None,
    ) -> None:
        sequences = self.driven.channel.next_sequences(publisher, names)
        runs = {
            name: (max(1, first + shift), [b"%d" % i for i in range(count)])
            for name, first in zip(names, sequences)
        }
        total = count * len(names)
        self.attempt(
            publish_command(
                publisher,
                runs,
                epoch,
                [1_000 * self.driven.now_ms + stamp for stamp in stamps[:total]],
                priorities[:total] if priorities else None,
                ids[:total] if ids else None,
            )
        )

    @rule(publisher=st.sampled_from(PUBLISHERS))
    def open_publisher(self, publisher: str) -> None:
        self.attempt(c.OpenPublisher(publisher))

    @rule(
        subscriber=st.sampled_from(SUBSCRIBERS),
        prefetch=st.sampled_from([1, 2, 7, 100]),
        again=st.booleans(),
        group=st.sampled_from(["default", "default", "other"]),
        can_recall=st.booleans(),
    )
    def join(
        self, subscriber: str, prefetch: int, again: bool, group: str, can_recall: bool
    ) -> None:
        if not again:
            self.sessions[subscriber] = self.sessions.get(subscriber, 0) + 1
        self.attempt(
            c.Subscribe(group, subscriber, self.session(subscriber), prefetch, "", can_recall)
        )

    def session(self, subscriber: str) -> str:
        return f"{subscriber}-{self.sessions.get(subscriber, 0)}"

    @rule(
        subscriber=st.sampled_from(SUBSCRIBERS),
        reason=st.sampled_from(["left", "crashed"]),
        group=st.sampled_from(["default", "other"]),
    )
    def leave(self, subscriber: str, reason: str, group: str) -> None:
        self.attempt(c.Leave(group, subscriber, self.session(subscriber), reason))

    @rule()
    def dispatch(self) -> None:
        self.attempt(c.Dispatch())

    def group_of(self, subscriber: str) -> str:
        for name, group in self.driven.channel.subscriptions.items():
            if subscriber in group.subscribers:
                return name
        return "default"

    @rule(pick=picks, offset=st.integers(0, 5), delay=st.sampled_from([0, 0, 20, 200]))
    def ack(self, pick: int, offset: int, delay: int) -> None:
        """Any ack for anything that was ever sent, current or stale, partial or beyond."""
        if not self.sent:
            return
        subscriber, session, epoch, first, last = self.sent[-1 - pick % len(self.sent)]
        upto = min(first + offset, last + (offset == 5))
        delays = [[epoch, first, delay]] if delay else []
        self.attempt(
            c.Ack(self.group_of(subscriber), subscriber, session, [epoch], [upto], delays)
        )

    @rule(pick=picks, offset=st.integers(0, 3), final=st.booleans())
    def nack(self, pick: int, offset: int, final: bool) -> None:
        if not self.sent:
            return
        subscriber, session, epoch, first, last = self.sent[-1 - pick % len(self.sent)]
        self.attempt(
            c.Nack(
                self.group_of(subscriber), subscriber, session, epoch, min(first + offset, last),
                "test", None, final and offset == 0,
            )
        )  # fmt: skip

    @rule(pick=picks, started=st.integers(0, 3))
    def hand_back(self, pick: int, started: int) -> None:
        """The owner answers a recall of any of its assignments."""
        for name, group in self.driven.channel.subscriptions.items():
            for queue in group.subscribers.values():
                recalled = [line for line in queue.held.values() if line.recalled]
                if recalled:
                    line = recalled[pick % len(recalled)]
                    self.attempt(
                        c.HandBack(
                            name, queue.subscriber, queue.session, [line.epoch],
                            [line.settled + started],
                        )
                    )  # fmt: skip
                    return

    @rule(step=st.sampled_from([0, 10, 200, 2_000]))
    def time_passes(self, step: int) -> None:
        self.driven.now_ms += step
        self.attempt(c.Tick())

    @rule(subscriber=st.sampled_from(SUBSCRIBERS))
    def heartbeat(self, subscriber: str) -> None:
        self.attempt(
            c.Heartbeat(self.group_of(subscriber), subscriber, self.session(subscriber))
        )

    @rule()
    def queue_crash(self) -> None:
        self.attempt(c.KillQueues())

    @rule()
    def queue_restore(self) -> None:
        self.attempt(c.RestoreQueues())

    @rule(drop=st.booleans())
    def redrive(self, drop: bool) -> None:
        self.attempt(c.Redrive("default", None, drop))

    @rule(create=st.booleans())
    def second_subscription(self, create: bool) -> None:
        command = c.CreateSubscription("other") if create else c.DeleteSubscription("other")
        self.attempt(command)

    @rule()
    def restart(self) -> None:
        """kill -9: what the journal holds is the state, and everybody gets a fresh lease."""
        live = self.driven.channel
        replayed = self.driven.replayed()
        check(replayed)
        assert fingerprint(replayed) == fingerprint(live)
        self.driven.channel = replayed
        self.attempt(c.Start("boot"))

    @invariant()
    def all_invariants_hold(self) -> None:
        if hasattr(self, "driven"):
            check(self.driven.channel)

    def teardown(self) -> None:
        """Whatever happened, a healthy subscriber can drain the rest."""
        if not hasattr(self, "driven"):
            return
        self.attempt(c.RestoreQueues())
        for name, group in list(self.driven.channel.subscriptions.items()):
            for queue in list(group.subscribers.values()):
                self.attempt(c.Leave(name, queue.subscriber, queue.session))
            self.attempt(c.Redrive(name, None, False))
            self.attempt(c.Subscribe(name, "healer", "h", 100, ""))
        for _ in range(600):
            self.driven.now_ms += 40_000
            for name in self.driven.channel.subscriptions:
                self.attempt(c.Heartbeat(name, "healer", "h"))
            decision = self.attempt(c.Dispatch())
            assert decision is not None
            if not decision.sends:
                break
            for send in decision.sends:
                record = send.delivered
                uptos = [f + n - 1 for f, n in zip(record.firsts, record.counts)]
                self.attempt(
                    c.Ack(send.subscription, "healer", "h", list(record.epochs), uptos)
                )
        assert self.driven.channel.unsettled() == 0, self.driven.channel


TestChannelMachine = ChannelMachine.TestCase
TestChannelMachine.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
