"""What publishers sent and the channel accepted: sequences, epochs, ids of the user's choice."""

from __future__ import annotations

from broker.core.message import EXTRAS
from broker.core.records import ChannelCreated, DuplicatesDropped, Published, PublisherOpened
from simulations.checkers.anomaly import Findings


class Publishing:
    """publisher-gap, duplicate (accepted again), lost-write (dropped unknown), producer-fencing.

    ``accepted`` is the last accepted sequence of each partition.
    """

    def __init__(self, findings: Findings) -> None:
        self.accepted: dict[tuple[str, str], int] = {}
        self.messages = 0
        self._findings = findings
        self._epochs: dict[str, int] = {}
        self._ids: dict[str, int] = {}  # id -> its rank among all messages with an id
        self._rank = 0
        self._window: int | None = None

    def created(self, sequence: int, record: ChannelCreated) -> None:
        """The window of ids is part of the channel's policy."""
        self._window = record.policy.get("dedup_window_count_max")

    def opened(self, sequence: int, record: PublisherOpened) -> None:
        """Epochs of a publisher only rise."""
        newest = self._epochs.get(record.publisher, 0)
        if record.epoch <= newest:
            self._findings.report(
                "producer-fencing", sequence,
                f"{record.publisher} opened epoch {record.epoch}, expected one above {newest}",
            )  # fmt: skip
        else:
            self._epochs[record.publisher] = record.epoch

    def published(self, sequence: int, record: Published) -> None:
        """A batch continues what its partitions had, under the newest epoch of its publisher."""
        publisher, accepted = record.publisher, self.accepted
        newest = self._epochs.get(publisher, 0)
        if record.epoch != newest:
            self._findings.report(
                "producer-fencing", sequence,
                f"accepted from {publisher} under epoch {record.epoch}, expected {newest}",
            )  # fmt: skip
        for partition, first, count in zip(record.partitions, record.firsts, record.counts):
            key = (publisher, partition)
            upto = accepted.get(key, 0)
            if first != upto + 1:
                self._out_of_turn(sequence, key, first, upto)
            if first + count - 1 > upto:
                accepted[key] = first + count - 1
            self.messages += count
        if record.ids:
            self._remember(sequence, record)

    def _out_of_turn(self, sequence: int, key: tuple[str, str], first: int, upto: int) -> None:
        name = "duplicate" if first <= upto else "publisher-gap"
        text = f"accepted from sequence {first} on, expected {upto + 1}"
        self._findings.report(name, sequence, text, "/".join(key))

    def _remember(self, sequence: int, record: Published) -> None:
        for entry in record.entries:
            extras = entry[EXTRAS]
            chosen = extras.get("id") if extras else None
            if chosen is None:
                continue
            self._rank += 1
            before = self._ids.get(chosen)
            window = self._window
            if before is not None and window is not None and self._rank - before <= window:
                text = (
                    f"id {chosen!r} was accepted again, {self._rank - before} ids after the last "
                    f"time; inside the window of {window} it must be dropped"
                )
                self._findings.report("duplicate", sequence, text)
            self._ids[chosen] = self._rank

    def dropped(self, sequence: int, record: DuplicatesDropped) -> None:
        """Only what was accepted before is a duplicate."""
        for partition, first, count in zip(record.partitions, record.firsts, record.counts):
            key = (record.publisher, partition)
            upto = self.accepted.get(key, 0)
            if first + count - 1 > upto:
                text = (
                    f"{first} to {first + count - 1} were dropped as duplicates, but only {upto} "
                    "were accepted before"
                )
                self._findings.report("lost-write", sequence, text, "/".join(key))
