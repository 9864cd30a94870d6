"""Judge: every record and every line of a history goes through here, once, in order.

No rule lives here but that of log-integrity: that no record is missing.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Mapping

from broker.core.anomalies import INVALID, UNKNOWN, VALID
from broker.core.records import Record
from simulations.checkers.anomaly import Anomaly, Findings
from simulations.checkers.attempts import Attempts
from simulations.checkers.conservation import Conservation
from simulations.checkers.delivery import Delivery
from simulations.checkers.lives import Lives
from simulations.checkers.publisher_histories import PublisherHistories
from simulations.checkers.publishing import Publishing
from simulations.checkers.settling import Settling
from simulations.checkers.subscriber_histories import SubscriberHistories

_Take = Callable[[int, Any], None]


class Judge:
    """Judges one channel: ``watch`` each durable record, ``hear`` each line, then ``finish``.

    Records come in the journal's order. Lines come in the order of their history, and at any time:
    what needs both is decided in ``finish``.
    """

    def __init__(self) -> None:
        self._findings = Findings()
        self._publishing = Publishing(self._findings)
        self._lives = Lives(self._findings)
        self._attempts = Attempts(self._findings, self._lives)
        self._delivery = Delivery(self._findings, self._lives, self._attempts)
        self._settling = Settling(self._lives)
        self._conservation = Conservation(self._findings)
        self._publishers = PublisherHistories(self._findings, self._publishing)
        self._subscribers = SubscriberHistories(self._findings, self._lives)
        self._upto = 0
        self._is_whole = True
        self._is_finished = False
        self._lines = 0
        self._histories: dict[tuple[str, str, str], list[int]] = {}  # lines, highest number
        self._takers = self._routes()

    def _routes(self) -> dict[str, tuple[_Take, ...]]:
        """Kind of record -> whom it concerns, in this order."""
        ledger, lives, attempts = self._conservation, self._lives, self._attempts
        return {
            "ChannelCreated": (self._publishing.created, attempts.created),
            "SubscriptionCreated": (lives.created, ledger.created),
            "SubscriptionDeleted": (lives.deleted, ledger.deleted),
            "PublisherOpened": (self._publishing.opened,),
            "Published": (
                self._publishing.published, lives.published, ledger.published,
                self._publishers.published,
            ),
            "DuplicatesDropped": (self._publishing.dropped,),
            "Subscribed": (lives.subscribed, self._subscribers.subscribed),
            "SubscriberLeft": (lives.left,),
            "Delivered": (self._delivery.delivered, self._subscribers.happened),
            "Acked": (self._settling.acked, ledger.acked, self._subscribers.happened),
            "Nacked": (self._settling.nacked,),
            "Reassigned": (self._settling.reassigned,),
            "Parked": (attempts.parked, ledger.parked),
            "Redriven": (attempts.redriven, ledger.redriven),
            "QueuesKilled": (ledger.counted,),
            "QueuesRestored": (ledger.counted,),
        }  # fmt: skip

    @property
    def anomalies(self) -> list[Anomaly]:
        """All that was found so far."""
        return self._findings.all

    @property
    def compared(self) -> dict[str, int]:
        """How much was judged: records, messages published, lines of histories, partitions."""
        return {
            "records": self._upto, "messages": self._publishing.messages, "lines": self._lines,
            "partitions": len(self._publishing.accepted),
        }  # fmt: skip

    def watch(self, sequence: int, record: Record) -> list[Anomaly]:
        """Judge the journal's next durable record; what is new is returned."""
        assert not self._is_finished, "this Judge has finished; a new run needs a new one"
        found = self._findings.all
        before = len(found)
        if sequence != self._upto + 1:
            return self.damaged(
                self._upto + 1, f"the record is missing; the next one that came is {sequence}"
            )
        if self._is_whole:
            self._upto = sequence
            for take in self._takers.get(record.kind, ()):
                take(sequence, record)
        return found[before:]

    def damaged(self, sequence: int, why: str) -> list[Anomaly]:
        """The store cannot give this record, or what it gives is not what was written.

        From here on no record is judged: what is missing would show up under other names.
        """
        if not self._is_whole:
            return []
        self._is_whole = False
        self._findings.report("log-integrity", sequence, why)
        return self._findings.all[-1:]

    def hear(self, line: Mapping[str, Any] | str) -> list[Anomaly]:
        """Take a line of a client's history of this channel, as a dict or as JSON."""
        if isinstance(line, str):
            line = json.loads(line)
            assert isinstance(line, dict)
        found = self._findings.all
        before = len(found)
        self._lines += 1
        self._number(line)
        if line["client"] == "publisher":
            self._publishers.hear(line, self._upto)
        else:
            self._subscribers.hear(line)
        return found[before:]

    def _number(self, line: Mapping[str, Any]) -> None:
        """Count the lines of each history, to know when some are missing."""
        n = line.get("n")
        if n is not None:
            history = (line["client"], line["name"], line["session"])
            seen = self._histories.setdefault(history, [0, -1])
            seen[0] += 1
            seen[1] = max(seen[1], n)

    def finish(self, drained: bool) -> list[Anomaly]:
        """All anomalies of the run; ``drained``: it is over, and nothing may be left unsettled."""
        if not self._is_finished:
            self._is_finished = True
            self._lives.finish()
            self._publishers.finish(self._upto)
            self._subscribers.finish(self._is_whole)
            if drained:
                self._lives.left_over(self._upto)
        return self._findings.all

    def verdict(self) -> str:
        """Invalid if anything is wrong; unknown if nothing was handed out, or a history has lost
        lines: what was not compared is not valid."""
        if self._findings.all:
            return INVALID
        complete = all(count == highest + 1 for count, highest in self._histories.values())
        return VALID if self._delivery.runs and complete else UNKNOWN
