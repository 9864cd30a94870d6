"""How work ends or comes back: acks, nacks, and what is taken from a subscriber."""

from __future__ import annotations

from typing import Iterator

from broker.core.records import Acked, Nacked, Reassigned
from simulations.checkers.attempts import of_nack
from simulations.checkers.line import Line
from simulations.checkers.lives import Lives


class Settling:
    """fenced-ack, no-resurrection (settled again), reassign-causality."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives

    def acked(self, sequence: int, record: Acked) -> None:
        """An ack settles from the head of the line on, under the epoch that holds it."""
        life = self._lives.of(record.subscription)
        lines, subscriber = life.lines, record.subscriber
        for key, first, count, epoch in zip(
            record.keys, record.firsts, record.counts, record.epochs
        ):
            line = lines.get(key) or life.line(key)
            last = first + count - 1
            if not line.doubtful and not (
                first == line.settled + 1
                and last <= line.delivered
                and line.delivered > line.settled
                and line.owner == subscriber
                and line.epoch == epoch
            ):
                self._lives.doubt(
                    line, sequence, _unfenced(line, "ack", subscriber, epoch, first, last)
                )
            if last > line.settled:
                line.settled = last
            line.failure = None
            line.touched = sequence

    def nacked(self, sequence: int, record: Nacked) -> None:
        """A nack takes the line back to before its message, which is the head."""
        line = self._lives.of(record.subscription).line(record.key)
        first, subscriber, epoch = record.position, record.subscriber, record.epoch
        if not line.doubtful:
            faults = [*_unfenced(line, "nack", subscriber, epoch, first, first)]
            if not faults:
                faults = of_nack(line, first, record.attempt)
            self._lives.doubt(line, sequence, faults)
        line.delivered = first - 1
        line.tried_position, line.tried_attempt = first, record.attempt
        line.tried_failed = True
        line.failure = first, record.attempt
        line.touched = sequence

    def reassigned(self, sequence: int, record: Reassigned) -> None:
        """All that a subscriber holds of a line from a position on is taken from it."""
        life = self._lives.of(record.subscription)
        for key, first, count, epoch in zip(
            record.keys, record.firsts, record.counts, record.epochs
        ):
            line = life.line(key)
            last = first + count - 1
            if not line.doubtful and not (
                line.in_flight
                and line.is_held_by(record.subscriber, epoch)
                and first > line.settled
                and last == line.delivered
            ):
                text = (
                    f"{first} to {last} taken from {record.subscriber} under epoch {epoch}, while "
                    + line.state()
                )
                self._lives.doubt(line, sequence, [("reassign-causality", text)])
            line.delivered = first - 1
            line.failure = (first, None) if record.reason == "crash" else None
            line.touched = sequence


def _unfenced(
    line: Line, word: str, subscriber: str, epoch: int, first: int, last: int
) -> Iterator[tuple[str, str]]:
    said = f"{word} by {subscriber} under epoch {epoch} for {first} to {last}, while {line.state()}"
    if first <= line.settled:
        yield "no-resurrection", said
    elif (
        not line.in_flight
        or not line.is_held_by(subscriber, epoch)
        or first != line.settled + 1
        or last > line.delivered
    ):
        yield "fenced-ack", said
