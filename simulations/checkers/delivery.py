"""What is handed out: to whom, under which epoch, from which position on."""

from __future__ import annotations

from typing import Iterator, NamedTuple

from broker.core.records import Delivered
from simulations.checkers.anomaly import Findings
from simulations.checkers.attempts import Attempts
from simulations.checkers.line import Line
from simulations.checkers.lives import Lives

_NONE: set[int] = set()


class _Run(NamedTuple):
    """One run of a delivery."""

    sequence: int
    subscriber: str
    first: int
    message_last: int
    epoch: int
    attempt: int


class Delivery:
    """poll-skip, nonmonotonic-poll (and inside a batch), single-owner, unexpected, no-resurrection,
    delivery-within-ownership; and the attempts and the order of what is handed out."""

    def __init__(self, findings: Findings, lives: Lives, attempts: Attempts) -> None:
        self.runs = 0
        self._findings = findings
        self._lives = lives
        self._attempts = attempts

    def delivered(self, sequence: int, record: Delivered) -> None:
        """Judge and take a batch, run by run."""
        life = self._lives.of(record.subscription)
        subscriber = record.subscriber
        if subscriber not in life.members:
            text = f"given to {subscriber}, which is not subscribed to {record.subscription}"
            self._findings.report("delivery-within-ownership", sequence, text, subscriber)
        lines, offset, late = life.lines, 0, record.late
        self.runs += len(record.keys)
        for key, first, message, count, epoch, attempt in zip(
            record.keys, record.firsts, record.sequences, record.counts, record.epochs,
            record.attempts,
        ):  # fmt: skip
            line = lines.get(key) or life.line(key)
            if not line.doubtful:
                run = _Run(sequence, subscriber, first, message + count - 1, epoch, attempt)
                if not _is_plain(line, run):
                    self._lives.doubt(line, sequence, self._faults(line, run))
                if count > 0 and not line.doubtful:
                    inside = _inside(late, offset, count) if late else _NONE
                    found = line.order.deliver(sequence, first, count, message, inside, line.handed)
                    if found:
                        self._lives.report(line, found)
            offset += count
            _take(line, sequence, subscriber, first, first + count - 1, epoch, attempt)

    def _faults(self, line: Line, run: _Run) -> Iterator[tuple[str, str]]:
        first, settled = run.first, line.settled
        if line.blocked > settled:
            yield "delivery-limit", (
                f"position {first} was handed out while its partition was parked at {line.blocked}"
            )
        if first <= settled:
            yield "no-resurrection", (
                f"position {first} was handed out when the line was settled up to {settled}"
            )
        elif line.in_flight and not line.is_held_by(run.subscriber, run.epoch):
            yield "single-owner", (
                f"given to {run.subscriber} under epoch {run.epoch} while {line.state()}"
            )
        elif first != line.delivered + 1:
            yield _misplaced(line, run)
        elif not line.in_flight and run.epoch <= line.epoch_max:
            yield "single-owner", (
                f"given under epoch {run.epoch}, expected one above {line.epoch_max}"
            )
            yield from self._attempts.of_delivery(line, first, run.attempt)
        else:
            if run.message_last > line.published_upto:
                yield "unexpected", (
                    f"messages up to {run.message_last} were handed out, published were "
                    f"{line.published_upto}"
                )
            yield from self._attempts.of_delivery(line, first, run.attempt)


def _is_plain(line: Line, run: _Run) -> bool:
    """Whether it is the first try of what is next, with nothing to look into: nearly always."""
    if line.delivered > line.settled:
        held = line.owner == run.subscriber and line.epoch == run.epoch
    else:
        held = run.epoch > line.epoch_max
    return (
        held
        and run.first == line.delivered + 1
        and run.attempt == 1
        and run.first > line.handed
        and not line.blocked
        and run.message_last <= line.published_upto
    )


def _inside(late: list[int], offset: int, count: int) -> set[int]:
    """The indexes of a batch that lie in one of its runs, as indexes in the run."""
    return {index - offset for index in late if 0 <= index - offset < count}


def _misplaced(line: Line, run: _Run) -> tuple[str, str]:
    inside = "int-" if line.touched == run.sequence else ""
    name = "poll-skip" if run.first > line.delivered else "nonmonotonic-poll"
    text = f"position {run.first} was handed out, expected {line.delivered + 1}"
    return inside + name, text


def _take(
    line: Line, sequence: int, subscriber: str, first: int, last: int, epoch: int, attempt: int
) -> None:
    line.delivered = last
    if last > line.handed:
        line.handed = last
    line.owner, line.epoch = subscriber, epoch
    if epoch > line.epoch_max:
        line.epoch_max = epoch
    line.tried_position, line.tried_attempt, line.tried_failed = first, attempt, False
    line.failure = None
    line.touched = sequence
