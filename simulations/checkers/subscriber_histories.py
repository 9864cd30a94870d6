"""What subscribers say they started and finished, against what the journal gave them and settled.

Only subscribers with a history are compared. What a line says is defined in
``subscriber/history.py``. The journal and the histories are joined at the end of a run; until then
both are only noted down.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterable, Mapping, NamedTuple

from broker.core.records import Acked, Delivered, Subscribed
from simulations.checkers.anomaly import Findings
from simulations.checkers.lives import Life, Lives

Line = Mapping[str, Any]
Key = tuple[str, str]
#: (session, epoch)
_Assignment = tuple[str, int]


class _Stretch(NamedTuple):
    """Positions that a session finished."""

    first: int
    last: int
    sequence_sum: int
    n: int
    subscriber: str


class _Given:
    """What one assignment was given of one line, and what was acknowledged of it."""

    __slots__ = ("life", "key", "session", "epoch", "subscriber", "runs", "acked", "finished",
                 "sequence")  # fmt: skip

    def __init__(
        self, life: Life, key: Key, session: str, epoch: int, subscriber: str, sequence: int
    ) -> None:
        self.life, self.key, self.session, self.epoch = life, key, session, epoch
        self.subscriber, self.sequence = subscriber, sequence
        self.runs: list[tuple[int, int, int]] = []  # (first position, last, first message)
        self.acked: list[tuple[int, int, int]] = []  # (first position, last, record)
        self.finished: list[_Stretch] = []

    @property
    def where(self) -> str:
        return f"{self.life.subscription} {self.key[0]}/{self.key[1]}"

    def has(self, position: int) -> bool:
        """Whether the position lies in what was given."""
        firsts, lasts, _ = zip(*self.runs)
        return bool(min(firsts) <= position <= max(lasts))


class SubscriberHistories:
    """unexpected (started, not given), duplicate (handled twice), unseen (acked, not handled),
    inconsistent-offsets (handled other messages than it was given)."""

    def __init__(self, findings: Findings, lives: Lives) -> None:
        self._findings = findings
        self._lives = lives
        self._sessions: dict[tuple[str, str], str] = {}
        self._records: list[tuple[int, Delivered | Acked, Life, str]] = []
        self._opened: set[str] = set()
        self._cut: set[str] = set()
        self._started: list[Line] = []
        self._finished: list[Line] = []

    def subscribed(self, sequence: int, record: Subscribed) -> None:
        """What is given from here on is given to this session."""
        self._sessions[record.subscription, record.subscriber] = record.session

    def happened(self, sequence: int, record: Delivered | Acked) -> None:
        """Kept until the end: the subscriber's lines may come later."""
        session = self._sessions.get((record.subscription, record.subscriber))
        if session is not None:
            life = self._lives.of(record.subscription)
            self._records.append((sequence, record, life, session))

    def hear(self, line: Line) -> None:
        """Take one line."""
        event = line["event"]
        if event == "started":
            self._started.append(line)
        elif event == "finished":
            self._finished.append(line)
        elif event == "opened":
            self._opened.add(line["session"])
        elif event == "cut":
            self._cut.add(line["session"])

    def finish(self, whole: bool) -> None:
        """Join both; ``whole`` says that no record of the journal is missing."""
        if not self._opened:
            return
        given = self._given()
        if whole:
            self._judge_started(given)
        # A client whose disk was full has gone on without a history.
        complete = {
            assignment: items
            for assignment, items in given.items()
            if assignment[0] not in self._cut
        }
        self._note_finished(complete)
        by_line: dict[tuple[int, Key, str], list[_Given]] = defaultdict(list)
        for items in complete.values():
            for item in items:
                by_line[id(item.life), item.key, item.session].append(item)
                self._judge_messages(item)
        for items in by_line.values():
            self._judge_line(items)

    def _given(self) -> dict[_Assignment, list[_Given]]:
        found: dict[_Assignment, list[_Given]] = {}
        for sequence, record, life, session in self._records:
            if session not in self._opened:
                continue
            is_delivery = isinstance(record, Delivered)
            columns = record.sequences if isinstance(record, Delivered) else record.firsts
            for key, first, count, epoch, message in zip(
                record.keys, record.firsts, record.counts, record.epochs, columns
            ):
                items = found.setdefault((session, epoch), [])
                item = next((i for i in items if i.key == key and i.life is life), None)
                if item is None:
                    item = _Given(life, key, session, epoch, record.subscriber, sequence)
                    items.append(item)
                last = first + count - 1
                if is_delivery:
                    item.runs.append((first, last, message))
                else:
                    item.acked.append((first, last, sequence))
        return found

    def _judge_started(self, given: dict[_Assignment, list[_Given]]) -> None:
        by_epoch: dict[int, list[_Given]] = defaultdict(list)
        for (_, epoch), items in given.items():
            by_epoch[epoch] += [item for item in items if item.runs]
        for line in self._started:
            name, epoch, position = line["name"], line["epoch"], line["position"]
            key = (line["publisher"], line["partition"])
            items = by_epoch.get(epoch, [])
            if not any(i.subscriber == name and i.key == key and i.has(position) for i in items):
                text = (
                    f"{name} started position {position} of {'/'.join(key)} under epoch {epoch}; "
                    f"the journal gave that epoch {_told(items)}"
                )
                self._findings.report("unexpected", line.get("n", 0), text, name)

    def _note_finished(self, given: dict[_Assignment, list[_Given]]) -> None:
        for line in self._finished:
            session, n, name = line["session"], line.get("n", 0), line["name"]
            columns = (line["epochs"], line["firsts"], line["counts"], line["sequence_sums"])
            for epoch, first, count, total in zip(*columns):
                for item in given.get((session, epoch), ()):
                    if item.runs:
                        item.finished.append(_Stretch(first, first + count - 1, total, n, name))

    def _judge_messages(self, item: _Given) -> None:
        """The messages handled under an epoch are those that were given under it."""
        if not item.finished:
            return
        first = min(stretch.first for stretch in item.finished)
        last = max(stretch.last for stretch in item.finished)
        # Otherwise something was handled twice or left out, or never given: that has other names.
        if _size(item.finished) != last - first + 1:
            return
        expected = count = 0
        for low, high, message in item.runs:
            start, end = max(low, first), min(high, last)
            if end >= start:
                count += end - start + 1
                expected += sum(range(message + start - low, message + end - low + 1))
        handled = sum(stretch.sequence_sum for stretch in item.finished)
        if count == last - first + 1 and handled != expected:
            text = (
                f"{item.subscriber} handled {first} to {last} under epoch {item.epoch}; the sum of "
                f"their sequences is {handled} by its history, expected {expected}"
            )
            self._findings.report("inconsistent-offsets", item.sequence, text, item.where)

    def _judge_line(self, items: list[_Given]) -> None:
        """All that one session had to do with one line."""
        stretches = sorted(stretch for item in items for stretch in item.finished)
        upto = 0
        for stretch in stretches:
            if stretch.first <= upto:
                text = (
                    f"{stretch.subscriber} handled {stretch.first} to {stretch.last}, though its "
                    f"session had handled up to {upto}"
                )
                self._findings.report("duplicate", stretch.n, text, items[0].where)
            upto = max(upto, stretch.last)
        for item in items:
            if item.acked:
                self._judge_acks(item, stretches)

    def _judge_acks(self, item: _Given, stretches: list[_Stretch]) -> None:
        """What was acknowledged was finished, under this epoch or an earlier one."""
        first = min(low for low, _, _ in item.acked)
        last = max(high for _, high, _ in item.acked)
        # What was acknowledged twice has another name.
        count = min(sum(high - low + 1 for low, high, _ in item.acked), last - first + 1)
        finished = sum(
            max(0, min(last, stretch.last) - max(first, stretch.first) + 1)
            for stretch in stretches
        )
        if finished < count:
            text = (
                f"{item.subscriber} acknowledged {first} to {last} under epoch {item.epoch}; its "
                f"history says that it finished {finished} of them"
            )
            self._findings.report("unseen", item.acked[0][2], text, item.where)


def _size(stretches: Iterable[_Stretch]) -> int:
    return sum(stretch.last - stretch.first + 1 for stretch in stretches)


def _told(items: list[_Given]) -> str:
    if not items:
        return "to nobody"
    return "; ".join(f"to {item.subscriber} for {item.where}: {item.runs}" for item in items)
