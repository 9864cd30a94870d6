"""Small makers of test material: entries, commands, a driven channel. No test lives here."""

from __future__ import annotations

from typing import Any

from broker.core import commands as c
from broker.core.channel import Channel
from broker.core.invariants import History, check
from broker.core.message import Entry, make_entries
from broker.core.policy import Policy
from broker.core.records import Record


def publish_command(
    publisher: str,
    runs: dict[str, tuple[int, list[bytes]]],
    epoch: int | None = None,
    timestamps: list[int] | int = 1_000_000,
    priorities: list[int] | None = None,
    ids: list[str | None] | None = None,
) -> c.Publish:
    """A Publish of {partition: (first sequence, bodies)}; the other columns run over all bodies."""
    bodies = [body for _, run in runs.values() for body in run]
    sequences = [first + i for first, run in runs.values() for i in range(len(run))]
    extras = None if ids is None else [None if i is None else {"id": i} for i in ids]
    entries: list[Entry] = make_entries(sequences, bodies, timestamps, priorities, 0, extras)
    return c.Publish(
        publisher,
        epoch,
        list(runs),
        [first for first, _ in runs.values()],
        [len(run) for _, run in runs.values()],
        entries,
        sum(map(len, bodies)),
        max(priorities) if priorities else 0,
        ids is not None,
    )


class Driven:
    """A channel with a journal that is a list, every invariant checked after every step."""

    def __init__(self, name: str = "orders", checked: bool = True, **policy: Any) -> None:
        self.now_ms = 1_000
        self.records: list[Record] = []
        self.policy = Policy(**policy)
        self.channel = Channel(name, self.policy)
        self.history = History(self.policy.attempts_max if self.policy.poison != "block" else 99)
        self.checked = checked
        self.next: dict[tuple[str, str], int] = {}
        for record in Channel.birth(name, self.policy, self.now_ms):
            self._take(record)

    def _take(self, record: Record) -> None:
        if record.durable:
            self.records.append(record)
        self.history.watch(record)
        self.channel.apply(record)

    def do(self, command: c.Command) -> c.Decision:
        """Decide, check that deciding changed nothing, journal, apply, check the invariants."""
        decision = self.channel.decide(command, self.now_ms)
        for record in decision.records:
            self._take(record)
        if self.checked:
            check(self.channel)
        return decision

    def publish(self, partition: str, *bodies: bytes, publisher: str = "p", **more: Any) -> Any:
        """Publish bodies as the next sequences of one partition."""
        first = self.channel.next_sequences(publisher, [partition])[0]
        command = publish_command(publisher, {partition: (first, list(bodies))}, **more)
        return self.do(command).reply

    def subscribe(self, subscriber: str, prefetch: int = 100, **more: Any) -> None:
        """Join the default subscription under a session named after the subscriber."""
        group = more.pop("subscription", "default")
        session = more.pop("session", subscriber + "-1")
        self.do(c.Subscribe(group, subscriber, session, prefetch, "", **more))

    def dispatch(self) -> dict[str, list[c.Send]]:
        """Dispatch, and return the sends by subscriber."""
        sends: dict[str, list[c.Send]] = {}
        for send in self.do(c.Dispatch()).sends:
            sends.setdefault(send.subscriber, []).append(send)
        return sends

    def ack(self, subscriber: str, epoch: int, upto: int, **more: Any) -> Any:
        """Settle one assignment up to a position."""
        return self.do(
            c.Ack("default", subscriber, subscriber + "-1", [epoch], [upto], **more)
        ).reply

    def replayed(self) -> Channel:
        """The channel as a restart would rebuild it from the records."""
        channel = Channel(self.channel.name, self.policy)
        for record in self.records:
            if hasattr(record, "lines"):
                record.lines = None
            channel.apply(record)
        return channel


def bodies_of(send: c.Send) -> list[bytes]:
    """The bodies of a send, in order."""
    return [entry[4] for entry in send.entries]


def fingerprint(channel: Channel) -> Any:
    """All state of a channel that must survive a restart, as plain comparable values."""
    groups = []
    for group in channel.subscriptions_list:
        lines = {}
        for line in channel.backup.lines(group):
            lines[line.key] = (
                line.messages[line.head :], line.settled, line.delivered, line.handed,
                line.owner.subscriber if line.owner else None, line.epoch, line.attempt,
                line.later_attempt, line.suspect_upto, line.trial, line.later_trial, line.parked,
                line.level, line.recalled, line.last_timestamp, line.not_before_ms, line.since_ms,
                line.previous.subscriber if line.previous else None, line.avoid.subscriber if
                line.avoid else None,
            )  # fmt: skip
        subscribers = {
            name: (
                queue.session, queue.prefetch, list(queue.held), queue.unsettled,
                [line.key for line in queue.hungry], queue.given, queue.long_delays, queue.away,
                queue.trial.key if queue.trial else None, queue.progress_ms,
            )
            for name, queue in group.subscribers.items()
        }  # fmt: skip
        totals = {name: getattr(group.totals, name) for name in group.totals.__slots__}
        ready = [line.key for line in [*group.queue.ranked(1 << 62), *group.queue.trials()]]
        groups.append(
            (group.name, lines, subscribers, group.parked, group.parked_partitions, totals, ready,
             group.pending_count, group.pending_bytes)
        )  # fmt: skip
    sequences = {item.key: item.next_sequence for item in channel.backup.partitions()}
    return (
        channel.policy, groups, sequences, channel.publisher_epochs, list(channel.delivered_ids),
        channel.epoch, channel.queues_down, channel.published_total, channel.duplicates_total,
    )  # fmt: skip
