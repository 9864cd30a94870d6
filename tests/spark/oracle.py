"""The core's own oracle over a whole journal, subscriptions that are made anew included."""

from __future__ import annotations

from broker.core.invariants import History
from broker.core.records import Record, SubscriptionCreated

PUBLISHING = ("PublisherOpened", "Published")


class Oracle:
    """A ``History`` for what is published, and one for each life of each subscription: positions
    start anew with a subscription that was deleted and made again."""

    def __init__(self, attempts_max: int) -> None:
        self._attempts_max = attempts_max
        self._histories = [History(attempts_max)]
        self._groups: dict[str, History] = {}

    def watch(self, record: Record) -> None:
        """Check one record; raises InvariantBroken."""
        if isinstance(record, SubscriptionCreated):
            self._groups[record.subscription] = History(self._attempts_max)
            self._histories.append(self._groups[record.subscription])
        elif record.kind in PUBLISHING:
            self._histories[0].watch(record)
        elif (subscription := getattr(record, "subscription", None)) is not None:
            self._groups[subscription].watch(record)

    @property
    def compared(self) -> int:
        """How many records were checked."""
        return sum(history.compared for history in self._histories)
