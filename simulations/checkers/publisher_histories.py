"""What publishers say they tried and were told, against what the journal accepted.

Only publishers with a history are compared. What a line says is defined in
``publisher/history.py``. The journal and the histories are joined at the end of a run, except for
answers: the record that an answer names is usually known by then.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping, NamedTuple
from zlib import crc32

from broker.core.message import BODY
from broker.core.records import Published
from simulations.checkers.anomaly import Findings
from simulations.checkers.publishing import Publishing

Line = Mapping[str, Any]
#: (publisher, epoch, partitions, first sequences, counts)
_Shape = tuple[str, int, tuple[str, ...], tuple[int, ...], tuple[int, ...]]
#: (publisher, session, call)
_Call = tuple[str, str, int]


class _Try(NamedTuple):
    call: _Call
    crc: int
    messages: int


class PublisherHistories:
    """lost-write (answered, not there), unexpected (never tried), aborted-read (only refused)."""

    def __init__(self, findings: Findings, publishing: Publishing) -> None:
        self._findings = findings
        self._publishing = publishing
        self._batches: list[tuple[int, Published]] = []
        self._opened: dict[tuple[str, int], str] = {}  # (publisher, epoch) -> session
        self._cut: set[tuple[str, str]] = set()
        self._tries: dict[_Shape, set[_Try]] = {}
        #: (publisher, epoch, partition, first) -> (count, messages in the whole try)
        self._runs: dict[tuple[str, int, str, int], set[tuple[int, int]]] = {}
        self._reach: dict[tuple[str, int, str], int] = {}
        self._refused: dict[_Call, int] = {}
        self._largest: dict[_Call, int] = {}  # what is accepted of a call goes again as less
        self._early: list[Line] = []  # answers that name a record that is not known yet

    def published(self, sequence: int, record: Published) -> None:
        """Kept until the end: the publisher's lines may come later."""
        self._batches.append((sequence, record))

    def hear(self, line: Line, known_upto: int) -> None:
        """Take one line; ``known_upto`` is the last record that was watched."""
        event = line["event"]
        if event == "tried":
            self._tried(line)
        elif event == "answered":
            if line["record"] <= known_upto:
                self._answered(line)
            else:
                self._early.append(line)
        elif event == "refused":
            call = (line["name"], line["session"], line["call"])
            self._refused[call] = self._refused.get(call, 0) + sum(line["counts"])
        elif event == "opened":
            self._opened[line["name"], line["epoch"]] = line["session"]
        elif event == "cut":
            self._cut.add((line["name"], line["session"]))

    def _tried(self, line: Line) -> None:
        name, epoch, counts = line["name"], line["epoch"], line["counts"]
        call = (name, line["session"], line["call"])
        made = _Try(call, line["crc"], sum(counts))
        self._largest[call] = max(made.messages, self._largest.get(call, 0))
        self._tries.setdefault(_shape(name, epoch, line), set()).add(made)
        for partition, first, count in zip(line["partitions"], line["firsts"], counts):
            place = (name, epoch, partition)
            self._runs.setdefault((*place, first), set()).add((count, made.messages))
            self._reach[place] = max(self._reach.get(place, 0), first + count - 1)

    def _answered(self, line: Line) -> None:
        name = line["name"]
        for partition, first, count in zip(line["partitions"], line["firsts"], line["counts"]):
            last, upto = first + count - 1, self._publishing.accepted.get((name, partition), 0)
            if last > upto:
                text = (
                    f"{name} was told by record {line['record']} that {first} to {last} are "
                    f"accepted; the journal has {upto}"
                )
                self._findings.report(
                    "lost-write", line.get("n", 0), text, f"{name}/{partition}"
                )

    def finish(self, known_upto: int) -> None:
        """Join what was accepted with what was tried."""
        for line in self._early:
            if line["record"] <= known_upto:
                self._answered(line)
        for sequence, record in self._batches:
            session = self._opened.get((record.publisher, record.epoch))
            # A client whose disk was full has gone on without a history.
            if session is not None and (record.publisher, session) not in self._cut:
                for name, text in self._faults(record):
                    self._findings.report(name, sequence, text, record.publisher)

    def _faults(self, record: Published) -> Iterator[tuple[str, str]]:
        name, epoch = record.publisher, record.epoch
        columns = {field: getattr(record, field) for field in ("partitions", "firsts", "counts")}
        tries = self._tries.get(_shape(name, epoch, columns))
        said = f"accepted from {name} under epoch {epoch}: {columns}"
        if tries is None:
            # A batch of which only a part was accepted has another shape: it lies inside a try.
            last = record.firsts[0] + record.counts[0] - 1
            if last > self._reach.get((name, epoch, record.partitions[0]), 0):
                yield "unexpected", f"{said}; its history has no such batch"
            return
        if record.dropped:
            return  # the bodies of what was dropped by its id are not in the record
        crc = crc32(b"".join([entry[BODY] for entry in record.entries]))
        same = [item for item in tries if item.crc == crc]
        if not same:
            if not self._within_larger(record):
                yield "unexpected", f"{said}; its history has other bodies for this batch"
        elif all(self._refused.get(item.call, 0) >= self._largest[item.call] for item in same):
            yield "aborted-read", f"{said}; it was told that every try of it is refused"

    def _within_larger(self, record: Published) -> bool:
        """Whether it may be the accepted part of a larger try: that can have the shape of another
        try, of other messages, that was refused before."""
        place = (record.publisher, record.epoch, record.partitions[0], record.firsts[0])
        size = sum(record.counts)
        return any(
            count >= record.counts[0] and messages > size
            for count, messages in self._runs.get(place, ())
        )


def _shape(name: str, epoch: int, columns: Mapping[str, Any]) -> _Shape:
    return (
        name, epoch, tuple(columns["partitions"]), tuple(columns["firsts"]),
        tuple(columns["counts"]),
    )  # fmt: skip
