"""conservation: where a record counts what is owed, it is what was accepted and not yet settled.

A ledger of its own, by subscription: it knows no positions, so that a mistake in following lines
cannot hide here.
"""

from __future__ import annotations

from broker.core.records import (
    Acked,
    Parked,
    Published,
    QueuesKilled,
    QueuesRestored,
    Redriven,
    SubscriptionCreated,
    SubscriptionDeleted,
)
from simulations.checkers.anomaly import Findings


class Conservation:
    """What each living subscription is owed, in messages."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._debts: dict[str, int] = {}
        #: Messages for which their whole partition is parked: giving them up settles them.
        self._blocking: set[tuple[str, tuple[str, str], int]] = set()

    def created(self, sequence: int, record: SubscriptionCreated) -> None:
        """It is owed what comes from here on."""
        self._debts[record.subscription] = 0

    def deleted(self, sequence: int, record: SubscriptionDeleted) -> None:
        """The record counts what it was still owed."""
        self._compare(sequence, record.count, self._debts.pop(record.subscription, 0))

    def counted(self, sequence: int, record: QueuesKilled | QueuesRestored) -> None:
        """The record counts what all of them are owed."""
        self._compare(sequence, record.count, sum(self._debts.values()))

    def _compare(self, sequence: int, claim: int, owed: int) -> None:
        if claim != owed:
            text = f"the record counts {claim} unsettled messages, expected {owed}"
            self._findings.report("conservation", sequence, text)

    def published(self, sequence: int, record: Published) -> None:
        """Everybody is owed what was kept."""
        kept = sum(record.counts) - len(record.dropped)
        for subscription in self._debts:
            self._debts[subscription] += kept

    def acked(self, sequence: int, record: Acked) -> None:
        """Acked is settled."""
        self._pay(record.subscription, sum(record.counts))

    def parked(self, sequence: int, record: Parked) -> None:
        """A parked message is not owed; a parked partition still is."""
        place = (record.subscription, record.key, record.position)
        if record.scope == "message":
            self._pay(record.subscription, 1)
            self._blocking.discard(place)
        else:
            self._blocking.add(place)

    def redriven(self, sequence: int, record: Redriven) -> None:
        """Redriven messages are owed again; those given up are not owed any more."""
        if not record.dropped:
            self._pay(record.subscription, -len(record.positions))
            return
        for position in record.positions:
            place = (record.subscription, record.key, position)
            if place in self._blocking:
                self._blocking.discard(place)
                self._pay(record.subscription, 1)

    def _pay(self, subscription: str, count: int) -> None:
        if subscription in self._debts:
            self._debts[subscription] -= count
