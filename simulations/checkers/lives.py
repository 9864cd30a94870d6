"""The lives of subscriptions: what each is owed, and who is subscribed. Lines are made here.

A subscription that is deleted and made anew has another life: positions, members and what was
parked start afresh. A record of a subscription that does not exist is judged against a life of its
own, in which nobody ever subscribed and nothing was published.
"""

from __future__ import annotations

from typing import Iterable

from broker.core.message import TIMESTAMP
from broker.core.records import (
    Published,
    Subscribed,
    SubscriberLeft,
    SubscriptionCreated,
    SubscriptionDeleted,
)
from simulations.checkers.anomaly import Findings
from simulations.checkers.line import Line
from simulations.checkers.order import AcceptedRun, Found


class Life:
    """One life of one subscription."""

    __slots__ = ("subscription", "lines", "members", "parked")

    def __init__(self, subscription: str) -> None:
        self.subscription = subscription
        self.lines: dict[tuple[str, str], Line] = {}
        self.members: set[str] = set()
        #: What was parked and not redriven since: (key, position).
        self.parked: set[tuple[tuple[str, str], int]] = set()

    def line(self, key: tuple[str, str]) -> Line:
        """Its way through a partition."""
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line(self.subscription, key)
        return line


class Lives:
    """All subscriptions of a channel, those that live and those that never did."""

    def __init__(self, findings: Findings) -> None:
        self.living: dict[str, Life] = {}
        self._ghosts: dict[str, Life] = {}
        self._findings = findings

    def of(self, subscription: str) -> Life:
        """The life that a record of this subscription speaks of."""
        life = self.living.get(subscription) or self._ghosts.get(subscription)
        if life is None:
            life = self._ghosts[subscription] = Life(subscription)
        return life

    def report(self, line: Line, found: Iterable[Found]) -> None:
        """Say what was found about the messages of a line."""
        for name, sequence, text in found:
            self._findings.report(name, sequence, text, line.where, "order")

    def doubt(self, line: Line, sequence: int, found: Iterable[tuple[str, str]]) -> None:
        """Say what was found about a line's progress, if anything; then it is not judged again."""
        for name, text in found:
            self._findings.report(name, sequence, text, line.where, "progress")
            line.doubtful = True

    # What happens to subscriptions.

    def created(self, sequence: int, record: SubscriptionCreated) -> None:
        """It gets everything from here on."""
        self._end(record.subscription)
        self.living[record.subscription] = Life(record.subscription)

    def deleted(self, sequence: int, record: SubscriptionDeleted) -> None:
        """What it was owed is owed no more, but what was left out stays left out."""
        self._end(record.subscription)

    def _end(self, subscription: str) -> None:
        life = self.living.pop(subscription, None)
        if life is not None:
            self._close(life)

    def subscribed(self, sequence: int, record: Subscribed) -> None:
        """From here on it may be given something."""
        self.of(record.subscription).members.add(record.subscriber)

    def left(self, sequence: int, record: SubscriberLeft) -> None:
        """From here on it may not."""
        self.of(record.subscription).members.discard(record.subscriber)

    def published(self, sequence: int, record: Published) -> None:
        """Every living subscription is owed what was kept of a batch."""
        if not self.living:
            return
        lives = list(self.living.values())
        publisher = record.publisher
        for partition, run in zip(record.partitions, _accepted_runs(sequence, record)):
            key = (publisher, partition)
            for life in lives:
                line = life.lines.get(key) or life.line(key)
                found = line.accept(run)
                if found:
                    self.report(line, found)

    # The end.

    def finish(self) -> None:
        """Whatever was left out by now was left out."""
        for life in (*self.living.values(), *self._ghosts.values()):
            self._close(life)

    def left_over(self, sequence: int) -> None:
        """The run is over: what is neither settled nor parked is unseen."""
        for life in self.living.values():
            for line in life.lines.values():
                pending = line.owed - line.settled
                if pending > 0 and line.blocked != line.settled + 1:
                    text = (
                        f"{pending} messages after position {line.settled} are neither settled nor "
                        "parked, though the run is over"
                    )
                    self._findings.report("unseen", sequence, text, line.where)

    def _close(self, life: Life) -> None:
        for line in life.lines.values():
            if not line.doubtful:
                self.report(line, line.order.close())


def _accepted_runs(sequence: int, record: Published) -> Iterable[AcceptedRun]:
    entries, dropped = record.entries, record.dropped
    start = offset = 0
    for first, count in zip(record.firsts, record.counts):
        kept = count
        gone: tuple[int, ...] = ()
        if dropped:
            end = offset + count
            gone = tuple([first + i - offset for i in dropped if offset <= i < end])
            kept -= len(gone)
        stamps = [entry[TIMESTAMP] for entry in entries[start : start + kept]]
        yield sequence, first, count, stamps, gone
        start += kept
        offset += count
